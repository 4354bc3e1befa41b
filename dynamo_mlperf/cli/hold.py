"""`--hold` and `--hold-for` of `run` and `job`: a `hold:` block that the command line lays over the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from dynamo_mlperf.cli.numbers import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., object]")


def hold_options(command: F) -> F:
    """The two options."""
    keep = click.option("--hold", is_flag=True, help="Keep the engines up after the measurement, for --attach RUN.")
    long = click.option(
        "--hold-for",
        "hold_s",
        type=SECONDS,
        help="The same, until nobody has measured for so many seconds. [default: the file's, else 3600]",
    )
    return keep(long(command))


def hold_block(*, hold: bool, hold_s: float | None) -> Mapping[str, Mapping[str, object]] | None:
    """What they lay over the file; None where neither is given."""
    if hold_s is not None:
        return {"hold": {"idle_s": hold_s}}
    return {"hold": {}} if hold else None

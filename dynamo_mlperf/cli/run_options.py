"""What `run` and `job` take alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., object]")


def run_options(command: F) -> F:
    """FILE, and where and on how many nodes it is run."""
    file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
    run_dir = click.option(
        "--run-dir", type=click.Path(path_type=Path), help="Where to record the run. [default: runs/ID]"
    )
    site = click.option("--site", help="Site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
    nodes = click.option("--nodes", type=int, help="Another node count than the file's; workers scale in proportion.")
    return file(run_dir(site(nodes(command))))

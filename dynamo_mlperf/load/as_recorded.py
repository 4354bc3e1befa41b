"""A run's figures from its files against those that the run itself recorded in `verdict.json`.

They are made of these very files, so that others show a file that was changed, or came from another run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dynamo_mlperf.record import Verdict

_FIGURES = (
    *("requests", "failed_requests", "duration_s", "completed_qps", "tokens_per_second"),
    *("disaggregation", "client"),
)
"""What every release makes alike, whatever the rules are by now: a figure of `client` whose rule changes needs another
name, or runs of before would seem to be changed."""
_ONE = 1e-9
"""Sums of floats may differ in their last digit."""


def recorded_otherwise(verdict: Verdict, recorded: Mapping[str, Any]) -> list[Reason]:
    """Why the files are not those that the run judged; a figure that it did not record is passed over.

    Args:
        verdict: From the files as they are.
        recorded: The content of `verdict.json`.
    """
    again = verdict.as_json()
    names = [name for key in _FIGURES for name in _different(key, recorded.get(key), again[key])]
    if not names:
        return []
    action = "copy the whole run directory again: a file of it is of another run, or was changed after its verdict"
    return [Reason("figures that the run itself recorded", "those of its files", f"others: {', '.join(names)}", action)]


def _different(name: str, was: Any, now: Any) -> Iterator[str]:  # noqa: ANN401 - whatever the file holds
    if isinstance(was, dict) and isinstance(now, dict):
        for key in was.keys() & now.keys():
            yield from _different(f"{name} {key}", was[key], now[key])
    elif isinstance(was, int | float) and isinstance(now, int | float):
        if not math.isclose(was, now, rel_tol=_ONE):
            yield name
    elif was is not None and was != now:
        yield name

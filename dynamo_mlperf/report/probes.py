"""The probes of a rate search as a report shows them: one row each, from `search/answer.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.run_files import parsed
from dynamo_mlperf.report.words import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SEARCH_ANSWER = "search/answer.json"
_MOST_BYTES = 16_000_000
_SHOWN = 60


@dataclass(frozen=True)
class ProbeRow:
    """One probe.

    Attributes:
        rate: The rate that was asked for, for people.
        purpose: Why it was made.
        outcome: `VALID`, `INVALID`, or why it was stopped.
        queries: How many ended.
        over: How many were over each limit, for people.
        seconds: How long it ran.
        confirms: Whether it is the page's result.
    """

    rate: str
    purpose: str
    outcome: str
    queries: str
    over: str
    seconds: str
    confirms: bool


@dataclass(frozen=True)
class SearchView:
    """A search.

    Attributes:
        reason: Its end in a sentence.
        rows: Its probes in the order of time.
        left_out: How many more there were.
    """

    reason: str
    rows: tuple[ProbeRow, ...]
    left_out: int


def read_probes(root: Path) -> SearchView | None:
    """The search of a run directory; None where there is none, or its answer cannot be read."""
    path = root / SEARCH_ANSWER
    try:
        value = parsed(read_bounded(path, _MOST_BYTES))
        made = [one for one in value["probes"] if isinstance(one, dict)]
        best = value.get("confirmed_by")
        rows = tuple(_row(one, confirms=place == best) for place, one in enumerate(made[:_SHOWN]))
        return SearchView(in_words(str(value.get("reason", ""))), rows, max(0, len(made) - _SHOWN))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _row(value: Mapping[str, Any], *, confirms: bool) -> ProbeRow:
    over = value.get("over_limit")
    counts = over.items() if isinstance(over, dict) else ()
    valid = value.get("valid")
    reasons = value.get("reasons")
    why = f" ({str(reasons[0]).partition(':')[0]})" if isinstance(reasons, list) and reasons else ""
    ended = "VALID" if valid is True else "INVALID" if valid is False else f"stopped: {value.get('ended', '')}"
    return ProbeRow(
        q.rate(q.number_or_none(value.get("target_qps"))),
        str(value.get("purpose", "")),
        in_words(ended + why),
        q.count(q.number_or_none(value.get("n"))),
        ", ".join(f"{q.count(q.number_or_none(count))} over {in_words(str(name))}" for name, count in counts),
        q.duration(q.number_or_none(value.get("seconds"))),
        confirms,
    )

"""How many queries were over a limit, from whatever was recorded: all latencies, or percentiles only.

Percentiles bound the count from both sides, and a bound often decides: when the 99.9th percentile of 24,576 queries
is within the limit, at most 24 are over it, of 209 that may be.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, early_stopping_latency, plain_percentile

if TYPE_CHECKING:
    from dynamo_mlperf.load.logs import LoadgenLog
    from dynamo_mlperf.load.queries import Times

LOGGED_SHARES = (0.5, 0.9, 0.95, 0.97, 0.99, 0.999)
_PERCENTILE_KEYS = {
    "end_to_end": "result_{:.2f}_percentile_latency_ns",
    "ttft": "result_first_token_{:.2f}_percentile_latency_ns",
    "tpot": "result_time_per_output_token_{:.2f}_percentile_ns",
}
RANGE_KEYS = {
    "end_to_end": ("result_min_latency_ns", "result_max_latency_ns"),
    "ttft": ("result_first_token_min_latency_ns", "result_first_token_max_latency_ns"),
    "tpot": ("result_time_to_output_token_min", "result_time_to_output_token_max"),
}


_MOST_QUERIES = 10_000_000_000
_SLACK = 1e-9
"""Interpolated percentiles are off by their last digit."""


def figure(value: object) -> float | None:
    """A figure of somebody's file as a finite number of 0 or more; None where there is none.

    Raises:
        ValueError: It is something else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"wanted a number of 0 or more, got {value!r}")
    return float(value)


@dataclasses.dataclass(frozen=True)
class OverLimit:
    """Queries over one limit.

    Attributes:
        number: Queries of the run.
        at_least: Fewest that can have been over the limit.
        at_most: Most that can have been; the same where every latency is known.
        percentile: The judged percentile, 0 to 1.
        at_percentile_ms: The plain latency there; None where it is not logged.
        p99_ms: The plain 99th percentile; None where it is not logged.
        early_stopping_ms: The lowest limit that the run would pass; None where it is too short, or not known.
    """

    number: int
    at_least: int
    at_most: int
    percentile: float
    at_percentile_ms: float | None = None
    p99_ms: float | None = None
    early_stopping_ms: float | None = None

    @property
    def allowed(self) -> int:
        """How many may be over the limit; -1 when there are too few queries even with none over."""
        return allowed_over_limit(self.number, self.percentile)

    @property
    def outcome(self) -> Literal["passed", "failed", "open"]:
        """What the early-stopping rule says; `open` where the bounds leave it so."""
        if self.at_most <= self.allowed:
            return "passed"
        return "failed" if self.at_least > self.allowed else "open"

    @property
    def bound(self) -> int:
        """The count to show: the most there can be where the run passed, else the fewest."""
        return self.at_most if self.outcome == "passed" else self.at_least

    @property
    def shown(self) -> str:
        """The count for people."""
        return str(self.at_least) if self.at_least == self.at_most else f"{self.at_least} to {self.at_most}"


def counted(latencies_ms: Times, limit_ms: float, percentile: float) -> OverLimit:
    """From every latency of a run, ascending, in milliseconds."""
    values = latencies_ms.tolist()
    over = int(np.count_nonzero(latencies_ms > limit_ms))
    return OverLimit(
        number=len(values),
        at_least=over,
        at_most=over,
        percentile=percentile,
        at_percentile_ms=plain_percentile(values, percentile),
        p99_ms=plain_percentile(values, 0.99),
        early_stopping_ms=early_stopping_latency(values, percentile),
    )


@dataclasses.dataclass(frozen=True)
class Percentiles:
    """What a log tells of one constraint's latencies, in milliseconds.

    Attributes:
        number: Queries of the run.
        lowest: The lowest latency.
        highest: The highest.
        by_share: Percentiles by share, 0 to 1.
        at_places: Whether each is the value at position `number * share`, rounded down, as LoadGen's are; else it may
            lie between two neighbours, as interpolated ones do.
    """

    number: int
    lowest: float
    highest: float
    by_share: Mapping[float, float]
    at_places: bool = True

    def __post_init__(self) -> None:
        rising = [self.lowest, *(value for _, value in sorted(self.by_share.items())), self.highest]
        for value in rising:
            figure(value)
        if any(after < before * (1 - _SLACK) for before, after in itertools.pairwise(rising)):
            raise ValueError(f"percentiles that do not rise: {', '.join(f'{value:g}' for value in rising)} ms")
        if not 0 <= self.number <= _MOST_QUERIES:
            raise ValueError(f"{self.number} queries")


def bounded(known: Percentiles, limit_ms: float, percentile: float) -> OverLimit:
    """From percentiles: how many are over a limit, at least and at most."""
    number = known.number
    at_least = number if known.lowest > limit_ms else int(known.highest > limit_ms)
    at_most = 0 if known.highest <= limit_ms else number - int(known.lowest <= limit_ms)
    for share, value in known.by_share.items():
        if value > limit_ms:
            place = int(number * share) if known.at_places else math.ceil(number * share)
            at_least = max(at_least, number - min(place, number - 1))
        else:
            place = int((number if known.at_places else number - 1) * share)
            at_most = min(at_most, number - 1 - min(place, number - 1))
    return OverLimit(number, at_least, at_most, percentile, known.by_share.get(percentile), known.by_share.get(0.99))


def logged(log: LoadgenLog, constraint: str, limit_ms: float, percentile: float) -> OverLimit | None:
    """From what LoadGen logs about a constraint (`end_to_end`, `ttft`, `tpot`); None where it logs nothing of it.

    Of end-to-end latencies it logs the number over its limit; of the others percentiles alone.
    """
    keys = {share: _PERCENTILE_KEYS[constraint].format(share * 100) for share in LOGGED_SHARES}
    by_share = {share: float(log.values[key]) / 1e6 for share, key in keys.items() if key in log.values}
    number = int(log.values.get("result_query_count", 0))
    low, high = (log.values.get(key) for key in RANGE_KEYS[constraint])
    if percentile not in by_share or not number or low is None or high is None:
        return None
    found = bounded(Percentiles(number, float(low) / 1e6, float(high) / 1e6, by_share), limit_ms, percentile)
    over = _counted_by_loadgen(log, constraint, limit_ms)
    if over is None or not found.at_least <= over <= found.at_most:
        return found
    return dataclasses.replace(found, at_least=over, at_most=over)


def _counted_by_loadgen(log: LoadgenLog, constraint: str, limit_ms: float) -> int | None:
    """LoadGen counts the queries over its own end-to-end limit; None where that is not this one."""
    over = log.values.get("result_overlatency_query_count")
    own = constraint == "end_to_end" and log.values.get("effective_target_latency_ns") == round(limit_ms * 1e6)
    return int(over) if own and over is not None else None

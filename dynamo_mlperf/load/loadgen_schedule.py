"""When LoadGen was to issue each query: its Server schedule, made again from the seed.

LoadGen 6.0.17 (`loadgen.cc`, `GenerateQueries`) draws each gap by `std::exponential_distribution` of libstdc++ from a
`std::mt19937`, which takes the low half of the seed, in whole nanoseconds, and schedules the first query at 0. Its log
tells the sum of all gaps (`generated_query_duration`), by which the schedule made here is known to be the same.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.load.lateness import from_least

if TYPE_CHECKING:
    from dynamo_mlperf.load.logs import LoadgenLog
    from dynamo_mlperf.load.queries import Counts, Queries, Times
    from dynamo_mlperf.load.settings import LoadSettings

_WORD = 2**32
_DIGITS_MS = 3
"""Of the times in `queries.csv`."""


def gaps_ns(seed: int, rate_qps: float, number: int) -> Counts:
    """Nanoseconds from each of `number` queries to the next one; of the last one to where the next would have been."""
    words = np.random.RandomState(seed % _WORD).randint(0, _WORD, 2 * number, dtype=np.uint32).astype(np.float64)
    chance = (words[::2] + words[1::2] * _WORD) / _WORD**2
    return (-np.log(1.0 - chance) / rate_qps * 1e9).astype(np.int64)


def scheduled_ns(gaps: Counts) -> Counts:
    """When each query is to be issued, in nanoseconds since the first."""
    return np.cumsum(gaps) - gaps


def lateness_ms(queries: Queries, log: LoadgenLog, settings: LoadSettings) -> Times | None:
    """How much later than scheduled each query was issued, in milliseconds.

    The start of the schedule is not on record: the query that was least late counts as in time.

    Returns:
        None in Offline, which has no schedule, and where the log's is another.
    """
    if settings.loadgen_scenario == "Offline" or not np.isfinite(queries.issued_ms).all():
        return None
    rate_qps = float(f"{settings.target_qps:.12g}")  # as `user.conf` has it
    gaps = gaps_ns(settings.seeds.schedule, rate_qps, len(queries))
    if log.values.get("generated_query_duration") != int(gaps.sum()):
        return None
    scheduled_ms = np.round(scheduled_ns(gaps) / 1e6, _DIGITS_MS)
    return np.round(from_least(queries.issued_ms - scheduled_ms), _DIGITS_MS)


def by_schedule(queries: Queries, late_ms: Times | None) -> Queries:
    """The queries as if each had been issued when it was to be: what the rules' latencies begin with."""
    return queries if late_ms is None else dataclasses.replace(queries, issued_ms=queries.issued_ms - late_ms)

"""When endpoints was to issue each sample: its schedule, made again from the seed.

Its Poisson pattern draws every gap from `random.Random(seed).expovariate(rate)`, in whole nanoseconds, and issues at
the sums, counted from the start of the phase (its `load_generator/delay.py` and `strategy.py`, ea332753). Its latencies
begin with the issue; the rules count from the schedule.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.load.checks import LATE_LEAST_MS, LATE_SHARE
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from dynamo_mlperf.load.queries import Queries, Times
    from dynamo_mlperf.load.settings import LoadSettings

_SHOWN = (50, 99, 100)


def lateness_ms(queries: Queries, settings: LoadSettings) -> Times | None:
    """How much later than scheduled each sample was issued, in milliseconds; None in Offline, which has no schedule.

    The start of the phase is not on record: the sample that was least late counts as in time.
    """
    if settings.loadgen_scenario == "Offline":
        return None
    rng, rate_per_ns = random.Random(settings.seeds.schedule), settings.target_qps / 1e9  # noqa: S311 - its schedule
    gaps_ns = [max(1, int(rng.expovariate(rate_per_ns))) for _ in range(len(queries))]
    late = queries.issued_ms - np.cumsum(gaps_ns) / 1e6
    found: Times = late - late.min()
    return found


def issued_in_time(late_ms: Times | None, settings: LoadSettings) -> list[Reason]:
    """The client did not fall behind its schedule: what it measures then begins where the rules begin."""
    limits = [limit for name, limit in settings.limits_ms.items() if name != "tpot"]
    if late_ms is None or not limits:
        return []
    tolerance_ms = max(LATE_SHARE * min(limits), LATE_LEAST_MS)
    p99_ms = float(np.percentile(late_ms, 99))
    if p99_ms <= tolerance_ms:
        return []
    return [
        Reason(
            "client-limited",
            f"samples issued within {tolerance_ms:g} ms of their schedule (p99)",
            f"{p99_ms:.1f} ms",
            "endpoints was held up: give it cores of its own (head: dedicated), look for swapping",
        )
    ]


def as_account(late_ms: Times | None) -> dict[str, float]:
    """The same for people: percentiles of the lateness in milliseconds; empty in Offline."""
    if late_ms is None:
        return {}
    return {f"p{share}": round(float(np.percentile(late_ms, share)), 3) for share in _SHOWN}

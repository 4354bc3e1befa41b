"""When endpoints was to issue each sample: its schedule, made again from the seed.

Its Poisson pattern draws every gap from `random.Random(seed).expovariate(rate)`, in whole nanoseconds, and issues at
the sums, counted from the start of the phase (its `load_generator/delay.py` and `strategy.py`, ea332753). Its latencies
begin with the issue; the rules count from the schedule.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.load.lateness import from_least

if TYPE_CHECKING:
    from dynamo_mlperf.load.queries import Queries, Times
    from dynamo_mlperf.load.settings import LoadSettings

HELD_UP = "endpoints was held up: give it cores of its own (head: dedicated), look for swapping"
"""What to do where it issued late."""


def lateness_ms(queries: Queries, settings: LoadSettings) -> Times | None:
    """How much later than scheduled each sample was issued, in milliseconds; None in Offline, which has no schedule.

    The start of the phase is not on record: the sample that was least late counts as in time.
    """
    if settings.loadgen_scenario == "Offline":
        return None
    rng, rate_per_ns = random.Random(settings.seeds.schedule), settings.target_qps / 1e9  # noqa: S311 - its schedule
    gaps_ns = [max(1, int(rng.expovariate(rate_per_ns))) for _ in range(len(queries))]
    return from_least(queries.issued_ms - np.cumsum(gaps_ns) / 1e6)

"""Whether a test by its settings holds as many queries as the early-stopping rule needs: known before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dynamo_mlperf.benchmark.early_stopping import minimum_queries
from dynamo_mlperf.load.endpoints_config import sample_count
from dynamo_mlperf.load.user_conf import in_whole_sets

if TYPE_CHECKING:
    from dynamo_mlperf.load.settings import LoadSettings

_OFFLINE_SLACK = 1.1
"""LoadGen 6.0.17 plans an Offline query with a tenth more samples than the expected rate asks for."""
_LUCK = 4.0
"""Standard deviations by which the number of arrivals of a Server test is allowed to be off what the rate says."""
_LEAST_OVER = {"loadgen": 0, "endpoints": 1}
"""endpoints reports the t-th highest latency (t >= 1): its rule is one query stricter."""


@dataclass(frozen=True)
class Enough:
    """Queries of a test, by its settings alone.

    Attributes:
        planned: Queries that it issues: rate times duration, or the fewest that are asked for, in whole data sets.
            In Server they arrive at random, and a whole data set more or less may come of it.
        fewest: The least that chance may make of it.
        most: The most.
        needed: Queries below which no run passes, even with none over the limit; 0 where no latency is judged.
        percentile: The judged percentile, 0 to 1.
        rate_qps: The lowest rate that gives enough at this duration.
        duration_s: The test's shortest duration in seconds.
        takes_s: What it takes at its rate, about: longer where more queries are sent than fit that.
    """

    planned: int
    fewest: int
    most: int
    needed: int
    percentile: float
    rate_qps: float
    duration_s: float
    takes_s: float

    @property
    def too_few(self) -> bool:
        """Whether no run by these settings can pass."""
        return self.planned < self.needed

    @property
    def what(self) -> str:
        """For people, with both numbers."""
        asked = f"p{self.percentile * 100:g} needs {self.needed} even with none over the limit"
        sent = f"{self.planned} queries in about {self.takes_s:.4g} s by these settings"
        return f"{sent}, and the early-stopping rule at {asked}"

    @property
    def action(self) -> str:
        """What gives enough."""
        return f"a target_qps of {self.rate_qps:.4g} or more, a longer test, or a lower percentile (reduced:)"


def enough_queries(settings: LoadSettings, client: Literal["loadgen", "endpoints"] = "loadgen") -> Enough:
    """Whether a test by these settings can hold enough queries.

    Args:
        settings: Of a performance test.
        client: Whose early-stopping rule judges.
    """
    duration_s = settings.min_duration_ms / 1000
    needed = minimum_queries(_LEAST_OVER[client], settings.percentile) if settings.limits_ms else 0
    data_set = settings.performance_sample_count if settings.sample_concatenate_permutation else 1
    luck = _LUCK if client == "loadgen" and settings.loadgen_scenario != "Offline" else 0.0
    planned, fewest, most = (_planned(settings, client, duration_s, data_set, part) for part in (0.0, -luck, luck))
    # Enough queries begin one above the last whole number of data sets that is too few.
    short = (math.ceil(needed / data_set) - 1) * data_set
    takes_s = max(duration_s, planned / settings.target_qps) if settings.target_qps else duration_s
    return Enough(planned, fewest, most, needed, settings.percentile, (short + 1) / duration_s, duration_s, takes_s)


def _planned(settings: LoadSettings, client: str, duration_s: float, data_set: int, luck: float) -> int:
    """Queries of a test whose arrivals are so many standard deviations more than the rate says."""
    if client == "endpoints":
        return sample_count(settings)
    slack = _OFFLINE_SLACK if settings.loadgen_scenario == "Offline" else 1.0
    by_rate = settings.target_qps * duration_s * slack
    return in_whole_sets(max(by_rate + luck * math.sqrt(by_rate), settings.min_query_count), data_set)

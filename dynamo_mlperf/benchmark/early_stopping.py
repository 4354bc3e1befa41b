"""MLPerf's early-stopping rule: how many queries of a run may be over the limit.

Source: the early-stopping criterion of the inference policies (confidence 0.99, tolerance 0), as LoadGen applies it:
with `t` of `n` queries over the limit a run passes when a system that meets the percentile only just would show
`t` or fewer with probability at most 0.01, that is when the binomial tail P(Bin(n, 1 - p) <= t) <= 1 - 0.99.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.99
_FAR_SIGMAS = 14.0
"""Terms this many standard deviations below the mean are below 1e-40 of the tail that matters here."""


def _check(percentile: float) -> None:
    if not 0.0 < percentile < 1.0:
        raise ValueError(f"percentile {percentile} is no fraction between 0 and 1")


def _log_probability(n: int, k: int, over: float) -> float:
    """Log of P(Bin(n, over) = k)."""
    log_ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return log_ways + k * math.log(over) + (n - k) * math.log1p(-over)


@lru_cache(maxsize=4096)
def allowed_over_limit(n: int, percentile: float) -> int:
    """The most queries of `n` that may be over the limit; -1 when `n` is too few even with none over.

    Args:
        n: Queries of the run.
        percentile: The judged percentile as a fraction, for example 0.99.
    """
    _check(percentile)
    over = 1.0 - percentile
    mean, sigma = n * over, math.sqrt(n * over * percentile)
    k = max(0, int(mean - _FAR_SIGMAS * sigma))
    term = math.exp(_log_probability(n, k, over)) if n else 1.0
    tail, odds = term, over / percentile
    while k < n and tail <= 1.0 - CONFIDENCE:
        term *= (n - k) / (k + 1) * odds
        k += 1
        tail += term
    return k - 1 if tail > 1.0 - CONFIDENCE else k


def minimum_queries(over: int, percentile: float) -> int:
    """The fewest queries with which a run passes although `over` of them are over the limit."""
    high = 1
    while allowed_over_limit(high, percentile) < over:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if allowed_over_limit(middle, percentile) < over:
            low = middle
        else:
            high = middle
    return high


def passes(n: int, over: int, percentile: float) -> bool:
    """Whether a run of `n` queries with `over` of them over the limit passes."""
    return over <= allowed_over_limit(n, percentile)


def early_stopping_latency(
    latencies: Sequence[float], percentile: float, client: Literal["loadgen", "endpoints"] = "loadgen"
) -> float | None:
    """The lowest limit under which a run with these latencies passes; None when they are too few.

    Args:
        latencies: All latencies of the run, ascending, in any unit.
        percentile: The judged percentile as a fraction.
        client: Whose rule: LoadGen allows t over the limit, endpoints reports the t-th highest latency (t >= 1),
            which is one sample stricter.
    """
    n = len(latencies)
    allowed = allowed_over_limit(n, percentile) - (client == "endpoints")
    return latencies[n - 1 - allowed] if allowed >= 0 else None


def plain_percentile(latencies: Sequence[float], percentile: float) -> float:
    """LoadGen's percentile of ascending latencies: the value at position `n * percentile`, rounded down.

    Raises:
        ValueError: There are no latencies.
    """
    if not len(latencies):
        raise ValueError("no latencies to take a percentile of")
    return latencies[min(int(len(latencies) * percentile), len(latencies) - 1)]

"""Early stopping in words: why a run does not pass, and what would.

The two clients' rules differ by one sample. LoadGen passes a run with at most t queries over the limit; endpoints
reports the t-th highest latency, which is within the limit when at most t - 1 are over it (t >= 1).
"""

from __future__ import annotations

import math

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, minimum_queries
from dynamo_mlperf.record import Reason

_LONGEST = 50_000_000
"""More queries than any run has: beyond it the share of slow ones is as good as at the percentile."""


def enough_queries(number: int, over: int, percentile: float) -> int | None:
    """How many queries would pass at the same share of slow ones; None where none would.

    Args:
        number: Queries of the run.
        over: Those over the limit.
        percentile: The judged percentile, 0 to 1.
    """
    share = over / number

    def would_pass(queries: int) -> bool:
        return allowed_over_limit(queries, percentile) >= math.ceil(share * queries)

    high = max(number, minimum_queries(0, percentile))
    while not would_pass(high):
        high *= 2
        if high > _LONGEST:
            return None
    low = max(number, high // 2)
    while high - low > max(1, high // 1000):  # three digits are enough for an advice
        middle = (low + high) // 2
        low, high = (low, middle) if would_pass(middle) else (middle, high)
    return high


def too_few(number: int, over: int, percentile: float) -> Reason:
    """The run cannot pass, however fast it was."""
    with_some = f", {over} of them over the limit" if over else ""
    return Reason(
        f"too few queries for p{percentile * 100:g}",
        f"{minimum_queries(0, percentile)} with none over",
        f"{number}{with_some}",
        "run for longer, at a higher target_qps, or lower the percentile in reduced:",
    )


def too_many_over(
    name: str, limit_ms: float, number: int, over: int, percentile: float, *, seen: str = "", shown: str = ""
) -> Reason:
    """More over the limit than the rule allows.

    Args:
        name: The constraint.
        limit_ms: Its limit in milliseconds.
        number: Queries of the run.
        over: Those over the limit, at least.
        percentile: The judged percentile, 0 to 1.
        seen: Further figures to show.
        shown: The count for people, where it is not exactly `over`.
    """
    allowed = allowed_over_limit(number, percentile)
    action = "lower target_qps, or give the role that limits it more GPUs"
    enough = enough_queries(number, over, percentile) if over < number * (1 - percentile) else None
    if enough is not None:
        action = (
            f"the plain p{percentile * 100:g} is within the limit, and the run too short to prove it: at this share of "
            f"slow queries about {enough} queries would pass; run for longer, or lower target_qps"
        )
    return Reason(
        f"{name} within {limit_ms:g} ms", f"at most {allowed} of {number} over", f"{shown or over} over{seen}", action
    )

"""Latencies of single queries, out of the load client's record of each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import plain_percentile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynamo_mlperf.load.queries import Queries


def per_query_ms(queries: Queries, constraint: str) -> NDArray[np.float64]:
    """Latency of every query in milliseconds, shape (n,), by the client's definitions; NaN for one that failed.

    Args:
        queries: The client's record, n queries.
        constraint: A key of CONSTRAINTS.
    """
    if constraint == "tpot":
        values = (queries.completed_ms - queries.first_token_ms) / np.maximum(queries.output_tokens - 1, 1)
        values = np.where(queries.output_tokens > 0, values, np.nan)  # endpoints keeps no token counts per query
    else:
        values = (queries.first_token_ms if constraint == "ttft" else queries.completed_ms) - queries.issued_ms
    return np.where(queries.succeeded, values, np.nan)


def ascending_ms(queries: Queries, constraint: str) -> NDArray[np.float64]:
    """The latencies that exist, ascending, shape (m,) with m <= n."""
    values = per_query_ms(queries, constraint)
    return np.sort(values[np.isfinite(values)])


def percentile(ascending: NDArray[np.float64], fraction: float) -> float | None:
    """LoadGen's percentile of ascending latencies; None where there are none."""
    return float(plain_percentile(ascending, fraction)) if len(ascending) else None  # type: ignore[arg-type]


def causes(queries: Queries) -> list[tuple[str, int]]:
    """What failed queries said and how many said it, most frequent first."""
    return Counter(error for error in queries.errors if error).most_common()

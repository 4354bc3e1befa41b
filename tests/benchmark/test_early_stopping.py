"""The early-stopping rule against published counts, against exact arithmetic, and by its own properties."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.early_stopping import (
    allowed_over_limit,
    early_stopping_latency,
    minimum_queries,
    passes,
    plain_percentile,
)

P99 = {
    458: -1,
    459: 0,
    661: 0,
    662: 1,
    2000: 9,
    4388: 28,
    6396: 45,
    8000: 59,
    16000: 130,
    24000: 204,
    24576: 209,
    32000: 278,
    48289: 432,
    96578: 894,
    270336: 2583,
}
PERCENTILES = st.sampled_from([0.5, 0.75, 0.9, 0.95, 0.97, 0.99, 0.999])


@pytest.mark.parametrize(("queries", "allowed"), P99.items())
def test_p99_matches_the_published_counts(queries: int, allowed: int) -> None:
    assert allowed_over_limit(queries, 0.99) == allowed


@pytest.mark.parametrize(("queries", "allowed"), [(43, -1), (44, 0), (63, 0), (64, 1)])
def test_p90_matches_the_published_counts(queries: int, allowed: int) -> None:
    assert allowed_over_limit(queries, 0.9) == allowed


@pytest.mark.parametrize("queries", [0, 1])
def test_no_run_of_so_few_queries_passes(queries: int) -> None:
    assert allowed_over_limit(queries, 0.99) == -1


def _exact(n: int, percentile: Fraction) -> int:
    over, tail, allowed = 1 - percentile, Fraction(0), -1
    for k in range(n + 1):
        tail += comb(n, k) * over**k * percentile ** (n - k)
        if tail > Fraction(1, 100):
            break
        allowed = k
    return allowed


@given(n=st.integers(0, 700), percent=st.sampled_from([50, 75, 90, 95, 99]))
def test_equals_exact_rational_arithmetic(n: int, percent: int) -> None:
    assert allowed_over_limit(n, percent / 100) == _exact(n, Fraction(percent, 100))


@given(n=st.integers(1, 400_000), percentile=PERCENTILES)
def test_one_more_query_allows_at_most_one_more_over(n: int, percentile: float) -> None:
    now, after = allowed_over_limit(n, percentile), allowed_over_limit(n + 1, percentile)
    assert now <= after <= now + 1
    assert after < (n + 1) * (1 - percentile)


@given(over=st.integers(0, 3000), percentile=PERCENTILES)
def test_minimum_queries_is_the_first_that_passes(over: int, percentile: float) -> None:
    n = minimum_queries(over, percentile)
    assert passes(n, over, percentile)
    assert not passes(n - 1, over, percentile)


@given(latencies=st.lists(st.floats(1, 1e6), min_size=44, max_size=900), percentile=st.sampled_from([0.9, 0.95]))
def test_early_stopping_latency_is_the_lowest_passing_limit(latencies: list[float], percentile: float) -> None:
    latencies.sort()
    limit = early_stopping_latency(latencies, percentile)
    if limit is None:
        assert allowed_over_limit(len(latencies), percentile) == -1
        return

    def over(bound: float) -> int:
        return sum(latency > bound for latency in latencies)

    assert passes(len(latencies), over(limit), percentile)
    below = [latency for latency in latencies if latency < limit]
    if below:
        assert not passes(len(latencies), over(below[-1]), percentile)


def test_endpoints_rule_is_one_sample_stricter() -> None:
    latencies = [float(value) for value in range(662)]
    assert early_stopping_latency(latencies, 0.99) == 660.0
    assert early_stopping_latency(latencies, 0.99, client="endpoints") == 661.0
    assert early_stopping_latency(latencies[:661], 0.99) == 660.0
    assert early_stopping_latency(latencies[:661], 0.99, client="endpoints") is None


def test_plain_percentile_is_loadgens() -> None:
    assert plain_percentile([float(value) for value in range(1000)], 0.99) == 990.0
    assert plain_percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no latencies"):
        plain_percentile([], 0.99)


@pytest.mark.parametrize("percentile", [0.0, 1.0, 99.0])
def test_a_percent_is_no_fraction(percentile: float) -> None:
    with pytest.raises(ValueError, match="no fraction"):
        allowed_over_limit(1000, percentile)

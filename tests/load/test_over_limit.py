"""Queries over a limit, from all latencies and from percentiles alone, and what is said where they are too many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, passes, plain_percentile
from dynamo_mlperf.load.over_limit import LOGGED_SHARES, Percentiles, bounded, counted
from dynamo_mlperf.load.stopping import enough_queries, too_few, too_many_over

LATENCIES = st.lists(st.integers(1, 40), min_size=1, max_size=900).map(sorted)


@given(values=LATENCIES, limit=st.integers(0, 41), percentile=st.sampled_from([0.5, 0.9, 0.99]))
def test_percentiles_bound_the_count_from_both_sides(values: list[int], limit: int, percentile: float) -> None:
    over = sum(value > limit for value in values)
    by_share = {share: plain_percentile(values, share) for share in LOGGED_SHARES}
    found = bounded(Percentiles(len(values), values[0], values[-1], by_share), limit, percentile)
    assert found.at_least <= over <= found.at_most
    if found.outcome != "open":
        assert (found.outcome == "passed") == passes(len(values), over, percentile)


@given(values=LATENCIES, limit=st.integers(0, 41))
def test_interpolated_percentiles_bound_it_too(values: list[int], limit: int) -> None:
    over = sum(value > limit for value in values)
    shares = [0.01, 0.25, *LOGGED_SHARES]
    by_share = {share: float(np.percentile(values, share * 100)) for share in shares}
    found = bounded(Percentiles(len(values), values[0], values[-1], by_share, at_places=False), limit, 0.99)
    assert found.at_least <= over <= found.at_most


@given(values=LATENCIES, limit=st.integers(0, 41))
def test_all_latencies_give_the_count_itself(values: list[int], limit: int) -> None:
    found = counted(np.array(values, dtype=float), limit, 0.9)
    assert found.at_least == found.at_most == sum(value > limit for value in values)
    assert found.allowed == allowed_over_limit(len(values), 0.9)
    if found.early_stopping_ms is not None:
        assert (found.outcome == "passed") == (found.early_stopping_ms <= limit)
    else:
        assert found.outcome == "failed"


@pytest.mark.parametrize(
    ("p999", "outcome", "shown"),
    [(1400.0, "passed", "1 to 24"), (1600.0, "open", "25 to 245"), (None, "open", "1 to 245")],
)
def test_a_percentile_often_decides(p999: float | None, outcome: str, shown: str) -> None:
    by_share = {0.99: 1350.0, **({} if p999 is None else {0.999: p999})}
    found = bounded(Percentiles(24_576, 20.0, 1900.0, by_share), 1500, 0.99)
    assert (found.outcome, found.shown, found.allowed) == (outcome, shown, 209)


@given(number=st.integers(100, 60_000), share=st.floats(0, 0.02))
def test_so_many_queries_are_enough_and_not_many_more_than_needed(number: int, share: float) -> None:
    over = int(number * share)
    enough = enough_queries(number, over, 0.99)
    if over / number >= 0.01:
        assert enough is None
    elif enough is not None:
        slow = math.ceil(over / number * enough)
        assert enough >= number
        assert passes(enough, slow, 0.99)


def test_advice_says_what_would_pass() -> None:
    reason = too_many_over("end_to_end", 1500, 2000, 15, 0.99)
    assert reason.wanted == "at most 9 of 2000 over"
    assert reason.got == "15 over"
    assert reason.action == (
        "the plain p99 is within the limit, and the run too short to prove it: at this share of slow queries about 8625 "
        "queries would pass; run for longer, or lower target_qps"
    )
    assert too_many_over("ttft", 450, 2000, 30, 0.99).action.startswith("lower target_qps")


def test_too_few_queries_are_no_matter_of_the_rate() -> None:
    assert too_few(300, 0, 0.99).text() == (
        "too few queries for p99: wanted 459 with none over, got 300. run for longer, at a higher target_qps, or lower "
        "the percentile in reduced:"
    )
    assert too_few(300, 4, 0.99).got == "300, 4 of them over the limit"


@pytest.mark.parametrize(("over", "outcome"), [(0, "passed"), (9, "passed"), (10, "failed")])
def test_the_last_sample_decides(over: int, outcome: str) -> None:
    latencies = np.array([1.0] * (2000 - over) + [9.0] * over)
    assert counted(latencies, 5, 0.99).outcome == outcome
    by_share = {share: plain_percentile(latencies.tolist(), share) for share in (0.99, 1 - over / 2000)}
    assert bounded(Percentiles(2000, 1.0, 9.0 if over else 1.0, by_share), 5, 0.99).outcome != (
        "failed" if outcome == "passed" else "passed"
    )

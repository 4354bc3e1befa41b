"""The sweep's steps, on simulated systems whose roles have known capacities."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.topology.role_splits import RoleCount, RoleSplit
from dynamo_mlperf.tuning.bottleneck import CLEAR, Pressure, RolePressure, find_bottleneck
from dynamo_mlperf.tuning.sweep import (
    SplitResult,
    SweepState,
    bound_of,
    next_rate,
    next_split,
    pruned,
    restarts_between,
    without_time,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def split(prefill: int, decode: int, degree: int = 2) -> RoleSplit:
    name = f"{prefill}P{decode}D" if degree == 2 else f"{prefill}P{degree}x{decode}D"
    return RoleSplit(name, (RoleCount("prefill", prefill, degree), RoleCount("decode", decode, 1)))


SIXTEEN = tuple(split(first, 16 - 2 * first) for first in range(1, 8))
"""All splits of 16 GPUs with prefill workers of TP2 and decode workers of TP1."""
MANY = tuple(split(first, 72 - 2 * first) for first in range(1, 36))
"""The same of 72 GPUs: neighbours differ by little."""


def measured(of: RoleSplit, prefill: float, decode: float) -> SplitResult:
    """What a search finds where each worker holds so many QPS; the role that limits is told."""
    rates = {"prefill": of.of("prefill").workers * prefill, "decode": of.of("decode").workers * decode}
    role = min(rates, key=lambda name: rates[name])
    return SplitResult(of, rates[role], rates[role] * 1.03, role, share=1.0, why="by its queue")


def swept(
    splits: Sequence[RoleSplit],
    prefill: float,
    decode: float,
    *,
    first: RoleSplit | None = None,
    predicted: Mapping[str, float] | None = None,
    prune: bool = True,
) -> SweepState:
    """A whole sweep."""
    state = SweepState(tuple(splits), first=first, predicted=predicted or {}, prune=prune)
    while (following := next_split(state)) is not None:
        assert following.name not in {result.split.name for result in state.results}
        result = measured(following, prefill, decode)
        state = SweepState(state.splits, (*state.results, result), following, state.first, state.predicted, state.prune)
    return state


def names(state: SweepState) -> list[str]:
    return [result.split.name for result in state.results]


capacities = st.floats(0.5, 20.0)


@given(capacities, capacities, st.sampled_from([SIXTEEN, MANY]), st.data())
def test_the_best_split_wins_whatever_is_pruned(
    prefill: float, decode: float, splits: Sequence[RoleSplit], data: st.DataObject
) -> None:
    truth = {one.name: measured(one, prefill, decode).rate_qps or 0.0 for one in splits}
    wrong = data.draw(st.sampled_from([0.0, 1.0, 1.3]), "how far the predictions are off, none at 0")
    predicted = {name: rate * (wrong if name == "4P8D" else 1.0) for name, rate in truth.items()} if wrong else {}
    state = swept(splits, prefill, decode, first=data.draw(st.sampled_from(splits)), predicted=predicted)
    assert state.best is not None
    assert state.best.rate_qps == max(truth.values())
    reasons = pruned(state)
    assert set(names(state)) | reasons.keys() == set(truth), "each split is measured, or has its reason"
    for name, reason in reasons.items():
        assert truth[name] <= state.best.rate_qps
        assert f"{state.best.rate_qps:.4g}" in reason


def test_decode_limits_at_75_to_25_and_the_sweep_moves_to_the_balanced_splits() -> None:
    state = swept(SIXTEEN, prefill=9.0, decode=4.0, first=split(6, 4))
    assert names(state) == ["6P4D", "5P6D", "4P8D", "3P10D"]
    assert state.results[0].bottleneck == "decode"
    assert state.best is not None
    assert state.best.split.name == "4P8D"
    assert pruned(state).keys() == {"7P2D", "2P12D", "1P14D"}
    assert "so 2 can hold 8.24 at most" in pruned(state)["7P2D"]


def test_what_is_not_clear_or_not_located_prunes_nothing() -> None:
    there = split(6, 4)
    vague = SplitResult(there, 16.0, 16.5, "decode", share=0.6)
    low = SplitResult(there, 16.0, None, "decode", share=1.0)
    best = SplitResult(split(4, 8), 32.0, 33.0, None)
    state = SweepState(SIXTEEN, (vague, low, best), running=split(4, 8))
    assert pruned(state) == {}
    other_degree = measured(split(2, 8, degree=4), 3.0, 9.0)
    assert bound_of(split(6, 4), [other_degree]) is None, "another TP is another worker"


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1, max_size=5, unique=True))
def test_without_pruning_the_order_has_the_fewest_restarts(counts: list[tuple[int, int]]) -> None:
    splits = [split(*pair) for pair in counts]
    order = [result.split for result in swept(splits, 5.0, 5.0, prune=False).results]

    def restarts(way: Sequence[RoleSplit]) -> int:
        return sum(restarts_between(before, after) for before, after in pairwise(way))

    assert restarts(order) == min(restarts(way) for way in permutations(splits))


def test_what_limits_gives_the_direction_even_where_it_prunes_nothing() -> None:
    vague = SplitResult(split(6, 4), 16.0, 16.5, "decode", share=0.6)
    state = SweepState(SIXTEEN, (vague,), running=split(6, 4))
    assert next_split(state) == split(5, 6)


def test_by_prediction_first_then_by_restarts() -> None:
    predicted = {"1P14D": 10.0, "4P8D": 30.0, "5P6D": 31.0, "6P4D": 12.0, "3P10D": 20.0}
    state = swept(SIXTEEN, 8.0, 4.0, predicted=predicted, prune=False)
    assert names(state)[:5] == ["4P8D", "5P6D", "3P10D", "6P4D", "1P14D"]
    assert len(names(state)) == 7


def test_splits_that_no_time_is_left_for_are_named() -> None:
    first, second, third = SIXTEEN[:3]
    state = SweepState((first, second, third), (SplitResult(second, 10.0),), running=second)
    assert without_time(state, None, 600.0, 240.0) == without_time(state, 900.0, 600.0, 240.0) == {}
    left = without_time(state, 899.0, 600.0, 240.0)
    assert set(left) == {first.name, third.name}
    assert left[first.name].startswith("899 s left, 900 s needed and more where a run at a low rate is padded")
    up = SweepState((first,), running=first)
    assert without_time(up, 660.0, 600.0, 240.0) == {}, "its workers serve already"
    assert without_time(up, 659.0, 600.0, 240.0).keys() == {first.name}


def test_given_rates_are_halved() -> None:
    rates = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    for truth in range(8):
        outcomes: dict[float, bool] = {}
        while (rate := next_rate(rates, outcomes)) is not None:
            outcomes[rate] = rate <= truth
        assert len(outcomes) <= 3
        assert max((rate for rate, valid in outcomes.items() if valid), default=0.0) == truth


def readings(prefill_ms: Sequence[float], decode_ms: Sequence[float], *, again_at: int = -1) -> list[Pressure]:
    """A reading per stretch of ten requests, which took so long in each role; at `again_at` the workers began anew."""
    served, spent = 0, {"prefill": 0.0, "decode": 0.0}
    found = []
    for number, pair in enumerate(zip(prefill_ms, decode_ms, strict=True)):
        if number == again_at:
            served, spent = 0, {"prefill": 0.0, "decode": 0.0}
        served += 10
        for name, each in zip(spent, pair, strict=True):
            spent[name] += 10 * each
        found.append(Pressure(float(number), {name: RolePressure(4, served, spent[name]) for name in spent}))
    return found


def test_the_role_whose_requests_pile_up_is_the_bottleneck() -> None:
    flat, rising = [50.0] * 20, [100.0 * number for number in range(1, 21)]
    assert find_bottleneck(readings(flat, rising)).role == "decode"
    found = find_bottleneck(readings(rising, flat))
    assert (found.role, found.share) == ("prefill", 1.0)
    assert "prefill" in found.text().partition(";")[0]
    assert find_bottleneck(readings(rising, flat, again_at=10)).role == "prefill"
    anew = find_bottleneck(readings([1000.0] * 4 + [50.0] * 16, flat, again_at=4))
    assert anew.loads["prefill"].calm_ms == 50.0
    both = find_bottleneck(readings([0.8 * each for each in rising], rising))
    assert both.role == "decode"
    assert both.share < CLEAR
    assert find_bottleneck(readings(flat, flat)).role is None
    assert find_bottleneck(readings(flat[:3], flat[:3])).role is None
    assert find_bottleneck([]).role is None


def test_what_bounds_other_splits_is_the_share_at_the_rate_that_holds() -> None:
    """Beyond that rate the limiting role's queue, and its share, grow without end."""
    calm, held, beyond = [50.0] * 10, [150.0, 200.0, 250.0, 300.0] * 3, [1000.0 * number for number in range(1, 11)]
    prefill = [*calm, *(0.5 * each for each in held), *([80.0] * 10)]
    told = readings(prefill, [*calm, *held, *beyond])
    window = (told[10].t, told[21].t)
    found = find_bottleneck(told, window)
    assert (found.role, round(found.share, 2), round(found.held_share, 2)) == ("decode", 0.99, 0.71)
    assert find_bottleneck(told).held_share == find_bottleneck(told, (told[0].t, told[2].t)).held_share == 0.0
    assert find_bottleneck(told, (told[0].t, told[9].t)).held_share == 0.0, "it was calm"
    alone = [Pressure(one.t, {"aggregated": one.roles["decode"]}) for one in told]
    assert find_bottleneck(alone, window).held_share == 1.0

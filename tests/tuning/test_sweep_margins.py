"""Bounds on what other splits hold, where a worker holds more in one split than it does in another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_mlperf.topology.role_splits import RoleSplit
from dynamo_mlperf.tuning.sweep import SplitResult, SweepState, next_split, pruned
from tests.tuning.test_sweep_steps import MANY, SIXTEEN, split

ROLES = ("prefill", "decode")
LOCATED = 1.05
"""A located answer's ceiling, of the answer: five tolerances of 1 %."""


def slowed_ms(of: RoleSplit, role: str, alone_ms: float, qps: float) -> float:
    """Time per request in one role where its workers share themselves among what is there."""
    return alone_ms / (1.0 - qps * alone_ms / 1000.0 / of.of(role).workers)


def searched(of: RoleSplit, alone_ms: tuple[float, float], limit_ms: float) -> SplitResult:
    """What a search finds where one limit holds for the sum of both roles' times; both grow with the rate."""
    times = dict(zip(ROLES, alone_ms, strict=True))
    low, high = 0.0, min(of.of(role).workers * 1000.0 / alone for role, alone in times.items())
    for _ in range(60):
        qps = (low + high) / 2.0
        if sum(slowed_ms(of, role, alone, qps) for role, alone in times.items()) <= limit_ms:
            low = qps
        else:
            high = qps
    grown = {role: slowed_ms(of, role, alone, low) - alone for role, alone in times.items()}
    role = max(grown, key=lambda name: grown[name])
    return SplitResult(of, low, low * LOCATED, role, grown[role] / sum(grown.values()))


alone = st.floats(50.0, 3000.0)


@settings(max_examples=40)
@given(st.tuples(alone, alone), st.floats(1.1, 10.0), st.sampled_from([SIXTEEN, MANY]), st.data())
def test_the_best_split_wins_where_roles_share_one_latency_limit(
    alone_ms: tuple[float, float], room: float, splits: tuple[RoleSplit, ...], data: st.DataObject
) -> None:
    truth = {one.name: searched(one, alone_ms, room * sum(alone_ms)) for one in splits}
    state = SweepState(splits, first=data.draw(st.sampled_from(splits)))
    while (following := next_split(state)) is not None:
        found = truth[following.name]
        state = SweepState(splits, (*state.results, found), following, state.first)
    assert state.best is not None
    assert state.best.rate_qps == max(found.rate_qps or 0.0 for found in truth.values())


def test_a_worker_holds_more_where_the_other_role_takes_less_of_the_limit() -> None:
    """The one of docs/sweep.md: by twelve fourteenths of what 1P14D holds, 2P12D, which is better, could not win."""
    alone_ms, limit_ms = (290.0, 1890.0), 2620.0
    measured, better = (searched(one, alone_ms, limit_ms) for one in (split(1, 14), split(2, 12)))
    assert measured.rate_qps == pytest.approx(1.052, abs=1e-3)
    assert better.rate_qps == pytest.approx(1.077, abs=1e-3)
    assert measured.bottleneck == "decode"
    assert 0.7 < measured.share < 0.72
    assert (measured.ceiling_qps or 0.0) * 12 / 14 < (measured.rate_qps or 0.0), "what skipped it"
    assert pruned(SweepState((split(1, 14), split(2, 12)), (measured,))) == {}

"""Crowds of one role move onto empty bins; everything else stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_mlperf.topology.packing import spread_crowds

Held = tuple[tuple[int, int], ...]


def alone(held: Held, kind: int) -> list[int]:
    """How many each bin holds that holds this kind only."""
    return [pair[kind] for pair in held if pair[kind] and not pair[1 - kind]]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=8).map(tuple))
def test_crowds_move_onto_empty_bins_and_nothing_else_changes(held: Held) -> None:
    spread = spread_crowds(held)
    assert len(spread) == len(held)
    for before, after in zip(held, spread, strict=True):
        # what holds something goes on holding its kinds, and pairs stay as they are
        assert all((here > 0) <= (there > 0) for here, there in zip(before, after, strict=True))
        assert not all(before) or after == before
        assert all(before) or not all(after)
    crowded = False
    for kind in (0, 1):
        had, has = alone(held, kind), alone(spread, kind)
        assert sum(had) == sum(has)
        if len(had) == len(has):
            assert had == has
        else:
            assert max(has) - min(has) <= 1
            assert max(has) <= max(had)
        crowded |= any(count > 1 for count in has)
    assert not (crowded and (0, 0) in spread)
    assert spread_crowds(spread) == spread


@pytest.mark.parametrize(
    ("held", "spread"),
    [
        (((1, 0), (1, 0), (0, 2), (0, 0)), ((1, 0), (1, 0), (0, 1), (0, 1))),
        (((5, 0), (0, 2), (0, 0), (0, 0)), ((2, 0), (0, 2), (2, 0), (1, 0))),
        (((2, 0), (0, 3), (0, 0)), ((2, 0), (0, 2), (0, 1))),
        (((2, 0), (0, 2), (0, 0)), ((1, 0), (0, 2), (1, 0))),
        (((0, 0), (0, 4), (0, 1)), ((0, 2), (0, 2), (0, 1))),
        (((1, 2), (2, 1), (0, 0)), ((1, 2), (2, 1), (0, 0))),
        (((2, 0), (3, 0), (4, 0)), ((2, 0), (3, 0), (4, 0))),
    ],
)
def test_the_kind_that_crowds_most_gets_the_empty_bin_and_is_shared_out_evenly(held: Held, spread: Held) -> None:
    assert spread_crowds(held) == spread

"""Long rows by halves, and domains by formula, against adding one bin after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_mlperf.errors import CapacityError
from dynamo_mlperf.topology import rows as rows_module
from dynamo_mlperf.topology.capacity import fewest_nodes, fits, nearest_plans, with_workers
from dynamo_mlperf.topology.domains import MixedFrontier
from dynamo_mlperf.topology.packing import Frontier, Room
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.rows import RowFrontier
from dynamo_mlperf.topology.short_rows import ShortRow
from dynamo_mlperf.topology.spec import MAX_NODES, Topology
from tests.topology.test_topology_plan import check_plan
from tests.topology.topology_texts import disaggregated


def one_by_one(rooms: list[Room]) -> list[int]:
    """Most of the second kind beside each number of the first, by trying every content of every bin."""
    most = [0]
    for room in rooms:
        found = [-1] * (len(most) + len(room) - 1)
        for before, held in enumerate(most):
            for a, b in enumerate(room):
                found[before + a] = max(found[before + a], held + b)
        most = found
    return most


def check_frontier(frontier: Frontier, rooms: list[Room], borders: list[int]) -> None:
    wanted = one_by_one(rooms)
    assert frontier.table().tolist() == wanted
    assert frontier.most_first == len(wanted) - 1
    assert [frontier.most_second(a) for a in range(len(wanted))] == wanted
    assert frontier.most_second(len(wanted)) == frontier.most_second(-1) == -1
    for number in borders:
        first = number % len(wanted)
        assert frontier.holds(first, wanted[first])
        assert not frontier.holds(first, wanted[first] + 1)
        for second in {wanted[first], wanted[first] // 2}:
            held = frontier.spread(first, second)
            assert len(held) == len(rooms)
            assert [sum(pair[kind] for pair in held) for kind in (0, 1)] == [first, second]
            assert all(0 <= b <= room[a] for (a, b), room in zip(held, rooms, strict=True))
            assert frontier.spread(first, second) == held


@st.composite
def room_of(draw: st.DrawFn) -> Room:
    """Any falling room, and those that floors give: the hard ones, as they bulge nowhere."""
    if draw(st.booleans()):
        there, first, second = draw(st.integers(1, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
        return tuple((there - a * first) // second for a in range(there // first + 1))
    return tuple(sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)), reverse=True))


@settings(max_examples=250)
@given(
    st.tuples(room_of(), room_of(), room_of()),
    st.integers(0, 23),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([1, 2, 3, 64]),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_rows_by_halves_hold_what_rows_bin_by_bin_hold(
    kinds: tuple[Room, Room, Room], bins: int, odd: tuple[bool, bool], short: int, borders: list[int]
) -> None:
    rooms = [kinds[1]] * odd[0] + [kinds[0]] * bins + [kinds[2]] * odd[1]
    if not rooms:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "SHORT_ROW", short)
        row = RowFrontier(rooms)
        check_frontier(row, rooms, borders)
    plain = ShortRow(rooms)
    check_frontier(plain, rooms, borders)
    for first in {number % (row.most_first + 1) for number in borders}:
        second = row.most_second(first) // 2
        assert plain.spread(first, second) == RowFrontier(rooms).spread(first, second), "a plan stays what it was"


def test_a_rack_is_planned_without_loading_numpy(repository: Path) -> None:
    file = repository / "topologies" / "q3vl-gb300x72-interactive-22p28d.yaml"
    program = (
        "import sys; from pathlib import Path; from dynamo_mlperf.topology.spec import load_topology; "
        "from dynamo_mlperf.topology.plan import make_plan; make_plan(load_topology(Path(sys.argv[1]))); "
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_bins_that_differ_in_the_middle_are_refused() -> None:
    with pytest.raises(ValueError, match="between the first and the last differ"):
        RowFrontier([(2, 1), (2, 1), (3,), (2, 1)])


def wide_room(nodes: int, wide: int, small: int, *, wide_first: bool) -> Room:
    """A domain, by counting the nodes that small workers leave whole."""
    if wide_first:
        return tuple((nodes - a * wide) * small for a in range(nodes // wide + 1))
    return tuple((nodes - -(-a // small)) // wide for a in range(nodes * small + 1))


@settings(max_examples=250)
@given(
    st.tuples(st.integers(1, 6), st.integers(0, 5)),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.booleans(),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
)
def test_domains_by_formula_hold_what_domains_one_by_one_hold(
    domains: tuple[int, int],
    ends: tuple[int, int],
    sizes: tuple[int, int],
    wide_first: bool,  # noqa: FBT001
    borders: list[int],
) -> None:
    nodes = domains[0]
    row = [min(ends[0], nodes), *[nodes] * domains[1], min(ends[1], nodes)]
    rooms = [wide_room(here, *sizes, wide_first=wide_first) for here in row]
    check_frontier(MixedFrontier(row, *sizes, wide_first=wide_first), rooms, borders)


@st.composite
def large_deployments(draw: st.DrawFn) -> Topology:
    """Hundreds to ten thousand nodes, full to within a few workers of either side of the border."""
    gpus, head = draw(st.integers(1, 8)), draw(st.sampled_from(["first", "dedicated"]))
    nodes = draw(st.sampled_from([130, 777, 2_001, MAX_NODES - 1, MAX_NODES]))
    domain = draw(st.sampled_from([None, 2, 18, 72, nodes]))
    sizes = [*range(1, gpus + 1), *(gpus * whole for whole in (2, 3, 5) if whole <= (domain or 1))]
    prefill, decode = draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))
    room = disaggregated((1, prefill), (1, decode), nodes=nodes, gpus=gpus, domain=domain, head=head)
    first = max(1, (nodes - 1) * gpus // prefill * draw(st.integers(1, 99)) // 100)
    hints = [hint for hint in nearest_plans(with_workers(room, (first, 10**9), nodes)) if hint.workers[0] == first]
    second = hints[0].workers[1] if hints else 1
    return with_workers(room, (first, max(1, second + draw(st.integers(-1, 2)))), nodes)


@settings(max_examples=25)
@given(large_deployments())
def test_large_allocations_are_planned_or_refused_with_hints_that_plan(topology: Topology) -> None:
    if fits(topology):
        check_plan(topology, make_plan(topology))
        return
    with pytest.raises(CapacityError) as refused:
        make_plan(topology)
    hints = nearest_plans(topology)
    assert hints
    for hint in hints:
        assert hint.text in refused.value.action
        assert hint.nodes <= MAX_NODES
        other = with_workers(topology, hint.workers, hint.nodes)
        assert len(make_plan(other).workers) == sum(hint.workers)
        if hint.nodes > topology.nodes.count:
            assert not fits(topology, hint.nodes - 1)


def test_no_hint_names_more_nodes_than_can_be_planned() -> None:
    topology = disaggregated((MAX_NODES * 2, 2), (1, 1), nodes=MAX_NODES)
    assert fewest_nodes(topology) is None
    assert {hint.nodes for hint in nearest_plans(topology)} == {MAX_NODES}
    below = disaggregated((MAX_NODES * 2 - 1, 2), (2, 1), nodes=MAX_NODES * 3 // 4)
    assert max(hint.nodes for hint in nearest_plans(below)) == fewest_nodes(below) == MAX_NODES

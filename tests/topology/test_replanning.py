"""From one split to the next: what stays, where the new ones stand, checked against brute force."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dynamo_mlperf.errors import CapacityError
from dynamo_mlperf.topology.capacity import fits
from dynamo_mlperf.topology.plan import Slot, Worker
from dynamo_mlperf.topology.replanning import first_plan, next_plan, port_blocks
from dynamo_mlperf.topology.role_splits import all_splits, parse_split, with_split
from dynamo_mlperf.topology.spec import Topology, parse_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.topology.plan import Plan

TEXT = """
schema: 1
name: moves
nodes: {{count: {nodes}, gpus: {gpus}, nvlink_domain: {domain}}}
model: {{name: m, weights: {{path: /weights}}}}
engine: mocker
roles:
  prefill: {{workers: 1, tensor_parallel: {prefill}}}
  decode: {{workers: 1, tensor_parallel: {decode}}}
measure: {{benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}}
"""


def topology(nodes: int, gpus: int, prefill: int, decode: int, domain: int = 1) -> Topology:
    return parse_topology(TEXT.format(nodes=nodes, gpus=gpus, prefill=prefill, decode=decode, domain=domain))


def degrees(of: Topology) -> dict[str, tuple[int, int]]:
    return {name: (role.tensor_parallel, role.gpus) for name, role in of.roles.present()}


def moved(splits: Sequence[str], base: Topology) -> list[Plan]:
    """The plans of a sweep over these splits."""
    each = [with_split(base, parse_split(split, base)) for split in splits]
    blocks = port_blocks(each)
    plans = [first_plan(each[0], blocks)]
    used: Counter[str] = Counter()
    for before, after in pairwise(each):
        for worker in plans[-1].workers:
            used[worker.role] = max(used[worker.role], worker.index + 1)
        plans.append(next_plan(after, plans[-1].workers, degrees(before), used, blocks))
    return plans


def check(plan: Plan, of: Topology) -> None:
    """All workers stand, by the rules of packing, on GPUs and ports of their own."""
    assert Counter(worker.role for worker in plan.workers) == {name: role.workers for name, role in of.roles.present()}
    slots = [slot for worker in plan.workers for slot in worker.ranks]
    assert len(slots) == len(set(slots))
    assert set(slots).isdisjoint(plan.idle_gpus)
    assert len(slots) + len(plan.idle_gpus) == of.nodes.count * of.nodes.gpus
    domain = of.nodes.nvlink_domain or 1
    for worker in plan.workers:
        role = dict(of.roles.present())[worker.role]
        assert len(worker.ranks) == role.gpus
        if role.gpus <= of.nodes.gpus:
            assert len(worker.nodes) == 1
        else:
            assert len(worker.nodes) * of.nodes.gpus == role.gpus, "whole nodes"
            assert len({node // domain for node in worker.nodes}) == 1
    ports = [port for worker in plan.workers for port in range(worker.port_offset, worker.port_offset + worker.ports)]
    assert len(ports) == len(set(ports))
    assert max(ports) < plan.ports_needed
    assert len({worker.name for worker in plan.workers}) == len(plan.workers)


def placeable(of: Topology, free: dict[int, int], missing: list[int], sizes: list[int]) -> bool:
    """Whether so many workers of each size find free GPUs, by trying all ways."""
    gpus, domain = of.nodes.gpus, of.nodes.nvlink_domain or 1
    kind = next((kind for kind in sorted((0, 1), key=lambda kind: -sizes[kind]) if missing[kind]), None)
    if kind is None:
        return True
    left = [count - (place == kind) for place, count in enumerate(missing)]
    if sizes[kind] <= gpus:
        options = [(node,) for node, count in free.items() if count >= sizes[kind]]
        return any(placeable(of, {**free, node: free[node] - sizes[kind]}, left, sizes) for (node,) in options)
    whole = [node for node, count in free.items() if count == gpus]
    return any(
        placeable(of, {**free, **dict.fromkeys(nodes, 0)}, left, sizes)
        for nodes in combinations(whole, sizes[kind] // gpus)
        if len({node // domain for node in nodes}) == 1
    )


def most_kept(running: Sequence[Worker], after: Topology) -> int:
    """By brute force: the most running workers that can stay."""
    names = [name for name, _role in after.roles.present()]
    sizes = [role.gpus for _name, role in after.roles.present()]
    wanted = [role.workers for _name, role in after.roles.present()]
    for count in range(len(running), -1, -1):
        for stay in combinations(running, count):
            held = Counter(worker.role for worker in stay)
            missing = [most - held[name] for most, name in zip(wanted, names, strict=True)]
            if min(missing) < 0:
                continue
            free = dict.fromkeys(range(after.nodes.count), after.nodes.gpus)
            for slot in (slot for worker in stay for slot in worker.ranks):
                free[slot.node] -= 1
            if placeable(after, free, missing, sizes):
                return count
    raise AssertionError("nothing fits")


@st.composite
def chains(draw: st.DrawFn) -> tuple[Topology, list[str]]:
    """A small allocation and splits of it, one after another."""
    gpus = draw(st.integers(1, 4))
    nodes = draw(st.integers(1, 6 // gpus))
    sizes = [*range(1, gpus + 1), *([2 * gpus] if nodes > 1 else [])]
    base = topology(nodes, gpus, draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes)), domain=nodes)
    counts = st.integers(1, 4)
    splits = []
    for _ in range(draw(st.integers(2, 4))):
        split = f"{draw(counts)}P{draw(counts)}D"
        wanted = parse_split(split, base)
        try:
            with_split(base, wanted)
        except CapacityError:
            continue
        splits.append(split)
    assume(len(splits) > 1)
    return base, splits


@settings(max_examples=100)
@given(chains())
def test_kept_workers_keep_their_gpus_and_as_many_stay_as_possible(chain: tuple[Topology, list[str]]) -> None:
    base, splits = chain
    plans = moved(splits, base)
    seen: set[str] = set()
    for number, (split, plan) in enumerate(zip(splits, plans, strict=True)):
        after = with_split(base, parse_split(split, base))
        check(plan, after)
        if number:
            before = plans[number - 1]
            kept = set(plan.workers) & set(before.workers)  # whole values: role, index, GPUs and ports
            new = {worker.name for worker in plan.workers} - {worker.name for worker in kept}
            assert not new & seen, "no name is used twice"
            assert len(kept) == most_kept(before.workers, after)
        seen |= {worker.name for worker in plan.workers}


def test_the_published_splits_of_sixteen_gpus_restart_two_decode_workers_each() -> None:
    base = topology(4, 4, 2, 1, domain=18)
    plans = moved(["6P4D", "5P6D", "4P8D"], base)
    for before, after in pairwise(plans):
        assert len(set(before.workers) & set(after.workers)) == len(before.workers) - 1
        assert [worker.role for worker in after.workers if worker not in before.workers] == ["decode", "decode"]
    assert [worker.name for worker in plans[2].workers if worker not in plans[1].workers] == ["decode-6", "decode-7"]


def test_nodes_that_hold_most_small_workers_keep_them_when_a_wide_one_takes_nodes() -> None:
    base = topology(6, 2, 4, 1, domain=6)
    plans = moved(["1P4D", "1P5D", "2P3D"], base)
    check(plans[2], with_split(base, parse_split("2P3D", base)))
    assert len(set(plans[1].workers) & set(plans[2].workers)) == 1 + 3


def test_a_worker_is_not_moved_to_sit_beside_its_partner() -> None:
    base = with_split(topology(2, 2, 1, 1), parse_split("1P1D", topology(2, 2, 1, 1)))
    apart = [Worker("prefill", 0, (Slot(0, 0),), 4, 10), Worker("decode", 0, (Slot(1, 0),), 14, 10)]
    after = next_plan(base, apart, degrees(base), {"prefill": 1, "decode": 1}, port_blocks([base]))
    assert list(after.workers) == apart


def test_a_role_whose_tp_changes_starts_anew_and_the_other_serves_on() -> None:
    before, after = moved(["4P8D", "2P4x8D"], topology(4, 4, 2, 1))
    kept = [worker for worker in after.workers if worker in before.workers]
    assert {worker.role for worker in kept} == {"decode"}
    assert {worker.name for worker in after.workers if worker.role == "prefill"} == {"prefill-4", "prefill-5"}


def test_all_splits_are_those_that_leave_no_room_for_a_worker() -> None:
    base = topology(4, 4, 2, 1)
    splits = all_splits(base)
    assert [split.name for split in splits] == ["1P14D", "2P12D", "3P10D", "4P8D", "5P6D", "6P4D", "7P2D"]
    for split in splits:
        here = with_split(base, split)
        for role in ("prefill", "decode"):
            roles = here.roles.model_copy(
                update={
                    role: dict(here.roles.present())[role].model_copy(update={"workers": split.of(role).workers + 1})
                }
            )
            assert not fits(here.model_copy(update={"roles": roles}))


@pytest.mark.parametrize(
    "text", ["", "4P", "0P4D", "4P8D/..", "../4P8D", "4P8Dx", "4p8d", "4P 8D", "16A", "4P8D1P", "٤P8D"]
)
def test_what_is_no_split_of_the_file_is_refused(text: str) -> None:
    from dynamo_mlperf.errors import ConfigError

    with pytest.raises(ConfigError):
        parse_split(text, topology(4, 4, 2, 1))


def test_many_nodes_take_seconds() -> None:
    base = topology(64, 8, 2, 1)
    before, after = moved(["200P112D", "190P132D"], base)
    assert len(set(before.workers) & set(after.workers)) == 190 + 112

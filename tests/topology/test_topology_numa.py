"""Cores and memory of a node, divided among its workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.numa import NumaArea, Share, core_list, divide, kept_back, shares_of
from dynamo_mlperf.topology.plan import make_plan
from tests.topology.topology_texts import disaggregated

GRACE = (NumaArea(tuple(range(72)), (0, 1), 480.0), NumaArea(tuple(range(72, 144)), (2, 3), 480.0))


def test_each_worker_gets_the_cores_and_memory_near_its_gpus() -> None:
    shares = shares_of(make_plan(disaggregated((5, 2), (6, 1))), GRACE)
    assert {key: (share.core_list, share.memory_gib) for key, share in shares.items() if key[1] in {0, 3}} == {
        ("prefill-0", 0): ("0-71", 480.0),
        ("decode-0", 0): ("72-107", 240.0),
        ("decode-1", 0): ("108-143", 240.0),
        ("prefill-3", 3): ("0-71", 480.0),
        ("prefill-4", 3): ("72-143", 480.0),
    }


def test_the_numbers_of_the_granted_gpus_decide_where_they_are_near_to() -> None:
    plan = make_plan(disaggregated((1, 1), (1, 1), nodes=1, gpus=2))
    granted = shares_of(plan, GRACE, {0: [1, 3]})
    assert {name: share.core_list for (name, _node), share in granted.items()} == {
        "prefill-0": "0-71",
        "decode-0": "72-143",
    }
    assert {share.core_list for share in shares_of(plan, GRACE, {0: [2, 3]}).values()} == {"72-107", "108-143"}
    assert {share.core_list for share in shares_of(plan, GRACE, {0: []}).values()} == {"0-35", "36-71"}


def test_the_head_keeps_cores_back_of_each_numa_node_in_turn() -> None:
    assert kept_back(GRACE, 4) == (70, 71, 142, 143)
    assert kept_back((NumaArea((0, 1, 2, 3), (0,)), NumaArea((4, 5, 6, 7), (1,))), 100) == (3, 7), "a quarter at most"
    assert kept_back((), 4) == ()
    plan = make_plan(disaggregated((5, 2), (6, 1)))
    kept, whole = shares_of(plan, GRACE, head_cores=4), shares_of(plan, GRACE)
    assert kept["prefill-0", 0].core_list == "0-69"
    assert {key: share for key, share in kept.items() if key[1]} == {key: s for key, s in whole.items() if key[1]}
    assert all({70, 71, 142, 143}.isdisjoint(share.cores) for (_n, node), share in kept.items() if node == 0)


def test_a_worker_over_numa_nodes_and_nodes_gets_of_each() -> None:
    shares = shares_of(make_plan(disaggregated((1, 8), (2, 3), domain=4)), GRACE)
    assert shares["prefill-0", 0] == shares["prefill-0", 1] == Share(tuple(range(144)), 960.0)
    assert shares["decode-0", 2].core_list == "0-143"


def test_cores_of_idle_gpus_go_to_the_workers_beside_them() -> None:
    assert divide({"decode-0": [2]}, GRACE)["decode-0"] == Share(tuple(range(72, 144)), 480.0)


def test_a_layout_without_gpus_is_divided_as_a_whole() -> None:
    areas = (NumaArea((0, 1), ()), NumaArea((2, 3, 4), (), 8.0))
    assert divide({"b": [1], "a": [0]}, areas) == {"a": Share((0, 1), None), "b": Share((2, 3, 4), None)}
    assert shares_of(make_plan(disaggregated((5, 2), (6, 1))), ()) == {}


def test_fewer_cores_than_workers_are_shared() -> None:
    assert divide({"a": [0], "b": [1], "c": [2]}, (NumaArea((0, 1), (0, 1, 2)),)) == dict.fromkeys(
        "abc", Share((0, 1), None)
    )


def test_a_gpu_of_no_numa_node_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode-0: GPU 4 is near to no NUMA node"):
        divide({"decode-0": [4]}, GRACE)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.integers(6, 40), min_size=1, max_size=4),
    st.randoms(),
)
def test_every_core_is_given_once(sizes: list[int], cores: list[int], random: object) -> None:
    total = sum(sizes)
    order = list(range(total))
    random.shuffle(order)  # type: ignore[attr-defined]
    workers = {f"w{n}": [order.pop() for _ in range(size)] for n, size in enumerate(sizes)}
    starts = [sum(cores[:n]) for n in range(len(cores))]
    areas = [
        NumaArea(tuple(range(start, start + count)), tuple(range(n, total, len(cores))), 64.0)
        for n, (start, count) in enumerate(zip(starts, cores, strict=True))
    ]
    shares = divide(workers, areas)
    used = [area for area in areas if area.gpus]
    given_cores = [core for share in shares.values() for core in share.cores]
    if all(len(area.cores) >= len(area.gpus) for area in used):
        assert sorted(given_cores) == sorted(core for area in used for core in area.cores)
    assert sum(share.memory_gib or 0 for share in shares.values()) == pytest.approx(64.0 * len(used))
    near = {gpu: area for area in areas for gpu in area.gpus}
    for name, own in workers.items():
        assert set(shares[name].cores) <= {core for gpu in own for core in near[gpu].cores}
        assert shares[name].cores


@given(st.sets(st.integers(0, 60)))
def test_a_core_list_says_all_cores(cores: set[int]) -> None:
    text = core_list(sorted(cores))
    read: list[int] = []
    for part in filter(None, text.split(",")):
        first, _dash, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == sorted(cores)

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynamo_mlperf.errors import CapacityError, ConfigError
from dynamo_mlperf.topology.capacity import fewest_nodes, fits, nearest_plans, with_workers
from dynamo_mlperf.topology.layout import ground_of
from dynamo_mlperf.topology.plan import Plan, make_plan, plan_as_json
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.topology.topology_texts import disaggregated, role, topology_text


def check_plan(topology: Topology, plan: Plan) -> None:
    """What every plan keeps, whatever it looks like."""
    gpus, domain = topology.nodes.gpus, topology.nodes.nvlink_domain or 1
    slots = [(slot.node, slot.gpu) for worker in plan.workers for slot in worker.ranks]
    idle = [(slot.node, slot.gpu) for slot in plan.idle_gpus]
    every = [(node, gpu) for node in range(topology.nodes.count) for gpu in range(gpus)]
    assert sorted(slots + idle) == every
    first = int(topology.head == "dedicated")
    assert all(node >= first for node, _gpu in slots)
    for name, part in topology.roles.present():
        mine = [worker for worker in plan.workers if worker.role == name]
        assert [worker.index for worker in mine] == list(range(part.workers))
        assert [worker.ranks[0] for worker in mine] == sorted(worker.ranks[0] for worker in mine)
        for worker in mine:
            assert len(worker.ranks) == part.gpus
            if part.gpus <= gpus:
                assert len(worker.nodes) == 1
            else:
                assert len(worker.ranks) == len(worker.nodes) * gpus
                assert len({node // domain for node in worker.nodes}) == 1
    used_ports = [0, 1]
    used_ports += [port for frontend in plan.frontends for port in (frontend.port_offset, frontend.port_offset + 1)]
    for worker in plan.workers:
        used_ports += range(worker.port_offset, worker.port_offset + worker.ports)
    assert used_ports == list(range(plan.ports_needed))
    check_room_is_used(topology, plan)


def check_room_is_used(topology: Topology, plan: Plan) -> None:
    """No node is empty while another of its domain (of all, without domains) holds two workers of one role alone."""
    domain = topology.nodes.nvlink_domain or 1
    size = domain if domain > 1 else topology.nodes.count
    roles: dict[int, list[str]] = {
        node: [] for node in range(topology.nodes.count - topology.worker_nodes, topology.nodes.count)
    }
    for worker in plan.workers:
        for node in worker.nodes:
            roles[node].append(worker.role)
    empty = [node for node, here in roles.items() if not here]
    crowded = {node // size for node, here in roles.items() if len(here) > 1 and len(set(here)) == 1}
    assert not crowded & {node // size for node in empty}
    if topology.sweep is not None:  # another split may use them
        return
    told = [warning for warning in plan.warnings if warning.startswith("no worker on node")]
    assert len(told) == bool(empty)
    if empty:
        named, enough = told[0].split("; ")
        spans = [(int(low), int(high or low)) for low, high in re.findall(r"(\d+)(?:-(\d+))?", named)]
        assert [node for low, high in spans for node in range(low, high + 1)] == empty
        assert fits(topology, int(enough.removeprefix("nodes.count: ").removesuffix(" holds the same workers")))


@cache
def brute_force(free: tuple[int, ...], domain: int, gpus: int, first: int, groups: tuple[int, ...]) -> bool:
    """Whether the groups fit, one after the other, by trying every place. `first` is node 0's offset in its domain."""
    if not groups:
        return True
    size, rest = groups[0], groups[1:]
    if size <= gpus:
        places = {left: node for node, left in enumerate(free) if left >= size}
        if domain > 1:
            places = {node: node for node, left in enumerate(free) if left >= size}
        return any(
            brute_force((*free[:node], free[node] - size, *free[node + 1 :]), domain, gpus, first, rest)
            for node in places.values()
        )
    needed = size // gpus
    for start in {(node + first) // domain for node in range(len(free))}:
        whole = [node for node, left in enumerate(free) if left == gpus and (node + first) // domain == start]
        if len(whole) >= needed:
            taken = set(whole[:needed])
            left = tuple(0 if node in taken else count for node, count in enumerate(free))
            if brute_force(left, domain, gpus, first, rest):
                return True
    return False


@st.composite
def small_deployments(draw: st.DrawFn) -> Topology:
    """Deployments that just fit or just do not."""
    gpus, head = draw(st.integers(1, 5)), draw(st.sampled_from(["first", "dedicated"]))
    nodes = draw(st.integers(2 if head == "dedicated" else 1, 5))
    domain = draw(st.sampled_from([None, 2, 3, nodes]))
    sizes = [*range(1, gpus + 1), *(gpus * whole for whole in range(2, (domain or 1) + 1))]
    prefill, decode = draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))
    there = (nodes - (head == "dedicated")) * gpus
    first = draw(st.integers(1, max(1, there // prefill)))
    left = (there - first * prefill) // decode
    second = max(1, left - draw(st.integers(-1, 2)))
    return disaggregated((first, prefill), (second, decode), nodes=nodes, gpus=gpus, domain=domain, head=head)


@st.composite
def roomy_deployments(draw: st.DrawFn) -> Topology:
    """Deployments that leave much room."""
    gpus, head = draw(st.integers(1, 6)), draw(st.sampled_from(["first", "dedicated"]))
    nodes = draw(st.integers(2, 9))
    domain = draw(st.sampled_from([None, 1, 2, 3, 4, nodes]))
    sizes = [*range(1, gpus + 1), *(gpus * whole for whole in range(2, (domain or 1) + 1))]
    counts = st.integers(1, 6)
    return disaggregated(
        (draw(counts), draw(st.sampled_from(sizes))),
        (draw(counts), draw(st.sampled_from(sizes))),
        nodes=nodes,
        gpus=gpus,
        domain=domain,
        head=head,
    )


def brute_force_fits(topology: Topology) -> bool:
    groups = tuple(sorted((r.gpus for _n, r in topology.roles.present() for _ in range(r.workers)), reverse=True))
    first = int(topology.head == "dedicated")
    free = (topology.nodes.gpus,) * topology.worker_nodes
    return brute_force(free, topology.nodes.nvlink_domain or 1, topology.nodes.gpus, first, groups)


@settings(max_examples=300, deadline=None)
@given(small_deployments())
@example(disaggregated((3, 3), (3, 1), nodes=3))
@example(disaggregated((5, 2), (6, 1)))
@example(disaggregated((2, 3), (2, 2), nodes=3, gpus=5))
@example(disaggregated((1, 10), (3, 3), gpus=5, domain=4))
@example(disaggregated((3, 3), (1, 10), gpus=5, domain=4))
def test_a_plan_is_found_exactly_when_brute_force_finds_one(topology: Topology) -> None:
    if not brute_force_fits(topology):
        with pytest.raises(CapacityError):
            make_plan(topology)
        return
    plan = make_plan(topology)
    check_plan(topology, plan)
    assert plan == make_plan(topology)


@settings(max_examples=300, deadline=None)
@given(roomy_deployments())
@example(disaggregated((2, 2), (2, 1), gpus=2))
@example(disaggregated((1, 8), (5, 1), nodes=8, domain=4))
def test_workers_use_the_room_of_their_domain_and_no_other_domain(topology: Topology) -> None:
    if not fits(topology):
        return
    plan = make_plan(topology)
    check_plan(topology, plan)
    assert plan == make_plan(topology)
    domain = topology.nodes.nvlink_domain or 1
    size = domain if domain > 1 else topology.nodes.count
    used = {node // size for worker in plan.workers for node in worker.nodes}
    if any(one_domain_holds(topology, number) for number in range(-(-topology.nodes.count // size))):
        assert len(used) == 1
        return
    ground = ground_of(topology)
    packed = ground.frontier.spread(*(role.workers for _name, role in topology.roles.present()))
    assert used == {nodes.start // size for nodes, held in zip(ground.bins, packed, strict=True) if any(held)}


def one_domain_holds(topology: Topology, number: int) -> bool:
    """Whether all workers fit the nodes of one NVLink domain, counted by brute force."""
    domain, first = topology.nodes.nvlink_domain or 1, topology.nodes.count - topology.worker_nodes
    nodes = range(max(first, number * domain), min((number + 1) * domain, topology.nodes.count))
    sizes = tuple(sorted((r.gpus for _n, r in topology.roles.present() for _ in range(r.workers)), reverse=True))
    return domain > 1 and brute_force(
        (topology.nodes.gpus,) * len(nodes), len(nodes) or 1, topology.nodes.gpus, 0, sizes
    )


@settings(max_examples=150, deadline=None)
@given(small_deployments())
def test_every_hint_of_a_refusal_plans(topology: Topology) -> None:
    if fits(topology):
        return
    hints = nearest_plans(topology)
    for hint in hints:
        other = with_workers(topology, hint.workers, hint.nodes)
        check_plan(other, make_plan(other))
        assert hint.text == f"{make_plan(other).split.workers} on {hint.nodes} node{'s' if hint.nodes > 1 else ''}"
    with pytest.raises(CapacityError) as refused:
        make_plan(topology)
    assert all(hint.text in refused.value.action for hint in hints)
    # more nodes always help: groups are no larger than a domain
    assert any(hint.nodes > topology.nodes.count for hint in hints)


@settings(max_examples=100, deadline=None)
@given(small_deployments())
def test_the_fewest_nodes_hold_and_one_less_does_not(topology: Topology) -> None:
    enough = fewest_nodes(topology)
    assert enough is not None
    assert fits(topology, enough)
    head = topology.nodes.count - topology.worker_nodes
    assert enough == head + 1 or not fits(topology, enough - 1)


@settings(max_examples=100, deadline=None)
@given(small_deployments(), st.integers(1, 12))
def test_another_node_count_scales_in_proportion_or_names_counts_that_do(topology: Topology, nodes: int) -> None:
    try:
        plan = make_plan(topology, nodes)
    except CapacityError:
        return
    except ConfigError as error:
        if "--nodes" in error.action:
            for count in error.action.removeprefix("--nodes ").split(", "):
                make_plan(topology, int(count))
        return
    head = topology.nodes.count - topology.worker_nodes
    assert len(plan.nodes) == nodes
    for name, part in topology.roles.present():
        mine = [worker for worker in plan.workers if worker.role == name]
        assert len(mine) * (topology.nodes.count - head) == part.workers * (nodes - head)


@pytest.mark.parametrize(
    ("prefill", "decode", "split", "idle"),
    [
        ((5, 2), (6, 1), "5P6D", 0),
        ((6, 2), (4, 1), "6P4D", 0),
        ((4, 2), (8, 1), "4P8D", 0),
        ((4, 2), (6, 1), "4P6D", 2),
    ],
)
def test_the_published_splits_fit_four_nodes_of_four(
    prefill: tuple[int, int], decode: tuple[int, int], split: str, idle: int
) -> None:
    topology = disaggregated(prefill, decode)
    plan = make_plan(topology)
    check_plan(topology, plan)
    assert plan.split.workers == split
    assert len(plan.idle_gpus) == idle
    assert plan.split.prefill_gpus == prefill[0] * prefill[1]


def test_each_decode_worker_has_a_prefill_worker_on_its_node_where_that_fits() -> None:
    for topology in (disaggregated((4, 2), (8, 1)), disaggregated((5, 2), (6, 1)), disaggregated((2, 2), (2, 1))):
        plan = make_plan(topology)
        prefill_nodes = {worker.node for worker in plan.workers if worker.role == "prefill"}
        assert {worker.node for worker in plan.workers if worker.role == "decode"} <= prefill_nodes


def layout(plan: Plan) -> str:
    """`P0 D0 | P1 D1 | . | .`: the workers of each node."""
    here = [[f"{w.role[0].upper()}{w.index}" for w in plan.workers if node.position in w.nodes] for node in plan.nodes]
    return " | ".join(" ".join(names) or "." for names in here)


@pytest.mark.parametrize(
    ("topology", "workers"),
    [
        (disaggregated((2, 2), (2, 1), gpus=2), "P0 | P1 | D0 | D1"),
        (disaggregated((2, 2), (2, 1)), "P0 D0 | P1 D1 | . | ."),
        (disaggregated((2, 2), (2, 1), nodes=5, gpus=2, head="dedicated"), ". | P0 | P1 | D0 | D1"),
        (disaggregated((2, 2), (2, 1), nodes=6, gpus=2), "P0 | P1 | D0 | D1 | . | ."),
        (disaggregated((2, 2), (2, 1), gpus=2, domain=2), "P0 | P1 | D0 | D1"),
        (disaggregated((2, 2), (2, 1), nodes=6, gpus=2, domain=3), "P0 | P1 | D0 D1 | . | . | ."),
        (disaggregated((2, 2), (2, 1), nodes=6, gpus=2, domain=4), "P0 | P1 | D0 | D1 | . | ."),
        (disaggregated((1, 8), (5, 1), nodes=8, domain=4), "P0 | P0 | D0 D1 D2 | D3 D4 | . | . | . | ."),
    ],
)
def test_a_crowd_of_one_role_moves_onto_empty_nodes_of_its_domain(topology: Topology, workers: str) -> None:
    plan = make_plan(topology)
    check_plan(topology, plan)
    assert layout(plan) == workers


@pytest.mark.parametrize(
    ("prefill", "decode", "workers"),
    [
        ((4, 2), (8, 1), "P0 D0 D1 | P1 D2 D3 | P2 D4 D5 | P3 D6 D7"),
        ((6, 2), (4, 1), "P0 D0 D1 | P1 P2 | P3 D2 D3 | P4 P5"),
        ((5, 2), (6, 1), "P0 D0 D1 | P1 D2 D3 | P2 D4 D5 | P3 P4"),
    ],
)
def test_the_published_layouts(prefill: tuple[int, int], decode: tuple[int, int], workers: str) -> None:
    assert layout(make_plan(disaggregated(prefill, decode))) == workers


def test_whole_node_roles_alternate_so_that_each_domain_has_both() -> None:
    plan = make_plan(disaggregated((2, 4), (2, 4), domain=2))
    assert [(worker.name, worker.node) for worker in plan.workers] == [
        ("prefill-0", 0),
        ("prefill-1", 2),
        ("decode-0", 1),
        ("decode-1", 3),
    ]


@pytest.mark.parametrize(
    ("prefill", "nodes", "workers"),
    [
        (1, 9, ". | P0 | P0 | P0 | P0 | D0 D1 D2 D3 | . | . | ."),
        (2, 12, ". | P0 | P0 | P0 | P0 | D0 D1 | P1 | P1 | P1 | P1 | D2 | D3"),
    ],
)
def test_a_worker_over_four_nodes_takes_them_whole_in_one_domain(prefill: int, nodes: int, workers: str) -> None:
    topology = disaggregated((prefill, 16), (4, 1), nodes=nodes, domain=6, head="dedicated")
    plan = make_plan(topology)
    check_plan(topology, plan)
    assert layout(plan) == workers
    wide = plan.workers[0]
    assert [(slot.node, slot.gpu) for slot in wide.ranks] == [(node, gpu) for node in wide.nodes for gpu in range(4)]


def test_one_worker_too_many_is_refused_with_the_numbers_and_what_fits() -> None:
    with pytest.raises(CapacityError) as refused:
        make_plan(disaggregated((6, 2), (5, 1)))
    assert refused.value.what == "sample: 17 GPUs asked for, 16 in 4 nodes x 4"
    assert refused.value.action == (
        "a plan that fits: 6P4D on 4 nodes, 5P5D on 4 nodes, 5P6D on 4 nodes, 6P5D on 5 nodes"
    )


def test_the_hint_of_fewer_workers_takes_away_no_more_than_it_must() -> None:
    hints = nearest_plans(disaggregated((5, 3), (1, 1)))
    assert [(hint.workers, hint.nodes) for hint in hints] == [((4, 1), 4), ((4, 2), 4), ((5, 1), 5)]


def test_gpus_that_suffice_in_sum_but_not_by_node_are_refused_as_such() -> None:
    with pytest.raises(CapacityError, match="3 prefill workers of 3 and 1 decode workers of 3 do not pack") as refused:
        make_plan(disaggregated((3, 3), (1, 3), nodes=3))
    assert "12 GPUs asked for, 12 in 3 nodes x 4, but" in refused.value.what


def test_a_dedicated_head_holds_no_worker_and_does_not_count() -> None:
    plan = make_plan(disaggregated((4, 2), (8, 1), nodes=5, head="dedicated"))
    assert plan.head_node == 0
    assert {slot.node for worker in plan.workers for slot in worker.ranks} == {1, 2, 3, 4}
    with pytest.raises(CapacityError, match=r"16 GPUs asked for, 12 in 3 nodes x 4 \(node 0 is the head's\)"):
        make_plan(disaggregated((4, 2), (8, 1), nodes=4, head="dedicated"))


@pytest.mark.parametrize(
    ("prefill", "domain", "said"),
    [
        ((1, 6), 4, "a worker of 6 GPUs is larger than a node of 4 and no multiple of it"),
        ((1, 16), 2, "takes 4 nodes of an NVLink domain, which has 2"),
        ((1, 8), None, "takes 2 nodes of an NVLink domain, which has 1"),
    ],
)
def test_a_worker_that_no_such_node_can_hold_is_refused(
    prefill: tuple[int, int], domain: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(disaggregated(prefill, (1, 1), domain=domain))


def aggregated(more: str, *, nodes: int = 64, gpus: int = 8, workers: int = 64) -> Topology:
    return parse_topology(topology_text(nodes=nodes, gpus=gpus, aggregated=role(workers, 8, more)))


def test_attention_ranks_share_the_gpus_of_an_expert_parallel_worker() -> None:
    plan = make_plan(aggregated(", data_parallel: 8, expert_parallel: 8"))
    assert plan_as_json(plan)["split"] == {
        "prefill_gpus": 0,
        "decode_gpus": 0,
        "workers": "64A",
        "aggregated_gpus": 512,
    }
    assert plan.idle_gpus == ()
    assert "vllm starts 64 ranks per worker, on 8 GPUs" in plan.warnings[0]


def test_data_parallel_ranks_have_gpus_of_their_own_without_expert_parallelism() -> None:
    topology = parse_topology(topology_text(nodes=1, aggregated=role(1, 2, ", data_parallel: 2")))
    assert [slot.gpu for slot in make_plan(topology).workers[0].ranks] == [0, 1, 2, 3]


def test_ports_are_blocks_in_order() -> None:
    topology = parse_topology(topology_text(frontends=2, prefill=role(1, 2), decode=role(1)))
    plan = make_plan(topology)
    assert [frontend.port_offset for frontend in plan.frontends] == [2, 4]
    assert [(worker.port_offset, worker.ports) for worker in plan.workers] == [(6, 12), (18, 10)]
    assert plan.ports_needed == 28


def test_nodes_without_a_worker_are_warned_of_with_the_count_that_suffices() -> None:
    plan = make_plan(disaggregated((2, 2), (2, 1)))
    assert plan.warnings == ("no worker on nodes 2-3; nodes.count: 2 holds the same workers",)
    assert make_plan(disaggregated((2, 2), (2, 1), nodes=2)).warnings == ()


def test_a_node_that_another_split_of_the_sweep_uses_is_not_warned_of() -> None:
    """2P2D leaves two of four nodes empty; 2P12D needs them all, and 2P6D only three."""
    text = topology_text(prefill=role(2, 2), decode=role(2))
    swept = [parse_topology(f"{text}sweep: {{splits: [2P2D, {other}]}}\n") for other in ("2P12D", "2P6D")]
    assert make_plan(swept[0]).warnings == ()
    assert make_plan(swept[1]).warnings == ("no worker on nodes 2-3; nodes.count: 3 holds the same workers",)


def test_scaling_names_node_counts_that_plan() -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(disaggregated((5, 2), (6, 1)), 6)
    assert refused.value.what == "5P6D on 4 nodes does not scale to 6 nodes in whole workers"
    assert refused.value.action == "--nodes 4, 8, 12"
    assert make_plan(disaggregated((5, 2), (6, 1)), 8).split.workers == "10P12D"
    assert make_plan(disaggregated((4, 2), (8, 1), nodes=5, head="dedicated"), 2).split.workers == "1P2D"


def test_a_large_allocation_is_planned_and_refused_to_the_last_gpu() -> None:
    topology = disaggregated((111, 2), (290, 1), nodes=128)
    check_plan(topology, make_plan(topology))
    with pytest.raises(CapacityError, match="513 GPUs asked for, 512 in 128 nodes x 4"):
        make_plan(disaggregated((111, 2), (291, 1), nodes=128))

"""What starts when, and how the engine processes of a plan are made up."""

from __future__ import annotations

from dynamo_mlperf.job.deployment import rounds
from dynamo_mlperf.process.allocation import Node
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import parse_topology
from tests.topology.topology_texts import role, topology_text

TEXT = topology_text(nodes=2, gpus=3, engine="mocker", prefill=role(2), decode=role(4))
NODES = tuple(Node(position, f"n{position}", f"10.0.0.{position}", "eth0", f"n{position}") for position in range(2))


def endpoints(*, together: bool = False) -> Endpoints:
    return Endpoints(make_plan(parse_topology(TEXT)), NODES, 20000, "ns", "m", together)


def test_without_a_stagger_everything_starts_at_once() -> None:
    processes = endpoints().processes
    assert rounds(processes, 0) == [list(processes)]


def test_a_stagger_starts_one_worker_of_each_node_after_the_other() -> None:
    processes = endpoints().processes
    turns = rounds(processes, 30.0)
    assert sorted(one.name for turn in turns for one in turn) == sorted(one.name for one in processes)
    for turn in turns:
        nodes = [one.node for one in turn]
        assert len(nodes) == len(set(nodes))
    per_node = [sum(1 for one in processes if one.node == node) for node in (0, 1)]
    assert len(turns) == max(per_node)


def test_workers_of_a_role_and_node_can_share_a_process() -> None:
    shared = endpoints(together=True)
    assert len(shared.processes) == len({(one.role, one.node) for one in shared.processes})
    assert [worker.name for one in shared.processes for worker in one.workers] == [
        worker.name for worker in shared.plan.workers
    ]
    for process in shared.processes:
        assert {(worker.role, worker.node) for worker in process.workers} == {(process.role, process.node)}
        assert {shared.process_of(worker.name) for worker in process.workers} == {process.name}
    several = next(one for one in shared.processes if len(one.workers) > 1)
    assert several.name == f"{several.first.name}-to-{several.workers[-1].index}"
    assert endpoints().process_of("decode-3") == "decode-3"

"""The plan: which worker stands on which GPUs of which node position, decided before the job and printable.

Hostnames are bound to node positions, and a base port to the port offsets, inside the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dynamo_mlperf.topology.capacity import (
    capacity_error,
    fewest_nodes,
    fits,
    scaled,
    split_text,
    workers_of,
)
from dynamo_mlperf.topology.engines import pair_warnings
from dynamo_mlperf.topology.layout import Slots, ground_of
from dynamo_mlperf.topology.role_splits import with_split
from dynamo_mlperf.topology.sweeping import splits_of

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Role, RoleName, Topology

HEAD_NODE = 0
STORE_PORTS = 2
"""First ports of a plan: etcd's client port, then its peer port."""
FRONTEND_PORTS = 2
"""Ports of each frontend: HTTP, then metrics."""
WORKER_PORTS = 8
"""Ports of each worker whatever its ranks: metrics, event plane and spare ones; then two per rank from offset 8 on."""
PORTS_PER_RANK = 2


class Slot(NamedTuple):
    """One GPU (or, on CPUs, the place of one rank) of one node position."""

    node: int
    gpu: int


@dataclass(frozen=True)
class Worker:
    """One engine replica.

    Attributes:
        role: prefill, decode or aggregated.
        index: 0-based number within the role, ascending by node.
        ranks: Its GPUs in rank order.
        port_offset: First of its ports, from the base port that the job chooses.
        ports: How many ports are its own.
    """

    role: RoleName
    index: int
    ranks: tuple[Slot, ...]
    port_offset: int
    ports: int

    @property
    def name(self) -> str:
        """`prefill-0`."""
        return f"{self.role}-{self.index}"

    @property
    def node(self) -> int:
        """Position of the node of its first rank."""
        return self.ranks[0].node

    @property
    def nodes(self) -> tuple[int, ...]:
        """Positions of all its nodes, ascending."""
        return tuple(sorted({slot.node for slot in self.ranks}))


@dataclass(frozen=True)
class Frontend:
    """One frontend: its number, node position and first port offset."""

    index: int
    node: int
    port_offset: int


@dataclass(frozen=True)
class NodePlan:
    """One node position and its number of GPUs."""

    position: int
    gpus: int


@dataclass(frozen=True)
class Split:
    """How GPUs and workers are divided; people confuse the two.

    Attributes:
        prefill_gpus: GPUs of all prefill workers.
        decode_gpus: GPUs of all decode workers.
        workers: `4P8D`, or `64A`.
        aggregated_gpus: GPUs of all aggregated workers; None in a disaggregated plan.
    """

    prefill_gpus: int
    decode_gpus: int
    workers: str
    aggregated_gpus: int | None = None


@dataclass(frozen=True)
class Plan:
    """A deployment on node positions.

    Attributes:
        name: The topology's name.
        nodes: All nodes, a dedicated head's included.
        workers: All workers, prefill first, then by index.
        idle_gpus: GPUs of no worker.
        frontends: All frontends, on the head's node; none where workers answer by themselves.
        split: GPUs and workers by role.
        head_node: Position of the node of store, frontends and load client.
        ports_needed: Ports of the whole plan; offsets are 0 to this, exclusive, and never shared, as virtual nodes
            may share an address.
        warnings: What a person should know before booking the nodes.
    """

    name: str
    nodes: tuple[NodePlan, ...]
    workers: tuple[Worker, ...]
    idle_gpus: tuple[Slot, ...]
    frontends: tuple[Frontend, ...]
    split: Split
    head_node: int
    ports_needed: int
    warnings: tuple[str, ...] = ()


def make_plan(topology: Topology, nodes: int | None = None) -> Plan:
    """The plan of a topology, on another node count where one is given (workers then scale in proportion).

    Raises:
        CapacityError: It does not fit; the error names the nearest plans that do.
        ConfigError: It does not scale to that node count, or a worker cannot stand on such nodes at all.
    """
    topology = topology if nodes is None else scaled(topology, nodes)
    if not fits(topology):
        raise capacity_error(topology)
    counts = workers_of(topology)
    placed = ground_of(topology).place(counts[0], counts[1] if len(counts) > 1 else 0)
    count = topology.frontends.count if topology.server == "dynamo" else 0
    frontends = tuple(Frontend(index, HEAD_NODE, STORE_PORTS + index * FRONTEND_PORTS) for index in range(count))
    workers, ports_needed = _number(topology, placed, STORE_PORTS + len(frontends) * FRONTEND_PORTS)
    plan_nodes = tuple(NodePlan(position, topology.nodes.gpus) for position in range(topology.nodes.count))
    used = {slot for worker in workers for slot in worker.ranks}
    every = (Slot(node.position, gpu) for node in plan_nodes for gpu in range(node.gpus))
    return Plan(
        name=topology.name,
        nodes=plan_nodes,
        workers=workers,
        idle_gpus=tuple(slot for slot in every if slot not in used),
        frontends=frontends,
        split=_split(topology),
        head_node=HEAD_NODE,
        ports_needed=ports_needed,
        warnings=_warnings(topology, workers),
    )


def _number(topology: Topology, placed: tuple[list[Slots], list[Slots]], port: int) -> tuple[tuple[Worker, ...], int]:
    """Workers with their indices and ports from `port` on, and the first port offset behind them."""
    workers = []
    for (name, role), groups in zip(topology.roles.present(), placed, strict=False):
        ports = WORKER_PORTS + PORTS_PER_RANK * role.tensor_parallel * role.data_parallel
        for index, group in enumerate(groups):
            workers.append(Worker(name, index, tuple(map(Slot._make, group)), port, ports))
            port += ports
    return tuple(workers), port


def _split(topology: Topology) -> Split:
    def gpus(role: Role | None) -> int:
        return role.workers * role.gpus if role else 0

    roles = topology.roles
    return Split(
        prefill_gpus=gpus(roles.prefill),
        decode_gpus=gpus(roles.decode),
        workers=split_text(topology, workers_of(topology)),
        aggregated_gpus=gpus(roles.aggregated) if roles.aggregated else None,
    )


def _warnings(topology: Topology, workers: tuple[Worker, ...]) -> tuple[str, ...]:
    found = []
    used = {node for worker in workers for node in worker.nodes}
    empty = [
        node for node in range(topology.nodes.count - topology.worker_nodes, topology.nodes.count) if node not in used
    ]
    enough = _nodes_of_all_splits(topology) if empty else None
    if empty and (topology.sweep is None or enough != topology.nodes.count):
        named = f"node{'s' if len(empty) > 1 else ''} {_ranges(empty)}"
        found.append(f"no worker on {named}; nodes.count: {enough} holds the same workers")
    for name, role in topology.roles.present():
        ranks = role.tensor_parallel * role.data_parallel
        if topology.engine == "vllm" and ranks != role.gpus:
            found.append(f"roles.{name}: vllm starts {ranks} ranks per worker, on {role.gpus} GPUs by this plan")
    found += pair_warnings(topology)
    return tuple(found)


def _nodes_of_all_splits(topology: Topology) -> int | None:
    """The smallest node count that holds the workers, those of each split of a sweep; None when no count does."""
    if topology.sweep is None:
        return fewest_nodes(topology)
    needed = [fewest_nodes(with_split(topology, split)) for split in splits_of(topology)]
    return None if None in needed else max(filter(None, needed))


def _ranges(ascending: list[int]) -> str:
    """`2, 4-63` of 2 and 4 to 63."""
    ranges: list[tuple[int, int]] = []
    for value in ascending:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values, in the form that `plan --json` prints and a run records."""
    split: dict[str, Any] = {
        "prefill_gpus": plan.split.prefill_gpus,
        "decode_gpus": plan.split.decode_gpus,
        "workers": plan.split.workers,
    }
    if plan.split.aggregated_gpus is not None:
        split["aggregated_gpus"] = plan.split.aggregated_gpus
    return {
        "name": plan.name,
        "nodes": [{"position": node.position, "gpus": node.gpus} for node in plan.nodes],
        "workers": [
            {
                "role": worker.role,
                "index": worker.index,
                "ranks": [{"node": slot.node, "gpu": slot.gpu} for slot in worker.ranks],
                "port_offset": worker.port_offset,
            }
            for worker in plan.workers
        ],
        "idle_gpus": [{"node": slot.node, "gpu": slot.gpu} for slot in plan.idle_gpus],
        "split": split,
        "frontends": [{"index": f.index, "node": f.node, "port_offset": f.port_offset} for f in plan.frontends],
        "head_node": plan.head_node,
        "warnings": list(plan.warnings),
    }

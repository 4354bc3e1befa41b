"""What an engine's command lines are made from, and what they come out as."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.serving.endpoints import Endpoints, EngineProcess
    from dynamo_mlperf.topology.plan import Worker
    from dynamo_mlperf.topology.spec import Role, Topology

RENDEZVOUS_OFFSET = 1
"""Within a worker's ports: where its nodes meet. `serving/endpoints.py` gives metrics 0 and side channels 8 on."""
DATA_PARALLEL_OFFSET = 2
DYNAMO_MODES = {"prefill": "prefill", "decode": "decode", "aggregated": "agg"}


@dataclass(frozen=True)
class NodeFacts:
    """One node of a worker.

    Attributes:
        position: Node position.
        model_dir: Where the weights lie on it.
        environment: What every process of the node gets.
        threads: CPU threads for each rank; only CPU engines use it.
        cores: Cores that the worker is bound to on it; empty: to none.
        devices: What CUDA calls the node's GPUs, by the plan's index; empty: as the plan does.
    """

    position: int
    model_dir: Path
    environment: Mapping[str, str]
    threads: int
    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerFacts:
    """What the command lines of an engine process are made from.

    Attributes:
        topology: The topology.
        endpoints: Addresses and ports.
        process: The planned worker, or the simulated ones that share a process.
        nodes: Its nodes, that of rank 0 first.
        python: The engines' Python.
        logs: Where the logs go.
        files: Where files that the engine reads go; every node sees it.
        shares_memory: Whether KV cache may move through shared memory.
    """

    topology: Topology
    endpoints: Endpoints
    process: EngineProcess
    nodes: tuple[NodeFacts, ...]
    python: str
    logs: Path
    files: Path
    shares_memory: bool

    @property
    def worker(self) -> Worker:
        """The planned worker; the first where several share the process."""
        return self.process.first

    @property
    def role(self) -> Role:
        """The worker's role in the topology file."""
        return dict(self.topology.roles.present())[self.worker.role]

    @property
    def wide(self) -> bool:
        """Whether the worker takes several nodes."""
        return len(self.nodes) > 1

    @property
    def leader(self) -> Node:
        """The node of rank 0, where the worker registers."""
        return self.endpoints.nodes[self.nodes[0].position]

    def place(self, node_rank: int) -> Node:
        """The allocation's node of one of the worker's nodes."""
        return self.endpoints.nodes[self.nodes[node_rank].position]

    def port(self, offset: int) -> int:
        """One of the worker's own ports."""
        return self.endpoints.base_port + self.worker.port_offset + offset

    def devices(self, node_rank: int) -> str:
        """CUDA_VISIBLE_DEVICES on one of its nodes: its own GPUs and no other's."""
        node = self.nodes[node_rank]
        gpus = [slot.gpu for slot in self.worker.ranks if slot.node == node.position]
        return ",".join(node.devices[gpu] if node.devices else str(gpu) for gpu in gpus)


@dataclass(frozen=True)
class Start:
    """How an engine starts on one node of a worker.

    Attributes:
        argv: Program and arguments.
        env: What it gets beside the node's environment and the role's own.
        files: Text of files that it reads, by path.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[Path, str] = field(default_factory=dict)


Builder = Callable[[WorkerFacts, int], Start]
"""From facts and the number of the node within the worker to how the engine starts there."""


def flags(args: Mapping[str, object]) -> list[str]:
    """Engine arguments from a topology file as a flat list.

    True is a bare flag, false its `--no-` form, null is left out, a list is several values, a mapping is JSON.
    """
    out: list[str] = []
    for name, value in args.items():
        if value is None:
            continue
        if isinstance(value, bool):
            out.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            out += [f"--{name}", compact_json(value)]
        elif isinstance(value, list | tuple):
            out += [f"--{name}", *(str(item) for item in value)]
        else:
            out += [f"--{name}", str(value)]
    return out


def compact_json(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))

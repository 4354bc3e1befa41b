"""Who listens where: addresses and ports of one deployment, and the names that tie its parts together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.topology.plan import Frontend, Plan, Worker

ETCD_CLIENT_OFFSET = 0
ETCD_PEER_OFFSET = 1
SYSTEM_OFFSET = 0
SIDE_CHANNEL_OFFSET = 8
"""Within a worker's block: its metrics port first, NIXL's side channels (one per rank) from 8 on."""


@dataclass(frozen=True)
class EngineProcess:
    """One engine process: a worker, or several simulated ones of one role and node that share it.

    Attributes:
        workers: Its workers, ascending by index.
    """

    workers: tuple[Worker, ...]

    @property
    def first(self) -> Worker:
        """The worker that speaks for them all on the command line."""
        return self.workers[0]

    @property
    def name(self) -> str:
        """`decode-3` of one worker, `decode-3-to-6` of four."""
        return self.first.name + (f"-to-{self.workers[-1].index}" if len(self.workers) > 1 else "")

    @property
    def role(self) -> str:
        """The role of all its workers."""
        return self.first.role

    @property
    def node(self) -> int:
        """Node position of the process."""
        return self.first.node


@dataclass(frozen=True)
class Endpoints:
    """The deployment's addresses.

    Attributes:
        plan: The plan.
        nodes: The nodes that the plan's positions are bound to.
        base_port: First port of the block that this job holds on every node.
        namespace: Dynamo's namespace, with a nonce: no other deployment's frontend can take our workers for its own.
        model: The served model name, with the same nonce.
        shared_processes: Whether the workers of one role and node share one engine process.
    """

    plan: Plan
    nodes: Sequence[Node]
    base_port: int
    namespace: str
    model: str
    shared_processes: bool = False

    @cached_property
    def processes(self) -> tuple[EngineProcess, ...]:
        """The engine processes, in the plan's order of their first workers."""
        if not self.shared_processes:
            return tuple(EngineProcess((worker,)) for worker in self.plan.workers)
        groups: dict[tuple[str, int], list[Worker]] = {}
        for worker in self.plan.workers:
            groups.setdefault((worker.role, worker.node), []).append(worker)
        return tuple(EngineProcess(tuple(group)) for group in groups.values())

    def process_of(self, worker: str) -> str:
        """The name of the engine process that the named worker is part of."""
        return self._process_names[worker]

    @cached_property
    def _process_names(self) -> dict[str, str]:
        return {worker.name: process.name for process in self.processes for worker in process.workers}

    def node_of(self, worker: Worker) -> Node:
        """The node of a worker's first rank."""
        return self.nodes[worker.node]

    @property
    def head(self) -> Node:
        """The node of store, frontends and load client."""
        return self.nodes[self.plan.head_node]

    @property
    def etcd_url(self) -> str:
        """Where the job's own etcd answers."""
        return f"http://{self.head.address}:{self.base_port + ETCD_CLIENT_OFFSET}"

    @property
    def etcd_peer_url(self) -> str:
        """A peer address: etcd insists on one even when it is alone."""
        return f"http://{self.head.address}:{self.base_port + ETCD_PEER_OFFSET}"

    def system(self, worker: Worker) -> tuple[str, int]:
        """Host and port of a worker's health and metrics."""
        return self.node_of(worker).address, self.base_port + worker.port_offset + SYSTEM_OFFSET

    def side_channel_port(self, worker: Worker) -> int:
        """First of the worker's NIXL side-channel ports."""
        return self.base_port + worker.port_offset + SIDE_CHANNEL_OFFSET

    @property
    def entrances(self) -> tuple[tuple[str, int], ...]:
        """Where requests go in: the frontends, or each worker where there are none."""
        if self.plan.frontends:
            return tuple(self.frontend(frontend) for frontend in self.plan.frontends)
        return tuple(self.system(worker) for worker in self.plan.workers)

    def frontend(self, frontend: Frontend) -> tuple[str, int]:
        """Host and port of a frontend's HTTP."""
        return self.nodes[frontend.node].address, self.base_port + frontend.port_offset

"""Who listens where: addresses and ports of one deployment, and the names that tie its parts together."""

from __future__ import annotations

from dataclasses import dataclass
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
class Endpoints:
    """The deployment's addresses.

    Attributes:
        plan: The plan.
        nodes: The nodes that the plan's positions are bound to.
        base_port: First port of the block that this job holds on every node.
        namespace: Dynamo's namespace, with a nonce: no other deployment's frontend can take our workers for its own.
        model: The served model name, with the same nonce.
    """

    plan: Plan
    nodes: Sequence[Node]
    base_port: int
    namespace: str
    model: str

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

    def frontend(self, frontend: Frontend) -> tuple[str, int]:
        """Host and port of a frontend's HTTP."""
        return self.nodes[frontend.node].address, self.base_port + frontend.port_offset

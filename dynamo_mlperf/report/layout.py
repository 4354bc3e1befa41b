"""Nodes, GPUs and workers out of `plan.json`: what ran where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Node:
    """One node position; `host` and `address` are empty until the job binds them."""

    position: int
    gpus: int
    host: str = ""
    address: str = ""

    @property
    def name(self) -> str:
        """The hostname, else the position in words."""
        return self.host or f"node {self.position}"


@dataclass(frozen=True)
class Worker:
    """One engine replica and the (node position, GPU) of each of its ranks."""

    role: str
    index: int
    ranks: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """The name that processes, logs and metrics files carry: `decode-0`."""
        return f"{self.role}-{self.index}"

    @property
    def short_name(self) -> str:
        """`P0`, `D3`: enough for a cell of the GPU grid."""
        return f"{self.role[:1].upper()}{self.index}"


@dataclass(frozen=True)
class Layout:
    """The plan as it was bound to nodes.

    Attributes:
        name: The topology's name.
        nodes: Nodes by position.
        workers: Workers in the plan's order.
        split: The split in words, `4P8D` for one, empty where there is none.
        prefill_gpus: GPUs that prefill workers hold.
        decode_gpus: GPUs that decode workers hold.
    """

    name: str
    nodes: tuple[Node, ...]
    workers: tuple[Worker, ...]
    split: str
    prefill_gpus: int
    decode_gpus: int

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    @property
    def idle_gpus(self) -> int:
        """GPUs that no worker holds."""
        held = {rank for worker in self.workers for rank in worker.ranks}
        return sum((node.position, gpu) not in held for node in self.nodes for gpu in range(node.gpus))

    def node_name(self, position: str) -> str:
        """The name of the node at `position` (text, as events carry it); the text itself where it is no position."""
        return next((node.name for node in self.nodes if str(node.position) == position), position)

    def where(self, worker: Worker) -> str:
        """Hosts and GPUs of a worker: `n1 GPU 0-1, n2 GPU 0`."""
        parts = []
        for position in dict.fromkeys(position for position, _ in worker.ranks):
            gpus = sorted(gpu for at, gpu in worker.ranks if at == position)
            parts.append(f"{self.node_name(str(position))} GPU {_spans(gpus)}")
        return ", ".join(parts)


def read_layout(plan: Mapping[str, Any]) -> Layout:
    """The layout of a plan; entries that are not as the plan writes them are left out."""
    bound = {_whole(entry.get("position")): entry for entry in _objects(plan.get("binding"))}
    nodes = []
    for entry in _objects(plan.get("nodes")):
        position = _whole(entry.get("position"))
        host = bound.get(position, {})
        nodes.append(
            Node(position, _gpu_count(entry.get("gpus")), str(host.get("host", "")), str(host.get("address", "")))
        )
    split = plan.get("split")
    split = split if isinstance(split, dict) else {}
    return Layout(
        name=str(plan.get("name", "")),
        nodes=tuple(nodes),
        workers=tuple(_worker(entry) for entry in _objects(plan.get("workers"))),
        split=str(split.get("workers") or ""),
        prefill_gpus=_whole(split.get("prefill_gpus")),
        decode_gpus=_whole(split.get("decode_gpus")),
    )


def _worker(entry: Mapping[str, Any]) -> Worker:
    ranks = tuple((_whole(rank.get("node")), _whole(rank.get("gpu"))) for rank in _objects(entry.get("ranks")))
    return Worker(str(entry.get("role", "")), _whole(entry.get("index")), ranks)


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _gpu_count(value: object) -> int:
    """GPUs of a node, which a plan gives as a number or as a list of indices."""
    return len(value) if isinstance(value, list) else _whole(value)


def _spans(values: list[int]) -> str:
    """`0-1,3` of [0, 1, 3]."""
    spans: list[list[int]] = []
    for value in values:
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)

"""Nodes, GPUs and workers out of `plan.json`: what ran where."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 100_000
"""Larger numbers than any plan has: GPUs of a node are counted one by one."""
_ON_CPUS = re.compile(r"^device:[ \t]*[\"']?cpu\b", re.MULTILINE)


@dataclass(frozen=True)
class Node:
    """One node position; `host` and `address` are empty until the job binds them.

    A node is `virtual` where it shares its host with another one, so that the host alone does not tell them apart.
    """

    position: int
    gpus: int
    host: str = ""
    address: str = ""
    virtual: bool = False

    @property
    def name(self) -> str:
        """The hostname; `node 0` of this machine alone; `node 0 (host)` where several nodes share a host."""
        if self.host in {"", "localhost"}:
            return f"node {self.position}"
        return f"node {self.position} ({self.host})" if self.virtual else self.host


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
        unit: What holds one rank: `GPU`, or `slot` where engines compute on CPUs.
    """

    name: str
    nodes: tuple[Node, ...]
    workers: tuple[Worker, ...]
    split: str
    prefill_gpus: int
    decode_gpus: int
    unit: str = "GPU"

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
            parts.append(f"{self.node_name(str(position))} {self.unit} {_spans(gpus)}")
        return ", ".join(parts)


def read_layout(plan: Mapping[str, Any], topology: str = "") -> Layout:
    """The layout of a plan; entries that are not as the plan writes them are left out.

    Args:
        plan: The object of `plan.json`.
        topology: The topology file's text, which says what the engines compute on.
    """
    bound = {_whole(entry.get("position")): entry for entry in _objects(plan.get("binding"))}
    sharing = Counter(str(entry.get("host", "")) for entry in bound.values())
    nodes = []
    for entry in _objects(plan.get("nodes")):
        position = _whole(entry.get("position"))
        place = bound.get(position, {})
        host, address = str(place.get("host", "")), str(place.get("address", ""))
        nodes.append(Node(position, _gpu_count(entry.get("gpus")), host, address, virtual=sharing[host] > 1))
    split = plan.get("split")
    split = split if isinstance(split, dict) else {}
    return Layout(
        name=str(plan.get("name", "")),
        nodes=tuple(nodes),
        workers=tuple(_worker(entry) for entry in _objects(plan.get("workers"))),
        split=str(split.get("workers") or ""),
        prefill_gpus=_whole(split.get("prefill_gpus")),
        decode_gpus=_whole(split.get("decode_gpus")),
        unit="slot" if _ON_CPUS.search(topology) else "GPU",
    )


def _worker(entry: Mapping[str, Any]) -> Worker:
    ranks = tuple((_whole(rank.get("node")), _whole(rank.get("gpu"))) for rank in _objects(entry.get("ranks")))
    return Worker(str(entry.get("role", "")), _whole(entry.get("index")), ranks)


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _whole(value: object) -> int:
    return value if isinstance(value, int) and abs(value) <= _MOST else 0


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

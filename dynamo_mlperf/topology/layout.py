"""Where workers can stand: nodes, NVLink domains, and the GPUs that each worker gets.

A worker never crosses a node unless it is larger than one; then it takes whole nodes of one NVLink domain. Where nodes
would stay empty, workers of one role that crowd on a node without the other role move onto them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.domains import MixedFrontier
from dynamo_mlperf.topology.packing import Frontier, Room, spread_crowds
from dynamo_mlperf.topology.short_rows import ShortRow, is_short

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Topology

Slots = tuple[tuple[int, int], ...]
"""The GPUs of one worker in rank order: (node position, GPU on that node)."""


@dataclass(frozen=True)
class Ground:
    """The nodes that may hold workers, and the sizes of the two kinds of workers.

    Attributes:
        positions: Node positions, ascending.
        gpus: GPUs per node.
        domain: Consecutive node positions that share one NVLink domain.
        first: GPUs of one worker of the first role.
        second: GPUs of one worker of the second role; 1 where there is none.
    """

    positions: range
    gpus: int
    domain: int
    first: int
    second: int

    @property
    def whole_nodes(self) -> bool:
        """Whether some worker is larger than a node; domains are then the bins, else nodes are."""
        return max(self.first, self.second) > self.gpus

    @cached_property
    def bins(self) -> tuple[range, ...]:
        """Node positions of each bin."""
        size = self.domain if self.whole_nodes else 1
        starts = range(self.positions.start // size * size, self.positions.stop, size)
        return tuple(
            range(max(start, self.positions.start), min(start + size, self.positions.stop)) for start in starts
        )

    @cached_property
    def frontier(self) -> Frontier:
        """What these nodes can hold."""
        sizes = [len(nodes) for nodes in self.bins]
        wide, small = max(self.first, self.second), min(self.first, self.second)
        if self.whole_nodes and small <= self.gpus:
            return MixedFrontier(sizes, wide // self.gpus, self.gpus // small, wide_first=self.first == wide)
        rooms = {size: self._room(size) for size in set(sizes)}
        row = [rooms[size] for size in sizes]
        if is_short(row):
            return ShortRow(row)
        from dynamo_mlperf.topology.rows import RowFrontier

        return RowFrontier(row)

    def _room(self, nodes: int) -> Room:
        """A node, or a domain of that many nodes where both roles take whole nodes."""
        there = nodes * self.gpus
        return tuple((there - a * self.first) // self.second for a in range(there // self.first + 1))

    def place(self, first: int, second: int) -> tuple[list[Slots], list[Slots]]:
        """The GPUs of each worker, by role, ascending; the frontier must hold that many.

        What one NVLink domain can hold is put into one: the first that can.
        """
        alone = next((domain for domain in self._domains() if domain.frontier.holds(first, second)), None)
        if alone is not None:
            return alone.place(first, second)
        placed: tuple[list[Slots], list[Slots]] = ([], [])
        for nodes, (a, b) in zip(self.bins, self._counts(first, second), strict=True):
            here = self._in_domain(nodes, a, b) if self.whole_nodes else self._on_node(nodes.start, a, b)
            for role, workers in zip(placed, here, strict=True):
                role.extend(workers)
        return sorted(placed[0]), sorted(placed[1])

    def _domains(self) -> Iterator[Ground]:
        """The first domain, the second, and the last, where there are several: between them all are alike."""
        ends = self.positions.start // self.domain, (self.positions.stop - 1) // self.domain
        if self.domain == 1 or ends[0] == ends[1]:
            return
        for number in sorted({ends[0], ends[0] + 1, ends[1]}):
            start, stop = number * self.domain, (number + 1) * self.domain
            yield replace(self, positions=range(max(start, self.positions.start), min(stop, self.positions.stop)))

    def _counts(self, first: int, second: int) -> Sequence[tuple[int, int]]:
        """How many workers of each role each bin holds."""
        packed = self.frontier.spread(first, second)
        if self.whole_nodes:  # bins are domains, and a domain shares its small workers out over all of its free nodes
            return packed
        size = self.domain if self.domain > 1 else self.positions.stop  # crowds move within it
        counts: list[tuple[int, int]] = []
        for _domain, group in groupby(zip(self.positions, packed, strict=True), lambda placed: placed[0] // size):
            counts += spread_crowds([held for _node, held in group])
        return counts

    def _on_node(self, node: int, first: int, second: int) -> tuple[list[Slots], list[Slots]]:
        free = iter([(node, gpu) for gpu in range(self.gpus)])
        return (
            [tuple(islice(free, self.first)) for _ in range(first)],
            [tuple(islice(free, self.second)) for _ in range(second)],
        )

    def _in_domain(self, nodes: range, first: int, second: int) -> tuple[list[Slots], list[Slots]]:
        """Workers of whole nodes take the first nodes of the domain, smaller ones are spread over the others."""
        wide = sum(count * size // self.gpus for count, size in self._sizes(first, second) if size > self.gpus)
        free = iter([(node, gpu) for node in nodes[:wide] for gpu in range(self.gpus)])
        first_role, second_role = (
            [tuple(islice(free, size)) for _ in range(count)]
            if size > self.gpus
            else _spread_over(nodes[wide:], count, size)
            for count, size in self._sizes(first, second)
        )
        return first_role, second_role

    def _sizes(self, first: int, second: int) -> tuple[tuple[int, int], tuple[int, int]]:
        return (first, self.first), (second, self.second)


def _spread_over(nodes: Sequence[int], workers: int, size: int) -> list[Slots]:
    placed = []
    for index, node in enumerate(nodes):
        here = workers // len(nodes) + (index < workers % len(nodes))
        placed += [tuple((node, gpu) for gpu in range(start * size, (start + 1) * size)) for start in range(here)]
    return placed


def ground_of(topology: Topology, nodes: int | None = None) -> Ground:
    """The ground that the topology's workers stand on, with another node count where one is given.

    Raises:
        ConfigError: A worker is larger than a node and no multiple of it, or larger than an NVLink domain.
    """
    count = topology.nodes.count if nodes is None else nodes
    sizes = [role.gpus for _name, role in topology.roles.present()]
    domain = topology.nodes.nvlink_domain or 1
    for name, role in topology.roles.present():
        _check_size(name, role.gpus, topology.nodes.gpus, domain)
    return Ground(
        positions=range(int(topology.head == "dedicated"), count),
        gpus=topology.nodes.gpus,
        domain=domain,
        first=sizes[0],
        second=sizes[1] if len(sizes) > 1 else 1,
    )


def _check_size(role: str, size: int, gpus: int, domain: int) -> None:
    if size <= gpus:
        return
    if size % gpus:
        raise ConfigError(
            f"roles.{role}: a worker of {size} GPUs is larger than a node of {gpus} and no multiple of it",
            f"give each worker {size // gpus * gpus} or {-(-size // gpus) * gpus} GPUs, or at most {gpus}",
        )
    if size // gpus > domain:
        raise ConfigError(
            f"roles.{role}: a worker of {size} GPUs takes {size // gpus} nodes of an NVLink domain, which has {domain}",
            f"write nodes.nvlink_domain: {size // gpus} where that many nodes share one, "
            f"or give each worker at most {domain * gpus} GPUs",
        )

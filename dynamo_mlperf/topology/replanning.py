"""From one split to the next inside a running job: which workers stay where they are, and where the new ones stand.

As many workers as possible stay. The rules of packing hold: a worker never crosses a node unless it is larger than one;
then it takes whole nodes of one NVLink domain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.topology.capacity import workers_of
from dynamo_mlperf.topology.layout import ground_of
from dynamo_mlperf.topology.plan import (
    FRONTEND_PORTS,
    PORTS_PER_RANK,
    STORE_PORTS,
    WORKER_PORTS,
    Slot,
    Worker,
    make_plan,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dynamo_mlperf.topology.layout import Ground
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Role, RoleName, Topology

_IMPOSSIBLE = np.iinfo(np.int64).min // 4
_MOST_STEPS = 2_000_000_000
"""Beyond so many additions (thousands of nodes) only those stay that a fresh plan happens to leave in place."""

Sizes = tuple[int, int]


@dataclass(frozen=True)
class PortBlocks:
    """Blocks of ports that the workers of a sweep take turns at.

    Attributes:
        first: Offset of the first block.
        size: Ports of each.
        count: How many there are.
    """

    first: int
    size: int
    count: int

    @property
    def end(self) -> int:
        """First offset behind them."""
        return self.first + self.size * self.count

    def free(self, taken: Iterable[Worker]) -> Iterator[int]:
        """Offsets of the blocks that none of these workers holds, ascending."""
        held = {worker.port_offset for worker in taken}
        return (offset for offset in range(self.first, self.end, self.size) if offset not in held)


def port_blocks(topologies: Sequence[Topology]) -> PortBlocks:
    """Blocks that are enough for each of these topologies, one after another."""
    frontends = max(each.frontends.count if each.server == "dynamo" else 0 for each in topologies)
    size = max(_ports(role) for each in topologies for _name, role in each.roles.present())
    return PortBlocks(STORE_PORTS + frontends * FRONTEND_PORTS, size, max(sum(workers_of(each)) for each in topologies))


def _ports(role: Role) -> int:
    return WORKER_PORTS + PORTS_PER_RANK * role.tensor_parallel * role.data_parallel


def first_plan(topology: Topology, blocks: PortBlocks) -> Plan:
    """The plan of a sweep's first split.

    Raises:
        CapacityError: It does not fit.
    """
    plan = make_plan(topology)
    offsets = blocks.free(())
    workers = tuple(replace(worker, port_offset=next(offsets)) for worker in plan.workers)
    return replace(plan, workers=workers, ports_needed=blocks.end)


def next_plan(
    topology: Topology,
    running: Sequence[Worker],
    degrees: Mapping[str, Sizes],
    used: Mapping[str, int],
    blocks: PortBlocks,
) -> Plan:
    """The plan of the next split that keeps as many running workers as can be.

    Args:
        topology: The next split's.
        running: The workers that run.
        degrees: TP and GPUs of the running workers of each role; one of other degrees cannot stay.
        used: By role, the first index that no worker has had: new workers get names that are new to the job.
        blocks: The sweep's ports.

    Raises:
        CapacityError: It does not fit.
    """
    fresh = make_plan(topology)
    roles = topology.roles.present()
    stays = {name for name, role in roles if degrees.get(name) == (role.tensor_parallel, role.gpus)}
    able = [worker for worker in running if worker.role in stays]
    placed = _Placement(topology, able).place() if able else None
    if placed is None:
        placed = _coinciding(fresh, able)
    kept, new = placed
    offsets = blocks.free(kept)
    numbers = Counter(used)
    ports: dict[str, int] = {name: _ports(role) for name, role in roles}
    workers = list(kept)
    for role_name, ranks in sorted(new, key=lambda one: (one[0] != roles[0][0], one[1])):
        workers.append(Worker(role_name, numbers[role_name], ranks, next(offsets), ports[role_name]))
        numbers[role_name] += 1
    order = {name: place for place, (name, _role) in enumerate(roles)}
    workers.sort(key=lambda worker: (order[worker.role], worker.index))
    taken = {slot for worker in workers for slot in worker.ranks}
    every = (Slot(node.position, gpu) for node in fresh.nodes for gpu in range(node.gpus))
    return replace(
        fresh,
        workers=tuple(workers),
        idle_gpus=tuple(slot for slot in every if slot not in taken),
        ports_needed=blocks.end,
    )


Placed = tuple[list[Worker], list[tuple["RoleName", tuple[Slot, ...]]]]
"""Workers that stay; role and GPUs of those that are new."""


def _coinciding(fresh: Plan, able: Sequence[Worker]) -> Placed:
    """The fresh plan; what runs on the very GPUs of one of its workers of that role stays."""
    there = {(worker.role, worker.ranks): worker for worker in able}
    wanted = [(worker.role, worker.ranks) for worker in fresh.workers]
    kept = [there[one] for one in wanted if one in there]
    return kept, [one for one in wanted if one not in there]


class _Placement:
    """Bin by bin (a node, or an NVLink domain where workers take whole nodes): how many of each role it holds."""

    def __init__(self, topology: Topology, able: Sequence[Worker]) -> None:
        self._ground: Ground = ground_of(topology)
        self._roles = [name for name, _role in topology.roles.present()]
        counts = workers_of(topology)
        self._wanted: Sizes = (counts[0], counts[1] if len(counts) > 1 else 0)
        self._bins = self._ground.bins
        self._able: list[tuple[list[Worker], list[Worker]]] = [
            (self._in(nodes, able, 0), self._in(nodes, able, 1)) for nodes in self._bins
        ]

    def _in(self, nodes: range, able: Sequence[Worker], kind: int) -> list[Worker]:
        role = self._roles[kind] if kind < len(self._roles) else None
        return [worker for worker in able if worker.role == role and worker.node in nodes]

    def place(self) -> Placed | None:
        """What stays and what is new; None where the search would take too long."""
        values = [self._values(number) for number in range(len(self._bins))]
        states = (self._wanted[0] + 1) * (self._wanted[1] + 1)
        if sum(int((value > _IMPOSSIBLE).sum()) for value in values) * states > _MOST_STEPS:
            return None
        kept: list[Worker] = []
        new: list[tuple[RoleName, tuple[Slot, ...]]] = []
        for number, held in enumerate(_best(values, self._wanted)):
            stay, fresh = self._fill(number, held)
            kept += stay
            new += fresh
        return kept, new

    def _values(self, number: int) -> NDArray[np.int64]:
        """By number of each role: how many workers stay in this bin (weighted), or that it cannot hold them."""
        nodes = self._bins[number]
        first = min(self._most(nodes, self._ground.first), self._wanted[0])
        second = min(self._most(nodes, self._ground.second), self._wanted[1])
        value = np.full((first + 1, second + 1), _IMPOSSIBLE, dtype=np.int64)
        for a in range(first + 1):
            for b in range(second + 1):
                stay = self._staying(number, (a, b))
                if stay is not None:
                    # Of equally many, those where prefill and decode share a node: KV cache then stays inside it.
                    value[a, b] = len(stay) * (len(self._bins) + 1) + (a > 0 and b > 0)
        return value

    def _most(self, nodes: range, size: int) -> int:
        gpus = self._ground.gpus
        return len(nodes) * (gpus // size) if size <= gpus else len(nodes) // (size // gpus)

    def _staying(self, number: int, held: Sizes) -> list[Worker] | None:
        """The workers that can stay in a bin that will hold so many of each role; None where it cannot hold them."""
        nodes, able, gpus = self._bins[number], self._able[number], self._ground.gpus
        sizes = (self._ground.first, self._ground.second)
        if not self._ground.whole_nodes:
            if held[0] * sizes[0] + held[1] * sizes[1] > gpus:
                return None
            return able[0][: held[0]] + able[1][: held[1]]
        wide = [kind for kind in (0, 1) if sizes[kind] > gpus]
        left = len(nodes) - sum(held[kind] * (sizes[kind] // gpus) for kind in wide)
        small = next((kind for kind in (0, 1) if kind not in wide), None)
        if left < 0 or (small is not None and held[small] > left * (gpus // sizes[small])):
            return None
        stay = [worker for kind in wide for worker in able[kind][: held[kind]]]
        if small is not None:
            crowded = Counter(worker.node for worker in able[small]).most_common(left)
            open_nodes = {node for node, _count in crowded}
            stay += [worker for worker in able[small] if worker.node in open_nodes][: held[small]]
        return stay

    def _fill(self, number: int, held: Sizes) -> Placed:
        """The workers that stay in a bin and the GPUs of its new ones."""
        stay = self._staying(number, held) or []
        taken = {slot for worker in stay for slot in worker.ranks}
        free = {
            node: [slot for gpu in range(self._ground.gpus) if (slot := Slot(node, gpu)) not in taken]
            for node in self._bins[number]
        }
        new: list[tuple[RoleName, tuple[Slot, ...]]] = []
        sizes = (self._ground.first, self._ground.second)
        for kind in sorted((0, 1), key=lambda kind: -sizes[kind]):
            if kind < len(self._roles):
                role = self._roles[kind]
                missing = held[kind] - sum(worker.role == role for worker in stay)
                new += [(role, self._take(free, sizes[kind])) for _ in range(missing)]
        return stay, new

    def _take(self, free: dict[int, list[Slot]], size: int) -> tuple[Slot, ...]:
        """GPUs for one worker out of the free ones: of the node with the fewest that do, else whole nodes."""
        gpus = self._ground.gpus
        if size > gpus:
            whole = [node for node, slots in free.items() if len(slots) == gpus][: size // gpus]
            return tuple(slot for node in whole for slot in free.pop(node))
        node = min((node for node, slots in free.items() if len(slots) >= size), key=lambda node: len(free[node]))
        chosen, free[node] = free[node][:size], free[node][size:]
        return tuple(chosen)


def _best(values: Sequence[NDArray[np.int64]], wanted: Sizes) -> list[Sizes]:
    """What each bin holds so that all are placed and the sum of the values is the largest."""
    reached = np.full((wanted[0] + 1, wanted[1] + 1), _IMPOSSIBLE, dtype=np.int64)
    reached[0, 0] = 0
    chosen: list[NDArray[np.int32]] = []
    for value in values:
        following = np.full_like(reached, _IMPOSSIBLE)
        choice = np.full(reached.shape, -1, dtype=np.int32)
        for a, b in zip(*np.nonzero(value > _IMPOSSIBLE), strict=True):
            moved = reached[: wanted[0] + 1 - a, : wanted[1] + 1 - b] + value[a, b]
            place = (slice(int(a), None), slice(int(b), None))
            better = moved > following[place]
            following[place][better] = moved[better]
            choice[place][better] = int(a) * value.shape[1] + int(b)
        reached = following
        chosen.append(choice)
    held: list[Sizes] = []
    first, second = wanted
    for value, choice in zip(reversed(values), reversed(chosen), strict=True):
        a, b = divmod(int(choice[first, second]), value.shape[1])
        held.append((a, b))
        first, second = first - a, second - b
    return held[::-1]

"""CPU cores and memory of a node, divided among the workers that share it, by NUMA node.

A worker gets cores and memory of the NUMA nodes that its GPUs are near to, in proportion to how many of the GPUs in
use there are its own. Nothing is bound here: whoever starts a worker applies its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from dynamo_mlperf.topology.plan import Plan, Worker

_LARGEST_PART = 4
"""The head keeps back at most one core in so many."""


@dataclass(frozen=True)
class NumaArea:
    """One NUMA node of every node of a cluster.

    Attributes:
        cores: Its cores.
        gpus: Indices of the GPUs nearest to it.
        memory_gib: Its memory; None where it is not to be divided.
    """

    cores: tuple[int, ...]
    gpus: tuple[int, ...]
    memory_gib: float | None = None


@dataclass(frozen=True)
class Share:
    """What one worker gets of one node.

    Attributes:
        cores: Its cores, ascending; no other worker's, unless a NUMA node has fewer cores than workers.
        memory_gib: Its memory; None where the layout does not say.
    """

    cores: tuple[int, ...]
    memory_gib: float | None

    @property
    def core_list(self) -> str:
        """The cores as Linux and Slurm write them: `0-17,36`."""
        return core_list(self.cores)


def shares_of(
    plan: Plan, areas: Sequence[NumaArea], numbers: Mapping[int, Sequence[int]] | None = None, *, head_cores: int = 0
) -> Mapping[tuple[str, int], Share]:
    """The share of each worker on each of its nodes, by worker name and node position; empty without a layout.

    Args:
        plan: The plan.
        areas: The NUMA nodes of each node.
        numbers: By node position: the node's own numbers of the GPUs that were granted there, in the plan's order;
            a node that is left out has granted all of its GPUs.
        head_cores: Cores of the head's node that workers leave alone; see `kept_back`.

    Raises:
        ConfigError: A worker's GPU is near to no NUMA node of the layout.
    """
    if not areas:
        return {}
    here: dict[int, list[Worker]] = {}
    for worker in plan.workers:
        for node in worker.nodes:
            here.setdefault(node, []).append(worker)
    found: dict[tuple[str, int], Share] = {}
    for node, workers in here.items():
        own = (numbers or {}).get(node, ())
        gpus = {
            worker.name: [
                own[slot.gpu] if slot.gpu < len(own) else slot.gpu for slot in worker.ranks if slot.node == node
            ]
            for worker in workers
        }
        kept = set(kept_back(areas, head_cores)) if node == plan.head_node else set()
        left = [replace(area, cores=tuple(core for core in area.cores if core not in kept)) for area in areas]
        found |= {(name, node): share for name, share in divide(gpus, left).items()}
    return found


def kept_back(areas: Sequence[NumaArea], count: int) -> tuple[int, ...]:
    """Cores of the head's node for what runs there beside workers, ascending: the last ones of the NUMA nodes in turn.

    At most a quarter of the cores, so that small machines keep theirs for the workers.
    """
    free = [list(area.cores) for area in areas]
    total = sum(map(len, free))
    return tuple(sorted(max(free, key=len).pop() for _ in range(min(count, total // _LARGEST_PART))))


def divide(gpus: Mapping[str, Sequence[int]], areas: Sequence[NumaArea]) -> dict[str, Share]:
    """The share of each worker of one node.

    Args:
        gpus: The GPUs of each worker, by its name.
        areas: The node's NUMA nodes. Where none of them lists GPUs, all of the node is one.

    Raises:
        ConfigError: A GPU is in none of them.
    """
    areas = areas if any(area.gpus for area in areas) else [_joined(areas, gpus.values())]
    listed = {gpu for area in areas for gpu in area.gpus}
    for name, own in gpus.items():
        lost = sorted(set(own) - listed)
        if lost:
            raise ConfigError(
                f"{name}: GPU {lost[0]} is near to no NUMA node of the site",
                f"add {lost[0]} to the gpus of its NUMA node",
            )
    cores: dict[str, list[int]] = {name: [] for name in gpus}
    memory: dict[str, list[float | None]] = {name: [] for name in gpus}
    for area in areas:
        for name, (part, part_gib) in _parts(area, gpus).items():
            cores[name] += part
            memory[name].append(part_gib)
    return {name: Share(tuple(sorted(cores[name])), _sum(memory[name])) for name in gpus}


def _parts(area: NumaArea, gpus: Mapping[str, Sequence[int]]) -> dict[str, tuple[Sequence[int], float | None]]:
    """What each worker with GPUs in this NUMA node gets of it."""
    counts = {name: len(set(own) & set(area.gpus)) for name, own in gpus.items()}
    counts = {name: count for name, count in sorted(counts.items(), key=lambda item: min(gpus[item[0]])) if count}
    if not counts:
        return {}
    total = sum(counts.values())
    ends = [len(area.cores) * used // total for used in accumulate(counts.values())]
    parts = [area.cores[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if not all(parts):
        parts = [area.cores] * len(parts)
    memory = [None if area.memory_gib is None else area.memory_gib * count / total for count in counts.values()]
    return {name: (part, gib) for name, part, gib in zip(counts, parts, memory, strict=True)}


def _joined(areas: Sequence[NumaArea], gpus: Iterable[Sequence[int]]) -> NumaArea:
    every = sorted({gpu for own in gpus for gpu in own})
    return NumaArea(
        tuple(core for area in areas for core in area.cores), tuple(every), _sum([area.memory_gib for area in areas])
    )


def _sum(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known or not known else sum(part for part in known if part is not None)


def core_list(cores: Iterable[int]) -> str:
    """`0-17,36` of ascending core numbers."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

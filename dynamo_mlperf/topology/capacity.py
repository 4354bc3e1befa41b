"""Plans that do not fit: the numbers, and the nearest plans that do."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from math import gcd
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import CapacityError, ConfigError
from dynamo_mlperf.topology.layout import Ground, ground_of
from dynamo_mlperf.topology.spec import MAX_NODES, ROLE_LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from dynamo_mlperf.topology.spec import Role, Topology

_SHOWN_COUNTS = 2
_TRIED_COUNTS = 64


@dataclass(frozen=True)
class Hint:
    """A plan that fits.

    Attributes:
        workers: Workers of each role that the file gives, prefill before decode.
        nodes: Node count, a dedicated head included.
        text: For people: `6P5D on 5 nodes`.
    """

    workers: tuple[int, ...]
    nodes: int
    text: str


def workers_of(topology: Topology) -> tuple[int, ...]:
    """Workers of each role that the file gives, prefill before decode."""
    return tuple(role.workers for _name, role in topology.roles.present())


def split_text(topology: Topology, workers: tuple[int, ...]) -> str:
    """`4P8D` or `64A`."""
    names = [name for name, _role in topology.roles.present()]
    return "".join(f"{count}{ROLE_LETTERS[name]}" for name, count in zip(names, workers, strict=True))


def with_workers(topology: Topology, workers: tuple[int, ...], nodes: int) -> Topology:
    """The same deployment with other worker counts (in the order of `workers_of`) on another node count."""
    counted = zip(topology.roles.present(), workers, strict=True)
    roles: dict[str, Role] = {name: role.model_copy(update={"workers": count}) for (name, role), count in counted}
    return topology.model_copy(
        update={
            "nodes": topology.nodes.model_copy(update={"count": nodes}),
            "roles": topology.roles.model_copy(update=roles),
        }
    )


def fits(topology: Topology, nodes: int | None = None) -> bool:
    """Whether the topology's workers fit its nodes, or that many nodes."""
    return _holds(ground_of(topology, nodes), workers_of(topology))


def _holds(ground: Ground, workers: tuple[int, ...]) -> bool:
    sizes = (ground.first, ground.second)
    if sum(count * size for count, size in zip(workers, sizes, strict=False)) > len(ground.positions) * ground.gpus:
        return False
    return ground.frontier.holds(workers[0], workers[1] if len(workers) > 1 else 0)


def fewest_nodes(topology: Topology) -> int | None:
    """The smallest node count that holds the topology's workers, or None when `MAX_NODES` do not.

    More nodes never hold less, so the count is found by halving.
    """
    low, high = int(topology.head == "dedicated"), topology.nodes.count
    while not fits(topology, high):
        if high >= MAX_NODES:
            return None
        low, high = high, min(high * 2, MAX_NODES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(topology, middle) else (middle, high)
    return high


def nearest_plans(topology: Topology) -> tuple[Hint, ...]:
    """Plans near a topology that does not fit, each of which does: fewer workers, another split, more nodes."""
    table, workers, nodes = ground_of(topology).frontier.table(), workers_of(topology), topology.nodes.count
    found = _fewer(table, workers) + _other_splits(topology, table, workers)
    here = _counted(nodes)
    hints = [Hint(counts, nodes, f"{split_text(topology, counts)} on {here}") for counts in dict.fromkeys(found)]
    enough = fewest_nodes(topology)
    if enough is not None and enough != nodes:
        hints.append(Hint(workers, enough, f"{split_text(topology, workers)} on {_counted(enough)}"))
    return tuple(hints)


def _fewer(table: NDArray[np.int64], workers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """`table[a]`: most workers of the second role beside `a` of the first."""
    import numpy as np

    most_first = len(table) - 1
    if len(workers) == 1:
        return [(most_first,)] if most_first else []
    first, second = workers
    beside = int(table[first]) if first <= most_first else 0
    found: list[tuple[int, ...]] = [(first, beside)] if beside >= 1 else []
    most = int(np.flatnonzero(table[: first + 1] >= second)[-1]) if table[0] >= second else 0
    return [*found, (most, second)] if most else found


def _other_splits(topology: Topology, table: NDArray[np.int64], workers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The nearest split with as many workers, else the nearest of those that use most GPUs."""
    import numpy as np

    if len(workers) == 1:
        return []
    first, second = workers
    counts = np.arange(len(table), dtype=np.int64)
    same = counts[1 : first + second][table[1 : first + second] >= first + second - counts[1 : first + second]]
    if len(same):
        near = int(same[np.argmin(np.abs(same - first))])
        return [(near, first + second - near)]
    sizes = [role.gpus for _name, role in topology.roles.present()]
    both = counts[1:][table[1:] >= 1]
    if not len(both):
        return []
    used = both * sizes[0] + table[both] * sizes[1]
    full = both[used == used.max()]
    best = int(full[np.argmin(np.abs(full - first) + np.abs(table[full] - second))])
    return [(best, int(table[best]))]


def capacity_error(topology: Topology) -> CapacityError:
    """The error for a topology that does not fit: what was asked for, what there is, what would fit."""
    nodes, roles = topology.nodes, topology.roles.present()
    asked = sum(role.workers * role.gpus for _name, role in roles)
    there = topology.worker_nodes * nodes.gpus
    unit = "GPUs" if topology.device == "cuda" else "GPU slots"
    what = f"{asked} {unit} asked for, {there} in {_counted(topology.worker_nodes)} x {nodes.gpus}"
    if topology.head == "dedicated":
        what += " (node 0 is the head's)"
    if asked <= there:
        sizes = " and ".join(f"{role.workers} {name} workers of {role.gpus}" for name, role in roles)
        whole = any(role.gpus > nodes.gpus for _name, role in roles)
        rule = "takes whole nodes of one NVLink domain" if whole else "never crosses a node"
        what += f", but {sizes} do not pack: a worker {rule}"
    hints = nearest_plans(topology)
    action = f"a plan that fits: {', '.join(hint.text for hint in hints)}" if hints else "smaller workers"
    return CapacityError(f"{topology.name}: {what}", action)


def _counted(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"


def scaled(topology: Topology, nodes: int) -> Topology:
    """The same deployment on another node count, with the workers of each role in proportion, listed splits too.

    A dedicated head stays one node; the others scale.

    Raises:
        ConfigError: The proportion leaves no whole number of workers (the error names node counts that work), or the
            node count is none that can be planned.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise ConfigError(f"{topology.name}: wanted 1 to {MAX_NODES} nodes, got {nodes}", "another --nodes")
    from dynamo_mlperf.topology.sweeping import scaled_sweep

    counts = _in_proportion(topology, nodes)
    if counts is not None:
        return with_workers(topology, counts, nodes).model_copy(update={"sweep": scaled_sweep(topology, nodes)})
    split = split_text(topology, workers_of(topology))
    working = _working_counts(topology, nodes)
    raise ConfigError(
        f"{split} on {_counted(topology.nodes.count)} does not scale to {_counted(nodes)} in whole workers",
        f"--nodes {', '.join(map(str, working))}" if working else "another nodes.count in the file",
    )


def _in_proportion(topology: Topology, nodes: int) -> tuple[int, ...] | None:
    head = topology.nodes.count - topology.worker_nodes
    if nodes <= head:
        return None
    ratio = Fraction(nodes - head, topology.worker_nodes)
    counts = [count * ratio for count in workers_of(topology)]
    return tuple(map(int, counts)) if all(count.denominator == 1 for count in counts) else None


def _working_counts(topology: Topology, near: int) -> list[int]:
    """Node counts whose plans fit, the nearest below and above `near`."""
    head = topology.nodes.count - topology.worker_nodes
    step = topology.worker_nodes // gcd(topology.worker_nodes, *workers_of(topology))
    start = head + max(0, near - head) // step * step
    below = _fitting(topology, range(start, head, -step))
    above = _fitting(topology, range(start + step, MAX_NODES + 1, step))
    return sorted([*below, *above])


def _fitting(topology: Topology, nodes: Iterable[int]) -> list[int]:
    """The first node counts of these whose plans fit; what does not after many tries is taken not to fit at all."""
    found: list[int] = []
    for count in islice(nodes, _TRIED_COUNTS):
        workers = _in_proportion(topology, count)
        if workers is not None and fits(with_workers(topology, workers, count)):
            found.append(count)
        if len(found) == _SHOWN_COUNTS:
            break
    return found

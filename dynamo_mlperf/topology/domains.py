"""NVLink domains that hold workers of whole nodes of one role beside workers smaller than a node of the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dynamo_mlperf.topology.packing import IMPOSSIBLE, Choices, Frontier, Pair, empties_last, fill

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MixedFrontier(Frontier):
    """What domains can hold: all depends on how many nodes the wide workers leave, so there is a formula.

    Args:
        nodes: Nodes of each domain.
        wide: Nodes of one wide worker.
        small: Small workers per node.
        wide_first: Whether the wide workers are the first kind.
    """

    def __init__(self, nodes: Sequence[int], wide: int, small: int, *, wide_first: bool) -> None:
        self._domains = tuple(nodes)
        self._wide, self._small, self._wide_first = wide, small, wide_first
        self._nodes = sum(nodes)
        self._most_wide = sum(count // wide for count in nodes)
        self.most_first = self._most_wide if wide_first else self._nodes * small

    def most_second(self, first: int) -> int:
        """See `Frontier`."""
        if not 0 <= first <= self.most_first:
            return IMPOSSIBLE
        return self._most(first)

    def table(self) -> NDArray[np.int64]:
        """See `Frontier`."""
        import numpy as np

        return np.array([self._most(first) for first in range(self.most_first + 1)], dtype=np.int64)

    def _most(self, first: int) -> int:
        if self._wide_first:
            return (self._nodes - first * self._wide) * self._small
        free = self._nodes + (-first // self._small)
        return min(self._most_wide, free // self._wide)

    def spread(self, first: int, second: int) -> tuple[Pair, ...]:
        """See `Frontier`."""
        ranges, nodes, most_wide = [], 0, 0
        for here in self._domains:
            ranges.append(self._choices(here, nodes, most_wide))
            nodes, most_wide = nodes + here, most_wide + here // self._wide
        chosen = fill(ranges, *self._ordered(first, second), swapped=not self._wide_first)
        if len(set(self._domains)) == 1:
            return tuple(empties_last(chosen))
        return tuple(reversed(chosen))

    def _ordered(self, first: int, second: int) -> Pair:
        return (first, second) if self._wide_first else (second, first)

    def _choices(self, here: int, nodes: int, most_wide: int) -> Choices:
        """What a domain of `here` nodes may take when domains of `nodes` nodes in all have to hold the rest."""

        def choices(wides: int, smalls: int) -> Iterator[tuple[int, int, int]]:
            for count in range(max(0, wides - most_wide), min(here // self._wide, wides) + 1):
                least = max(0, smalls - (nodes - (wides - count) * self._wide) * self._small)
                yield count, least, min(smalls, (here - count * self._wide) * self._small)

        return choices

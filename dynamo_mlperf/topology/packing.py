"""Exact packing of two kinds of things into bins.

A bin says how many of the second kind fit beside each number of the first kind (`Room`). That covers workers on
nodes as well as multi-node workers in NVLink domains. The search is exact: it finds a packing whenever one exists,
and one table answers for every number of the first kind at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Room = tuple[int, ...]
"""`room[a]`: how many of the second kind fit into a bin that holds `a` of the first; not increasing, never empty."""

_IMPOSSIBLE = -1
_LONELY = 0.5
"""What a decode worker without a prefill worker in its bin costs, in workers away from the even share: enough to pair
them where there is a choice, too little to crowd a bin for it."""


@dataclass(frozen=True)
class Frontier:
    """What a row of bins can hold.

    Attributes:
        rooms: The bins.
        layers: `layers[i][a]`: most of the second kind beside exactly `a` of the first in the first `i` bins,
            -1 where `a` does not fit; shape (bins + 1, most of the first kind + 1).
    """

    rooms: tuple[Room, ...]
    layers: NDArray[np.int32]

    @property
    def most_first(self) -> int:
        """Most of the first kind that fits when there is none of the second."""
        return int(np.nonzero(self.layers[-1] >= 0)[0][-1])

    def most_second(self, first: int) -> int:
        """Most of the second kind beside `first` of the first kind; -1 when `first` alone do not fit."""
        return int(self.layers[-1][first]) if first < self.layers.shape[1] else _IMPOSSIBLE

    def holds(self, first: int, second: int) -> bool:
        """Whether that many of both kinds fit."""
        return self.most_second(first) >= second

    def spread(self, first: int, second: int) -> tuple[tuple[int, int], ...]:
        """How many of each kind each bin holds, as even as an exact fit allows; of equal bins, empty ones come last.

        Args:
            first: Things of the first kind to place.
            second: Things of the second kind to place; `holds(first, second)` must be true.
        """
        chosen = []
        for bins in range(len(self.rooms), 0, -1):
            best = self._evenest(bins, first, second)
            chosen.append(best)
            first, second = first - best[0], second - best[1]
        if len(set(self.rooms)) == 1:
            return tuple(sorted(chosen, key=lambda pair: pair == (0, 0)))
        return tuple(reversed(chosen))

    def _evenest(self, bins: int, first: int, second: int) -> tuple[int, int]:
        """What the last of `bins` bins takes, leaving what the others can hold."""
        below, room = self.layers[bins - 1], self.rooms[bins - 1]
        share = (first / bins, second / bins)
        return min(
            (_unevenness((a, b), share), (a, b))
            for a in range(min(len(room) - 1, first) + 1)
            for b in range(min(room[a], second) + 1)
            if below[first - a] >= second - b
        )[1]


def frontier(rooms: Sequence[Room], limit: int) -> Frontier:
    """The table for `rooms`, for up to `limit` of the first kind."""
    layers = np.full((len(rooms) + 1, limit + 1), _IMPOSSIBLE, dtype=np.int32)
    layers[0, 0] = 0
    for index, room in enumerate(rooms):
        before, after = layers[index], layers[index + 1]
        for a, b in enumerate(room[: limit + 1]):
            reached = before[: limit + 1 - a]
            np.maximum(after[a:], np.where(reached >= 0, reached + b, _IMPOSSIBLE), out=after[a:])
    return Frontier(tuple(rooms), layers)


def spread_crowds(held: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """What equal bins hold once crowds of one kind have moved onto the empty bins.

    A bin that holds both kinds keeps them. Each empty bin goes to the kind that crowds most, and each kind that gets
    one is shared out anew, evenly, over the bins that it has to itself: no bin then holds more of it than the fullest
    one did. No bin stays empty while another holds two or more of one kind alone.

    Args:
        held: How many of each kind each bin holds.
    """
    alone = [[index for index, pair in enumerate(held) if pair[kind] and not pair[1 - kind]] for kind in (0, 1)]
    things = [sum(held[index][kind] for index in bins) for kind, bins in enumerate(alone)]
    spread = list(held)
    gained = set()

    def crowding(kind: int) -> float:
        return things[kind] / len(alone[kind]) if alone[kind] else 0.0

    for index in (index for index, pair in enumerate(held) if pair == (0, 0)):
        kind = max((0, 1), key=crowding)
        if crowding(kind) <= 1:
            break
        alone[kind].append(index)
        gained.add(kind)
    for kind in gained:
        share, more = divmod(things[kind], len(alone[kind]))
        for number, index in enumerate(sorted(alone[kind])):
            count = share + (number < more)
            spread[index] = (0, count) if kind else (count, 0)
    return tuple(spread)


def _unevenness(pair: tuple[int, int], share: tuple[float, float]) -> tuple[float, bool, int]:
    """Smaller is better: near the even share, nothing of the second kind without any of the first, few in all."""
    a, b = pair
    apart = abs(a - share[0]) + abs(b - share[1]) + (_LONELY if b and not a else 0.0)
    return round(apart, 9), (a > 0) != (b > 0), a + b

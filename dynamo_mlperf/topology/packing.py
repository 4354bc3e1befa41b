"""Exact packing of two kinds of things into bins: what is common to every row of bins.

A bin says how many of the second kind fit beside each number of the first kind (`Room`). That covers workers on
nodes as well as multi-node workers in NVLink domains. The search is exact: it finds a packing whenever one exists.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # plans that need it load it by themselves
    import numpy as np
    from numpy.typing import NDArray

Room = tuple[int, ...]
"""`room[a]`: how many of the second kind fit into a bin that holds `a` of the first; not increasing, never empty."""
Pair = tuple[int, int]
"""So many of the first and of the second kind."""

Choices = Callable[[int, int], Iterable[tuple[int, int, int]]]
"""Of what is left of one kind and of the other: for each number of the one that a bin may take, that number and the
least and the most of the other beside it."""

IMPOSSIBLE = -1
_LONELY = 0.5
"""What a decode worker without a prefill worker in its bin costs, in workers away from the even share: enough to pair
them where there is a choice, too little to crowd a bin for it."""


class Frontier(ABC):
    """What bins can hold.

    Attributes:
        most_first: Most of the first kind that fits when there is none of the second.
    """

    most_first: int

    @abstractmethod
    def most_second(self, first: int) -> int:
        """Most of the second kind beside `first` of the first kind; -1 when `first` alone do not fit."""

    @abstractmethod
    def table(self) -> NDArray[np.int64]:
        """`most_second` of 0 to `most_first`; it never increases."""

    @abstractmethod
    def spread(self, first: int, second: int) -> tuple[Pair, ...]:
        """How many of each kind each bin holds, as even as an exact fit allows; of equal bins, empty ones come last.

        Args:
            first: Things of the first kind to place.
            second: Things of the second kind to place; `holds(first, second)` must be true.
        """

    def holds(self, first: int, second: int) -> bool:
        """Whether that many of both kinds fit."""
        return self.most_second(first) >= second


def fill(ranges: Sequence[Choices], outer: int, inner: int, *, swapped: bool = False) -> list[Pair]:
    """What each bin holds, the last one decided first, each as near the even share of what is left as can be.

    Args:
        ranges: What each bin may take.
        outer: Things of the kind that `ranges` go through.
        inner: Things of the other kind.
        swapped: Whether the outer kind is the second.

    Returns:
        Numbers of the first and of the second kind, in the order of decision: the last bin's first.
    """
    chosen = []
    for bins in range(len(ranges), 0, -1):
        best = evenest(ranges[bins - 1](outer, inner), (outer / bins, inner / bins), swapped=swapped)
        chosen.append(best)
        outer, inner = outer - best[swapped], inner - best[not swapped]
    return chosen


def room_choices(room: Room, most_beside: Callable[[int], int]) -> Choices:
    """What a bin may take when other bins have to hold the rest.

    Args:
        room: The bin.
        most_beside: Most of the second kind that the others hold beside a number of the first; -1 where that many do
            not fit.
    """

    def choices(first: int, second: int) -> Iterator[tuple[int, int, int]]:
        for a, most in enumerate(room[: first + 1]):
            below = most_beside(first - a)
            if below >= 0:
                yield a, max(0, second - below), min(most, second)

    return choices


def evenest(choices: Iterable[tuple[int, int, int]], share: tuple[float, float], *, swapped: bool = False) -> Pair:
    """The pair nearest to the share of each kind that is allowed; `share` stands in the order of the choices."""

    def pairs() -> Iterator[Pair]:
        for a, least, most in choices:
            for b in near(share[1], least, most):
                yield (b, a) if swapped else (a, b)

    wanted = (share[1], share[0]) if swapped else share
    return min((_unevenness(pair, wanted), pair) for pair in pairs())[1]


def near(share: float, least: int, most: int) -> set[int]:
    """The whole numbers from `least` to `most` that can be the best ones: those nearest to the share, and the least."""
    if least > most:
        return set()
    return {least, *(min(max(value, least), most) for value in (math.floor(share), math.ceil(share)))}


def empties_last(held: Iterable[Pair]) -> list[Pair]:
    """The same with empty bins at the end."""
    return sorted(held, key=lambda pair: pair == (0, 0))


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

"""Long rows of equal bins, exactly and fast.

Any packing of equal bins can be halved: sort the bins by what they hold of the first kind and take every other one.
The halves then differ in the first kind by no more than one bin holds. So a row needs of its two halves only a window
as wide as a bin, they of theirs the same, and ten thousand bins take fourteen steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamo_mlperf.topology.packing import (
    IMPOSSIBLE,
    Frontier,
    Pair,
    Room,
    empties_last,
    evenest,
    fill,
    near,
    room_choices,
)

SHORT_ROW = 64
"""Rows up to this many bins are filled bin by bin, each as even as can be; longer ones are halved until they are."""


@dataclass(frozen=True)
class Window:
    """Most of the second kind beside `low` to `high` of the first kind; -1 where those do not fit."""

    low: int
    values: NDArray[np.int64]

    @property
    def high(self) -> int:
        """The last number of the first kind that is covered."""
        return self.low + len(self.values) - 1

    def at(self, first: int) -> int:
        """The value beside `first`; -1 outside of the window."""
        return int(self.values[first - self.low]) if self.low <= first <= self.high else IMPOSSIBLE

    def part(self, low: int, high: int) -> NDArray[np.int64]:
        """The values beside `low` to `high`, both covered."""
        return self.values[low - self.low : high - self.low + 1]


def _window(low: int, high: int) -> Window:
    return Window(low, np.full(high - low + 1, IMPOSSIBLE, dtype=np.int64))


def with_bin(row: Window, room: Room, low: int, high: int) -> Window:
    """`low` to `high` of a row and one more bin; `row` covers all that this asks of it."""
    found = _window(low, high)
    for a, b in enumerate(room):
        start, stop = max(row.low, low - a), min(row.high, high - a)
        if start <= stop:
            view, known = found.part(start + a, stop + a), row.part(start, stop)
            np.maximum(view, np.where(known >= 0, known + b, IMPOSSIBLE), out=view)
    return found


def equal_bins(room: Room, bins: int, low: int, high: int) -> Window:
    """`low` to `high` of that many equal bins, which must be able to hold `high` of the first kind."""
    if bins == 0:
        return Window(0, np.zeros(1, dtype=np.int64))
    wide, sizes = len(room) - 1, list(_halvings(bins))
    spans = {bins: (low, high)}
    for size in sizes:
        start, stop = spans[size]
        for half in (size // 2, size - size // 2) if size > 1 else ():
            span = max(0, (start - wide + 1) // 2), min(half * wide, (stop + wide) // 2)
            known = spans.get(half, span)
            spans[half] = min(span[0], known[0]), max(span[1], known[1])
    found: dict[int, Window] = {}
    for size in reversed(sizes):
        start, stop = spans[size]
        if size == 1:
            found[size] = Window(start, np.array(room[start : stop + 1], dtype=np.int64))
        else:
            found[size] = _joined(found[size // 2], found[size - size // 2], wide, start, stop)
    return found[bins]


def _halvings(bins: int) -> Iterator[int]:
    """The sizes that halving leads to, descending: at most two of each step."""
    sizes = {bins}
    while sizes:
        size = max(sizes)
        sizes.remove(size)
        if size > 1:
            sizes |= {size // 2, size - size // 2}
        yield size


def _joined(small: Window, big: Window, wide: int, low: int, high: int) -> Window:
    """Both halves together; the bigger one holds up to `wide` more of the first kind than the other, never less."""
    found = _window(low, high)
    for more in range(wide + 1):
        start = max(small.low, big.low - more, (low - more + 1) // 2)
        stop = min(small.high, big.high - more, (high - more) // 2)
        if start <= stop:
            view = found.values[2 * start + more - low : 2 * stop + more - low + 1 : 2]
            np.maximum(view, small.part(start, stop) + big.part(start + more, stop + more), out=view)
    return found


class RowFrontier(Frontier):
    """A row of bins that are equal, but for the first and the last.

    Args:
        rooms: The bins.

    Raises:
        ValueError: Bins between the first and the last differ.
    """

    def __init__(self, rooms: Sequence[Room]) -> None:
        self.rooms = tuple(rooms)
        body = self.rooms[1:-1] or self.rooms[:1] or ((0,),)
        self._room = body[0]
        if any(room != self._room for room in body):
            raise ValueError("bins between the first and the last differ")
        self._heads = [room for room in self.rooms[:1] if room != self._room]
        self._tails = [room for room in self.rooms[1:][-1:] if room != self._room]
        self._bins = len(self.rooms) - len(self._heads) - len(self._tails)
        self.most_first = sum(len(room) - 1 for room in self.rooms)
        self._short: list[Window] = [Window(0, np.zeros(1, dtype=np.int64))]

    def most_second(self, first: int) -> int:
        """See `Frontier`."""
        if not 0 <= first <= self.most_first:
            return IMPOSSIBLE
        return self._row([*self._heads, *self._tails], first, first).at(first)

    def table(self) -> NDArray[np.int64]:
        """See `Frontier`."""
        return self._row([*self._heads, *self._tails], 0, self.most_first).values

    def _row(self, odd: Sequence[Room], low: int, high: int) -> Window:
        """`low` to `high` of the equal bins and these odd ones."""
        if not odd:
            return equal_bins(self._room, self._bins, low, high)
        most = sum(len(room) - 1 for room in odd[:-1]) + self._bins * (len(self._room) - 1)
        rest = self._row(odd[:-1], max(0, min(low - len(odd[-1]) + 1, most)), min(high, most))
        return with_bin(rest, odd[-1], low, high)

    def spread(self, first: int, second: int) -> tuple[Pair, ...]:
        """See `Frontier`."""
        if len(self.rooms) <= SHORT_ROW:
            return tuple(self._fill_short(first, second))
        tails, first, second = self._ends(self._tails, self._heads, first, second)
        heads, first, second = self._ends(self._heads, [], first, second)
        inner = empties_last(self._halve(self._bins, first, second, {}))
        return (*heads, *inner, *tails)

    def _fill_short(self, first: int, second: int) -> list[Pair]:
        rows = [Window(0, np.zeros(1, dtype=np.int64))]
        for room in self.rooms:
            rows.append(with_bin(rows[-1], room, 0, rows[-1].high + len(room) - 1))
        chosen = fill([room_choices(room, row.at) for room, row in zip(self.rooms, rows, strict=False)], first, second)
        return list(reversed(chosen)) if self._heads or self._tails else empties_last(chosen)

    def _ends(self, rooms: list[Room], left: list[Room], first: int, second: int) -> tuple[list[Pair], int, int]:
        """What an odd bin at one end holds, and what the others (`left` of them odd) then have to."""
        chosen = []
        for room in rooms:
            most = sum(len(other) - 1 for other in left) + self._bins * (len(self._room) - 1)
            row = self._row(left, max(0, min(first - len(room) + 1, most)), min(first, most))
            bins = self._bins + len(left) + 1
            best = evenest(room_choices(room, row.at)(first, second), (first / bins, second / bins))
            chosen.append(best)
            first, second = first - best[0], second - best[1]
        return chosen, first, second

    def _halve(self, bins: int, first: int, second: int, known: dict[tuple[int, int, int], list[Pair]]) -> list[Pair]:
        """What that many equal bins hold, by halves; `known` keeps what was found, as halves repeat."""
        key = (bins, first, second)
        if key not in known:
            if bins <= SHORT_ROW:
                known[key] = fill([room_choices(self._room, row.at) for row in self._short_rows(bins)], first, second)
            else:
                a, b = self._bigger_half(bins, first, second)
                rest = self._halve(bins // 2, first - a, second - b, known)
                known[key] = self._halve(bins - bins // 2, a, b, known) + rest
        return known[key]

    def _bigger_half(self, bins: int, first: int, second: int) -> Pair:
        """What the bigger half of that many equal bins holds: near its share, and the rest fits the other half."""
        wide, big = len(self._room) - 1, bins - bins // 2
        low, high = max((first + 1) // 2, first - bins // 2 * wide), min(big * wide, (first + wide) // 2, first)
        bigs = equal_bins(self._room, big, low, high)
        smalls = equal_bins(self._room, bins // 2, first - high, first - low)
        share = first * big / bins, second * big / bins
        return min(
            (round(abs(a - share[0]) + abs(b - share[1]), 9), (a, b))
            for a in range(low, high + 1)
            for b in near(share[1], max(0, second - smalls.at(first - a)), min(second, bigs.at(a)))
        )[1]

    def _short_rows(self, bins: int) -> list[Window]:
        """The rows of 0 to `bins - 1` equal bins, all of each."""
        while len(self._short) < bins:
            high = self._short[-1].high + len(self._room) - 1
            self._short.append(with_bin(self._short[-1], self._room, 0, high))
        return self._short[:bins]

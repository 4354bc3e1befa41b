"""Short rows of bins, whatever each holds, in plain Python: what most plans are, without loading numpy for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dynamo_mlperf.topology.packing import IMPOSSIBLE, Frontier, empties_last, fill, room_choices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dynamo_mlperf.topology.packing import Pair, Room

SHORT_BINS = 64
"""Longer rows are filled by halves, as evenly as that goes (`rows.SHORT_ROW`)."""
SHORT_WORK = 200_000
"""Twice the steps of plain Python up to which a row is short: some 10 ms, less than numpy takes to load."""


def is_short(rooms: Sequence[Room]) -> bool:
    """Whether the row is better filled here than by `rows.RowFrontier`."""
    most = sum(len(room) - 1 for room in rooms)
    return len(rooms) <= SHORT_BINS and sum(len(room) for room in rooms) * (most + 1) <= SHORT_WORK


class ShortRow(Frontier):
    """A row of bins, filled bin by bin.

    Args:
        rooms: The bins.
    """

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = tuple(rooms)
        self.most_first = sum(len(room) - 1 for room in rooms)
        self._rows = [[0]]
        for room in self._rooms:
            self._rows.append(_with_bin(self._rows[-1], room))

    def most_second(self, first: int) -> int:
        """See `Frontier`."""
        return _at(self._rows[-1], first)

    def table(self) -> NDArray[np.int64]:
        """See `Frontier`."""
        import numpy as np

        return np.array(self._rows[-1], dtype=np.int64)

    def spread(self, first: int, second: int) -> tuple[Pair, ...]:
        """See `Frontier`."""
        bins = zip(self._rooms, self._rows, strict=False)
        chosen = fill([room_choices(room, partial(_at, row)) for room, row in bins], first, second)
        return tuple(empties_last(chosen) if len(set(self._rooms)) == 1 else reversed(chosen))


def _at(row: Sequence[int], first: int) -> int:
    return row[first] if 0 <= first < len(row) else IMPOSSIBLE


def _with_bin(row: Sequence[int], room: Room) -> list[int]:
    """Most of the second kind beside each number of the first, in the row and one more bin."""
    found = [IMPOSSIBLE] * (len(row) + len(room) - 1)
    for a, b in enumerate(room):
        for first, known in enumerate(row, start=a):
            if known >= 0 and known + b > found[first]:
                found[first] = known + b
    return found

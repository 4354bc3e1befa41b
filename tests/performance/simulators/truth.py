"""The true rate of a simulated system, by many repeats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, minimum_queries
from tests.performance.simulators.runs import simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.performance.simulators.systems import System

FULL_S = 600.0
AT_S = 1200.0
"""Age of the system for which its true rate is told (drift): about when a search ends."""


@dataclass(frozen=True)
class Truth:
    """Rates at which a full run passes with probability 0.9 and 0.5."""

    rate_90: float
    rate_50: float

    @property
    def known(self) -> bool:
        """Whether passing fades out at all: both are the same end of the grid where every rate passes, or none."""
        return self.rate_90 < self.rate_50


def pass_shares(
    system: System, rates: NDArray[np.float64], repeats: int, seed: int = 7, start_s: float = AT_S
) -> NDArray[np.float64]:
    """Share of full runs at each rate that pass every limit at p99, begun at this age of the system."""
    columns = np.repeat(rates, repeats)
    runs = simulate(system, columns, FULL_S, seed=seed, repeats=len(columns), start_s=start_s)
    allowed = np.array([allowed_over_limit(int(n), 0.99) for n in runs.completed[:, -1]])
    good = np.ones(len(columns), bool)
    for counts in runs.over.values():
        good &= counts[:, -1] <= allowed
    return np.asarray(good.reshape(-1, repeats).mean(axis=1))


def find_truth(system: System, repeats: int = 60) -> Truth:
    """Coarse rates, finer rates, then many repeats on a grid round the even odds; both points are read off it."""
    # Below this rate a run holds too few queries to pass at all, which is no matter of speed.
    # A padded run holds enough at any rate, and lasts the longer the lower the rate is.
    few, least = (0.0, 0.3) if system.data_set > 1 else (1.1 * minimum_queries(0, 0.99) / FULL_S, 0.1)
    grid = np.geomspace(max(least * system.capacity, few), 1.3 * system.capacity, 30)
    for wide, count in ((0.15, 8), (0.06, 12)):
        middle = _crossing(grid, pass_shares(system, grid, count), 0.5)
        grid = middle * np.exp(np.linspace(-wide, wide, 16))
    wide = max(0.05, 2.5 / math.sqrt(grid[8] * FULL_S))
    grid = grid[8] * np.exp(np.linspace(-2.0 * wide, wide, 16))
    shares = pass_shares(system, grid, repeats)
    return Truth(_crossing(grid, shares, 0.9), _crossing(grid, shares, 0.5))


def _crossing(grid: NDArray[np.float64], shares: NDArray[np.float64], level: float) -> float:
    """Rate at which the share falls through the level; neighbours that rise by luck are averaged (isotonic fit)."""
    blocks: list[tuple[float, int]] = []
    for share in shares:
        blocks.append((float(share), 1))
        while len(blocks) > 1 and blocks[-2][0] < blocks[-1][0]:
            (one, many), (other, more) = blocks[-2], blocks[-1]
            blocks[-2:] = [((one * many + other * more) / (many + more), many + more)]
    falling = np.repeat([share for share, _ in blocks], [count for _, count in blocks])
    return float(np.exp(np.interp(-level, -falling, np.log(grid))))

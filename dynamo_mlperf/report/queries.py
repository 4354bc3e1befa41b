"""The client's own record of every query: `loadgen/queries.csv` as arrays, and the latencies that follow from it."""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

    from numpy.typing import NDArray

COLUMNS = ("order", "sample", "issued_ms", "first_token_ms", "completed_ms", "output_tokens", "prompt_tokens", "error")

END_TO_END = "end-to-end"
TTFT = "TTFT"
TPOT = "TPOT"


@dataclass(frozen=True, eq=False)
class Queries:
    """One entry per query in the file's order; times in milliseconds on the client's clock, NaN where there is none.

    Attributes:
        issued_ms: When the query was issued, shape (n,).
        first_token_ms: When its first token arrived, shape (n,).
        completed_ms: When its last token arrived, shape (n,).
        output_tokens: Tokens it generated, shape (n,).
        failed: Whether the client recorded an error for it, shape (n,).
        errors: Each error text with the number of queries that carry it, most frequent first.
        unreadable_rows: Rows that are no query record (a row cut by a crash, for one).
    """

    issued_ms: NDArray[np.float64]
    first_token_ms: NDArray[np.float64]
    completed_ms: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    failed: NDArray[np.bool_]
    errors: tuple[tuple[str, int], ...]
    unreadable_rows: int

    @property
    def total(self) -> int:
        """Queries in the file."""
        return len(self.issued_ms)

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Which queries completed without an error, shape (n,)."""
        answered: NDArray[np.bool_] = ~self.failed & np.isfinite(self.completed_ms)
        return answered

    @property
    def issued_s(self) -> NDArray[np.float64]:
        """Issue times in seconds after the first issue, shape (n,)."""
        return (self.issued_ms - self.issued_ms.min()) / 1000.0 if self.total else self.issued_ms

    def latency_ms(self, measure: str) -> NDArray[np.float64]:
        """Latency of every query, shape (n,); NaN for a query that was not answered or has no such latency.

        Args:
            measure: END_TO_END (issue to last token), TTFT (issue to first token) or TPOT (mean time per output
                token after the first; a query of fewer than two tokens has none).
        """
        if measure == TTFT:
            values = self.first_token_ms - self.issued_ms
        elif measure == TPOT:
            gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
            values = (self.completed_ms - self.first_token_ms) / gaps
        else:
            values = self.completed_ms - self.issued_ms
        return np.where(self.answered, values, np.nan)

    def sorted_ms(self, measure: str) -> NDArray[np.float64]:
        """The latencies that exist, ascending, shape (m,) with m <= n."""
        values = self.latency_ms(measure)
        return np.sort(values[np.isfinite(values)])


def percentile(ascending: NDArray[np.float64], fraction: float) -> float | None:
    """The percentile as LoadGen takes it: element floor(n * fraction) of the ascending values; None without values."""
    if not len(ascending):
        return None
    return float(ascending[min(int(len(ascending) * fraction), len(ascending) - 1)])


def read_queries(path: Path) -> Queries | None:
    """The queries of `queries.csv`; None where the file is missing or does not have the known columns."""
    if not path.is_file():
        return None
    numbers: list[tuple[float, float, float, float]] = []
    failed: list[bool] = []
    errors: Counter[str] = Counter()
    unreadable = 0
    with path.open(newline="", encoding="utf-8", errors="replace") as source:
        rows = _rows(source)
        if tuple(next(rows, ())) != COLUMNS:
            return None
        for row in rows:
            times = _numbers_of(row)
            if times is None:
                unreadable += 1
                continue
            numbers.append(times)
            failed.append(bool(row[7]))
            if row[7]:
                errors[row[7]] += 1
    table = np.array(numbers, dtype=np.float64).reshape(-1, 4)
    return Queries(
        issued_ms=table[:, 0],
        first_token_ms=table[:, 1],
        completed_ms=table[:, 2],
        output_tokens=table[:, 3],
        failed=np.array(failed, dtype=np.bool_),
        errors=tuple(errors.most_common()),
        unreadable_rows=unreadable,
    )


def _rows(source: TextIO) -> Iterator[list[str]]:
    """The file's rows; where the text stops being CSV, one empty (unreadable) row ends them."""
    try:
        yield from csv.reader(line.replace("\0", "") for line in source)
    except csv.Error:
        yield []


def _numbers_of(row: list[str]) -> tuple[float, float, float, float] | None:
    if len(row) != len(COLUMNS):
        return None
    try:
        issued, first, completed, tokens = (float(cell) if cell else math.nan for cell in row[2:6])
    except ValueError:
        return None
    return (issued, first, completed, tokens) if math.isfinite(issued) else None

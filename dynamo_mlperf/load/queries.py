"""`queries.csv` and `client.json` as they were written, read back strictly."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import MOST_LOG_BYTES, read_json, read_text
from dynamo_mlperf.load.account import QUERIES_HEADER
from dynamo_mlperf.load.logs import AGAIN

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Times = npt.NDArray[np.float64]
    Counts = npt.NDArray[np.int64]

_CLIENT_KEYS = frozenset({"requests", "failed", "issue_delay_ms", "processes", "wall_s", "client_limited"})

CUT_FILE = "queries-cut.csv"
"""In place of `queries.csv`, of a test that was stopped before its end."""
CUT = "in flight when the test was stopped"
"""The error of a query there that has no end."""


@dataclass(frozen=True)
class Queries:
    """All queries of a test, in the order of their issue; arrays of one length.

    Attributes:
        samples: Sample index.
        issued_ms: Time of issue since the first one, in milliseconds; NaN where it never was.
        first_token_ms: Time of the first token; NaN without one.
        completed_ms: Time of the end; NaN without one.
        output_tokens: From the response's usage.
        prompt_tokens: From the response's usage.
        errors: Cause of failure; empty where there is none.
    """

    samples: Counts
    issued_ms: Times
    first_token_ms: Times
    completed_ms: Times
    output_tokens: Counts
    prompt_tokens: Counts
    errors: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def succeeded(self) -> npt.NDArray[np.bool_]:
        """Which queries ended without an error."""
        return np.array([not error for error in self.errors], dtype=bool)

    @property
    def known_until_ms(self) -> float:
        """Up to here all is on record; infinite, but for a test that was stopped: the first issue without an end."""
        cut = np.array([error == CUT for error in self.errors], dtype=bool)
        return float(np.nanmin(self.issued_ms[cut], initial=np.inf))

    @property
    def duration_s(self) -> float:
        """Seconds from the first issue to the last end."""
        return float(np.nanmax(self.completed_ms, initial=0.0)) / 1000

    def latencies_ms(self, constraint: str) -> Times:
        """Ascending latencies of the queries that succeeded: `end_to_end`, `ttft` or `tpot`, in milliseconds."""
        if constraint == "tpot":
            gaps = np.maximum(self.output_tokens - 1, 1)
            values = (self.completed_ms - self.first_token_ms) / gaps
        else:
            values = (self.first_token_ms if constraint == "ttft" else self.completed_ms) - self.issued_ms
        return np.sort(values[self.succeeded])


def read_queries(path: Path) -> Queries:
    """The queries in `path`.

    Raises:
        MeasureError: The file is missing, cut or garbage.
    """
    try:
        text = read_text(path, MOST_LOG_BYTES)
    except (OSError, ValueError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", AGAIN) from error
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise MeasureError(f"{path} is garbled: {error}", AGAIN) from error
    width = len(QUERIES_HEADER.split(","))
    whole = bool(rows) and ",".join(rows[0]) == QUERIES_HEADER and text.endswith("\n")
    if not whole or any(len(row) != width for row in rows):
        raise MeasureError(f"{path} is cut or garbled", AGAIN)
    if len(rows) == 1:
        raise MeasureError(f"{path} holds no query", "look at mlperf_log_detail.txt")
    try:
        return _columns(rows[1:])
    except (ValueError, OverflowError) as error:
        raise MeasureError(f"{path} is garbled: {error}", AGAIN) from error


def _columns(rows: list[list[str]]) -> Queries:
    if [int(row[0]) for row in rows] != list(range(len(rows))):
        raise ValueError("its orders are not 0, 1, 2, ...")

    def times(column: int) -> Times:
        return np.array([float(row[column]) if row[column] else np.nan for row in rows], dtype=np.float64)

    def counts(column: int) -> Counts:
        return np.array([int(row[column]) for row in rows], dtype=np.int64)

    found = Queries(counts(1), times(2), times(3), times(4), counts(5), counts(6), tuple(row[7] for row in rows))
    ended = found.succeeded
    issued, first, completed = (column[ended] for column in (found.issued_ms, found.first_token_ms, found.completed_ms))
    if not (np.isfinite(issued) & np.isfinite(completed) & (issued >= 0) & (issued <= completed)).all():
        raise ValueError("a query without an error has no end, or one before its issue")
    if not (np.isnan(first) | ((issued <= first) & (first <= completed))).all():
        raise ValueError("a first token is not between issue and end")
    return found


def read_client(path: Path) -> dict[str, Any]:
    """The client's account in `path`.

    Raises:
        MeasureError: The file is missing or no such account.
    """
    try:
        value = read_json(path, finite=True)
    except (OSError, ValueError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", AGAIN) from error
    if not isinstance(value, dict) or not set(value) >= _CLIENT_KEYS:
        raise MeasureError(f"{path} is no client account", AGAIN)
    roles = {process.get("role") for process in value["processes"] if isinstance(process, dict)}
    if "http" not in roles:
        raise MeasureError(f"{path} names no client process, and something sent the requests", "run it again")
    return value

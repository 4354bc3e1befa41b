from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.report.queries import COLUMNS, END_TO_END, TPOT, TTFT, percentile, read_queries

if TYPE_CHECKING:
    from pathlib import Path

HEADER = ",".join(COLUMNS)
ROWS = (
    "0,17,1000.0,1200.0,2200.0,11,3700,",
    "1,18,1500.0,,,0,0,HTTP 500",
    "2,19,1600.0,1700.0,1700.0,1,3700,",
    "3,20,1800.0,1900.0,,,,",
    '4,21,2000.0,,,0,0,"timeout, no answer"',
    "5,22,2100.0,,,0,0,HTTP 500",
)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_latencies_follow_from_the_times(tmp_path: Path) -> None:
    queries = read_queries(write(tmp_path / "queries.csv", HEADER, *ROWS))
    assert queries is not None
    nan = np.nan
    np.testing.assert_allclose(queries.latency_ms(END_TO_END), [1200.0, nan, 100.0, nan, nan, nan])
    np.testing.assert_allclose(queries.latency_ms(TTFT), [200.0, nan, 100.0, nan, nan, nan])
    np.testing.assert_allclose(queries.latency_ms(TPOT), [100.0, nan, nan, nan, nan, nan])
    np.testing.assert_allclose(queries.issued_s, [0.0, 0.5, 0.6, 0.8, 1.0, 1.1])
    assert queries.sorted_ms(END_TO_END).tolist() == [100.0, 1200.0]


def test_a_query_in_flight_is_neither_answered_nor_failed(tmp_path: Path) -> None:
    queries = read_queries(write(tmp_path / "queries.csv", HEADER, *ROWS))
    assert queries is not None
    assert queries.answered.tolist() == [True, False, True, False, False, False]
    assert queries.failed.tolist() == [False, True, False, False, True, True]
    assert queries.errors == (("HTTP 500", 2), ("timeout, no answer", 1))


@pytest.mark.parametrize(
    "row", ["6,23,2200", "6,23,x,1,2,3,4,", "", "6,23,,1,2,3,4,", "6,23,2200.0,1.0,2.0,3,4,,more", '6,23,"22\x0000']
)
def test_a_row_that_is_no_record_is_counted_and_left_out(tmp_path: Path, row: str) -> None:
    queries = read_queries(write(tmp_path / "queries.csv", HEADER, *ROWS, row))
    assert queries is not None
    assert (queries.total, queries.unreadable_rows) == (6, 1)


def test_a_field_beyond_what_csv_takes_ends_the_rows(tmp_path: Path) -> None:
    queries = read_queries(write(tmp_path / "queries.csv", HEADER, ROWS[0], '1,"' + "x" * 200_000))
    assert queries is not None
    assert (queries.total, queries.unreadable_rows) == (1, 1)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path / "queries.csv", "order,latency_ms", "0,12")) is None
    assert read_queries(write(tmp_path / "empty.csv")) is None
    assert read_queries(tmp_path / "absent.csv") is None


def test_no_query_yet(tmp_path: Path) -> None:
    queries = read_queries(write(tmp_path / "queries.csv", HEADER))
    assert queries is not None
    assert queries.total == 0
    assert queries.issued_s.tolist() == queries.sorted_ms(TTFT).tolist() == []


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300), st.floats(0.0, 1.0))
def test_a_percentile_is_a_value_with_that_share_below_it(values: list[float], fraction: float) -> None:
    ascending = np.sort(np.array(values))
    found = percentile(ascending, fraction)
    assert found is not None
    assert found in values
    rank = int(len(values) * fraction)
    assert (ascending < found).sum() <= rank
    assert (ascending <= found).sum() >= min(rank + 1, len(values))


def test_the_99th_percentile_of_a_hundred_is_the_largest() -> None:
    assert percentile(np.arange(100.0), 0.99) == 99.0
    assert percentile(np.arange(100.0), 0.5) == 50.0
    assert percentile(np.array([]), 0.5) is None

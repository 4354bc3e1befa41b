from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynamo_mlperf.load.queries import Queries, read_queries
from dynamo_mlperf.report.queries import ascending_ms, causes, per_query_ms, percentile
from dynamo_mlperf.report.words import CONSTRAINTS
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "order,sample,issued_ms,first_token_ms,completed_ms,output_tokens,prompt_tokens,error"
ROWS = (
    "0,17,0.0,200.0,1200.0,11,3700,",
    "1,18,500.0,,,0,0,HTTP 500",
    "2,19,600.0,700.0,710.0,1,3700,",
    '3,20,800.0,950.0,,2,3700,"timeout, no answer"',
    "4,21,,,,0,0,HTTP 500",
)


@pytest.fixture
def queries(tmp_path: Path) -> Queries:
    (tmp_path / "queries.csv").write_text("\n".join((HEADER, *ROWS)) + "\n")
    return read_queries(tmp_path / "queries.csv")


@pytest.mark.parametrize(
    ("constraint", "values"), [("end_to_end", (1200.0, 110.0)), ("ttft", (200.0, 100.0)), ("tpot", (100.0, 10.0))]
)
def test_latencies_belong_to_queries_that_were_answered(
    queries: Queries, constraint: str, values: tuple[float, float]
) -> None:
    nan = np.nan
    np.testing.assert_allclose(per_query_ms(queries, constraint), [values[0], nan, values[1], nan, nan])
    assert ascending_ms(queries, constraint).tolist() == [values[1], values[0]]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_latencies_are_those_that_the_verdict_is_made_from(tmp_path: Path, constraint: str) -> None:
    paths = build_run(tmp_path / "run", "invalid", queries=800)
    record = read_queries(paths.load / "queries.csv")
    np.testing.assert_allclose(ascending_ms(record, constraint), record.latencies_ms(constraint))


def test_causes_by_frequency(queries: Queries) -> None:
    assert causes(queries) == [("HTTP 500", 2), ("timeout, no answer", 1)]


def test_no_latency_has_no_percentile() -> None:
    assert percentile(np.arange(100, dtype=np.float64), 0.99) == 99.0
    assert percentile(np.array([], dtype=np.float64), 0.5) is None

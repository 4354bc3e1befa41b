"""The client's own account: what it books is what is read back, and its running figures."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.account import Account, Histogram
from dynamo_mlperf.load.channel import Event, Kind
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.load.settings import build_settings

MS = 1_000_000
SETTINGS = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 25, 64, Reduction(3, 64, 90))
TOKENS = build_settings(benchmark("gpt-oss-120b"), "Interactive", 25, 64, Reduction(3, 64, 90))


def done(order: int, sent_ms: float, first_ms: float, done_ms: float, tokens: int = 5) -> Event:
    sent_ns, first_ns, done_ns = (int(value * MS) for value in (sent_ms, first_ms, done_ms))
    return Event(Kind.DONE, order, sent_ns, first_ns, done_ns, 17, tokens)


def test_queries_are_read_back_as_booked(tmp_path: Path) -> None:
    account = Account(SETTINGS)
    account.issue(900, 3, 1000 * MS)
    account.issue(901, 1, 1010 * MS)
    account.issue(902, 2, 1020 * MS)
    account.end(done(1, 1011, 1015.5, 1030.25, tokens=4))
    account.end(done(0, 1000.5, 1004, 1044))
    account.end(Event(Kind.FAILED, 2, 0, 0, 1060 * MS), 'HTTP 500: a "quoted", odd\n cause')
    (tmp_path / "queries.csv").write_text(account.queries_csv())
    queries = read_queries(tmp_path / "queries.csv")
    assert queries.samples.tolist() == [3, 1, 2]
    assert queries.issued_ms.tolist() == [0, 10, 20]
    assert queries.first_token_ms.tolist()[:2] == [4, 15.5]
    assert math.isnan(queries.first_token_ms[2])
    assert queries.completed_ms.tolist() == [44, 30.25, 60]
    assert queries.output_tokens.tolist() == [5, 4, 0]
    assert queries.errors == ("", "", "HTTP 500: a 'quoted', odd cause")
    assert queries.latencies_ms("end_to_end").tolist() == [20.25, 44]
    assert queries.latencies_ms("ttft").tolist() == [4, 5.5]
    assert queries.latencies_ms("tpot").tolist() == [pytest.approx(14.75 / 3), 10]
    assert queries.duration_s == 0.06
    assert account.failures() == [{"sample": 2, "order": 2, "cause": 'HTTP 500: a "quoted", odd\n cause'}]
    assert account.issue_delay_ms() == {"p50": 0.75, "p99": 0.995, "max": 1.0}


def test_progress_of_a_run_under_way() -> None:
    account = Account(SETTINGS)
    for order in range(4):
        account.issue(order, order, (100 + order) * MS)
    account.end(done(0, 100, 110, 1700))
    account.end(done(1, 101, 111, 1601))
    account.end(Event(Kind.FAILED, 2, 0, 0, 200 * MS), "reset")
    progress = account.progress(100 * MS, 2100 * MS, 64)
    counted = {key: progress[key] for key in ("t_s", "issued", "completed", "failed", "in_flight", "over_limit")}
    assert counted == {"t_s": 2.0, "issued": 4, "completed": 3, "failed": 1, "in_flight": 1, "over_limit": 1}
    assert (progress["over_limit_allowed"], progress["expected_queries"]) == (1, 64)
    assert progress["ttft_p50_ms"] == pytest.approx(10, rel=0.01)
    assert progress["p99_ms"] == pytest.approx(1600, rel=0.01)
    assert progress["ttft_p99_ms"] == pytest.approx(10, rel=0.01)
    assert progress["tpot_p50_ms"] == pytest.approx(1490 / 4, rel=0.01)
    assert progress["tpot_p99_ms"] == pytest.approx(1590 / 4, rel=0.01)
    assert progress["judged"] == ["end_to_end"]
    assert progress["left_s"] == 1.0  # 3 s at least


def test_time_left_in_offline_comes_from_what_is_done() -> None:
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), "Offline", 25, 64, Reduction(3, 64, 90))
    account = Account(settings)
    for order in range(4):
        account.issue(order, order, 0)
    assert (account.in_flight, account.progress(0, 5000 * MS, 64)["left_s"]) == (0, None)
    account.sent_to_worker(0, 1)
    account.sent_to_worker(1, 1)
    assert account.in_flight == 2
    account.end(done(0, 1, 2, 3))
    assert account.in_flight == 1
    assert account.progress(0, 5000 * MS, 64)["left_s"] == 63 * 5


def test_in_flight_over_time_is_thinned_out_evenly() -> None:
    account = Account(SETTINGS)
    for order in range(700):
        account.issue(order, 0, 100)
        account.note_in_flight()
    points = account.in_flight_over_time()
    assert points["every_s"] == 3
    assert points["values"] == list(range(1, 701, 3))


def test_progress_shows_the_constraint_that_is_worst_off() -> None:
    account = Account(TOKENS)
    for order in range(3):
        account.issue(order, order, 0)
        account.sent_to_worker(order, 1)
        account.end(done(order, 1, 10, 10 + 4 * 15.5 if order else 10))
    assert account.progress(0, 1, 64)["over_limit"] == 2


def test_oldest_waiting_query_is_the_first_without_an_end() -> None:
    account = Account(SETTINGS)
    assert account.oldest_waiting_ns() is None
    for order in range(3):
        account.issue(order, order, 100 + order)
    assert account.oldest_waiting_ns() == 100
    account.end(done(0, 1, 2, 3))
    account.end(done(2, 1, 2, 3))
    assert account.oldest_waiting_ns() == 101
    account.end(done(1, 1, 2, 3))
    assert account.oldest_waiting_ns() is None
    account.issue(9, 0, 0)
    assert account.oldest_waiting_ns() is None  # it has not left the client's own queue


@given(values=st.lists(st.floats(0.02, 1e6), min_size=1, max_size=300), share=st.sampled_from([0.5, 0.9, 0.99]))
def test_histogram_is_within_a_percent(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(len(values) * share - 1e-9) - 1]
    assert histogram.percentile(share) == pytest.approx(exact, rel=0.011, abs=0.002)


def test_histogram_without_values() -> None:
    assert Histogram().percentile(0.5) is None


@pytest.mark.parametrize("spoil", ["cut", "column", "order", "number", "header"])
def test_spoiled_file_is_refused(tmp_path: Path, spoil: str) -> None:
    account = Account(dataclasses.replace(SETTINGS))
    for order in range(3):
        account.issue(order, order, 100 * MS)
        account.end(done(order, 101, 110, 120))
    text = account.queries_csv()
    spoiled = {
        "cut": text[:-4],
        "column": text.replace(",17,", ",17,,"),
        "order": text.replace("\n2,2,", "\n7,2,"),
        "number": text.replace(",17,", ",x,"),
        "header": text.replace("order", "number", 1),
    }[spoil]
    assert spoiled != text
    (tmp_path / "queries.csv").write_text(spoiled)
    with pytest.raises(MeasureError, match=r"queries.csv is (cut or )?garbled"):
        read_queries(tmp_path / "queries.csv")


def test_progress_counts_each_constraint_and_tells_late_failures_apart() -> None:
    """A request that failed after its limit is over it, as an answer then would be; one that failed at once is not."""
    account = Account(TOKENS)
    for order in range(4):
        account.issue(order, order, 0)
        account.issued_ns[order] = 100 * MS
    account.end(done(0, 100, 2500, 2600, tokens=20))  # TTFT 2400 of 2000 ms
    account.end(done(1, 100, 200, 2200, tokens=20))  # TPOT 105 of 15 ms
    account.end(Event(Kind.FAILED, 2, 0, 0, 150 * MS), "HTTP 500")
    account.end(Event(Kind.FAILED, 3, 0, 0, 9000 * MS), "no end within 8 s of issue")
    progress = account.progress(0, 9100 * MS, 100)
    assert progress["over"] == {"ttft": 2, "tpot": 1}
    assert (progress["failed"], progress["failed_late"], progress["first_failure"]) == (2, 1, "HTTP 500")

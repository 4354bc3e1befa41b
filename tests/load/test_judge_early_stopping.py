"""Early stopping to the last sample: our count and rule against the real LoadGen's, on both sides of the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.early_stopping import early_stopping_latency, passes
from dynamo_mlperf.benchmark.rounds import ROUNDS
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.load.foreign import judge_loadgen
from dynamo_mlperf.load.logs import LoadgenLog, read_logs
from dynamo_mlperf.load.over_limit import OverLimit, counted, logged
from dynamo_mlperf.load.trace import TRACE, traced_latencies_ms
from tests.fakes.stub_sut import StubPlan

pytestmark = pytest.mark.loadgen

LIMIT_MS = 1500.0
"""Far above what a busy machine adds to an answer at once, and far below a slow one."""

SLOW_S = 2.2
ROUND = ROUNDS["v6.1"]
SIDES = [(458, 0), (459, 0), (459, 1), (662, 1), (662, 2)]
"""Queries and slow ones: p99 needs 459 with none over, and 662 with one."""


def _end_to_end(number: int, slow: int) -> StubPlan:
    conf = (
        "*.Server.target_qps = 2000\n*.Server.min_duration = 1\n"
        f"*.Server.min_query_count = {number}\n*.*.performance_sample_count_override = {number}\n"
        f"*.Server.target_latency = {LIMIT_MS:g}\n"
    )
    times = {7 * order: (0.0, SLOW_S) for order in range(slow)}
    return StubPlan("qwen3-vl-235b-a22b", conf, number, trace=True, slow=times)


def _token_latency(constraint: str, number: int, slow: int) -> StubPlan:
    limits = (LIMIT_MS, 10_000) if constraint == "ttft" else (10_000, LIMIT_MS)
    conf = (
        "*.Server.target_qps = 2000\n*.Server.min_duration = 1\n"
        f"*.Server.min_query_count = {number}\n*.*.performance_sample_count_override = {number}\n"
        f"*.Server.ttft_latency = {limits[0]:g}\n*.Server.tpot_latency = {limits[1]:g}\n"
    )
    late = (SLOW_S, SLOW_S) if constraint == "ttft" else (0.0, SLOW_S)
    times = {7 * order: late for order in range(slow)}
    return StubPlan("llama2-70b", conf, number, trace=True, slow=times, tokens=2)


def _outcome(directory: Path, constraint: str) -> tuple[LoadgenLog, OverLimit]:
    log = read_logs(directory)
    traced = traced_latencies_ms(directory / TRACE)
    if constraint in traced:
        return log, counted(traced[constraint], LIMIT_MS, 0.99)
    count = logged(log, constraint, LIMIT_MS, 0.99)
    assert count is not None
    return log, count


@pytest.mark.parametrize(("number", "slow"), SIDES)
@pytest.mark.parametrize("constraint", ["end_to_end", "ttft", "tpot"])
def test_our_rule_is_loadgens_to_the_last_sample(tmp_path: Path, constraint: str, number: int, slow: int) -> None:
    plan = _end_to_end(number, slow) if constraint == "end_to_end" else _token_latency(constraint, number, slow)
    log, count = _outcome(plan.run(tmp_path), constraint)
    assert count.number == log.values["generated_query_count"] == number
    assert log.error_count == 0
    assert count.at_least <= slow <= count.at_most
    assert log.validity == ("VALID" if passes(number, slow, 0.99) else "INVALID")
    if constraint != "tpot":
        assert count.at_least == slow, "the trace has every latency"
    outcome = "passed" if log.validity == "VALID" else "failed"
    assert count.outcome in ("open", outcome)
    if constraint == "end_to_end":
        without_trace = logged(log, constraint, LIMIT_MS, 0.99)
        assert without_trace is not None
        assert (without_trace.at_least, without_trace.at_most, without_trace.outcome) == (slow, slow, outcome)


def test_the_two_clients_rules_differ_by_one_sample(tmp_path: Path) -> None:
    directory = _end_to_end(662, 1).run(tmp_path)
    latencies = traced_latencies_ms(directory / TRACE)["end_to_end"].tolist()
    assert read_logs(directory).validity == "VALID"
    loadgen, endpoints = (early_stopping_latency(latencies, 0.99, client) for client in ("loadgen", "endpoints"))
    assert loadgen is not None
    assert endpoints is not None
    assert loadgen <= LIMIT_MS < endpoints


def test_a_verdict_names_the_count_and_not_the_rate(tmp_path: Path) -> None:
    verdict = judge_loadgen(_end_to_end(300, 0).run(tmp_path), benchmark("qwen3-vl-235b-a22b"), "Server", ROUND)
    texts = [reason.text() for reason in verdict.reasons]
    assert verdict.verdict == "INVALID"
    assert any(
        text.startswith("too few queries for p99: wanted 459 with none over, got 300. run for longer") for text in texts
    )
    assert not any("Reduce target QPS" in text for text in texts)

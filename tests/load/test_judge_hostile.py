"""`judge_directory` on files of others that were edited, cut or mixed: never VALID, and never an unexpected error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.logs import DETAIL, SUMMARY
from tests.load.test_judge_directory import INTERACTIVE, _as_if_full, _endpoints, _series, _short_copy, texts

if TYPE_CHECKING:
    from pathlib import Path

NAN, INF = float("nan"), float("inf")
TPOT = "result_time_per_output_token_{}_percentile_ns"
GPT_OSS = Wanted("gpt-oss-120b", "Interactive")


# -- any LoadGen's --


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({TPOT.format("99.00"): NAN}, "cut or garbled"),
        ({TPOT.format("99.00"): 16_000_000}, "percentiles that do not rise"),
        ({"result_time_to_output_token_min": -1}, "wanted a number of 0 or more, got"),
        ({"result_query_count": INF, "generated_query_count": INF}, "cut or garbled"),
        ({"result_query_count": 10**15, "generated_query_count": 10**15}, "1000000000000000 queries"),
        ({TPOT.format("99.00"): 10**400}, "OverflowError"),
        ({"result_completed_tokens_per_second": "many"}, "wanted a number of 0 or more, got 'many'"),
    ],
)
def test_a_value_that_no_test_can_show_is_no_measurement(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    logs = _as_if_full(_short_copy(tmp_path), **changes)
    with pytest.raises(MeasureError) as caught:
        judge_directory(logs, GPT_OSS)
    assert said in str(caught.value)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"early_stopping_met": False}, "got early_stopping_met false"),
        ({"result_perf_constraints_met": False}, "got result_perf_constraints_met false"),
        ({"result_invalid_reason": "TPOT"}, "got TPOT"),
    ],
)
def test_logs_that_call_it_valid_agree_on_it(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    logs = _short_copy(tmp_path)
    with (logs / DETAIL).open("a") as log:
        log.write(':::MLLOG {"key": "result_invalid_reason", "value": "", "metadata": {}}\n')
    assert judge_directory(_as_if_full(logs), GPT_OSS).verdict == "VALID"
    verdict = judge_directory(_as_if_full(logs, **changes), GPT_OSS)
    assert (verdict.verdict, said in texts(verdict)) == ("INVALID", True)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Result is : VALID", "Result is : INVALID", "'Result is : INVALID', and VALID in"),
        (
            "No errors encountered during test.",
            "3 ERRORS encountered. See detailed log.",
            "'3 ERRORS encountered. See detailed log.', and 0 in",
        ),
    ],
)
def test_another_tests_summary_is_seen(tmp_path: Path, old: str, new: str, said: str) -> None:
    logs = _as_if_full(_short_copy(tmp_path))
    text = (logs / SUMMARY).read_text()
    assert old in text
    (logs / SUMMARY).write_text(text.replace(old, new))
    assert f"got {said} {DETAIL}" in texts(judge_directory(logs, GPT_OSS))


@pytest.mark.loadgen
def test_logs_of_two_tests_in_one_file_are_refused(tmp_path: Path) -> None:
    logs = _as_if_full(_short_copy(tmp_path))
    first = (logs / DETAIL).read_text()
    (logs / DETAIL).write_text(
        first.replace('"result_validity", "value": "VALID"', '"result_validity", "value": "INVALID"') + first
    )
    with pytest.raises(MeasureError, match="result_validity twice, as INVALID and VALID: logs of two tests"):
        judge_directory(logs, GPT_OSS)


@pytest.mark.loadgen
def test_a_trace_hides_nothing_that_the_log_shows(tmp_path: Path) -> None:
    slow = {f"result_first_token_{share}_percentile_latency_ns": 3e9 for share in ("99.00", "99.90")}
    logs = _as_if_full(_short_copy(tmp_path), **slow, result_first_token_max_latency_ns=3e9)
    entry = '{"name":"Token_Latency","args":{"issue_delay":0,"issue_to_done":%d}},\n'
    (logs / "mlperf_log_trace.json").write_text(entry % 100 * 462)
    assert "ttft within 2000 ms: wanted at most 0 of 462 over" in texts(judge_directory(logs, GPT_OSS))
    (logs / "mlperf_log_trace.json").write_text(entry % -100 * 462)
    with pytest.raises(MeasureError, match="a latency below 0"):
        judge_directory(logs, GPT_OSS)


@pytest.mark.loadgen
def test_without_the_judged_percentile_nothing_is_judged(tmp_path: Path) -> None:
    logs = _as_if_full(_short_copy(tmp_path))
    kept = [line for line in (logs / DETAIL).read_text().splitlines(keepends=True) if TPOT.format("99.00") not in line]
    (logs / DETAIL).write_text("".join(kept))
    assert "tpot within 15 ms: wanted its percentiles, got not logged" in texts(judge_directory(logs, GPT_OSS))


@pytest.mark.loadgen
def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    logs = _as_if_full(_short_copy(tmp_path))
    (logs / SUMMARY).unlink()
    os.mkfifo(logs / SUMMARY)
    os.mkfifo(logs / "mlperf_log_trace.json")
    assert "got none, or an empty one" in texts(judge_directory(logs, GPT_OSS))
    with pytest.raises(ConfigError, match="there is no directory"):
        judge_directory(tmp_path / ("x" * 5000))


# -- endpoints' --


@pytest.mark.parametrize(
    ("config", "summary", "said"),
    [
        ({}, {"latency": _series(2000, 2000) | {"early_stopping_percentiles": {"99.0": 1e9}}}, "plain p99 2000.0 ms"),
        ({}, {"n_samples_issued": 661, "n_samples_completed": 661}, "too few queries for p99"),
        ({}, {"n_samples_completed": 24_100}, "failed requests: wanted 0, got 100 of 24000"),
        ({"settings.runtime.min_duration_ms": NAN}, {}, "setting min_duration_ms"),
    ],
)
def test_edited_results_of_endpoints_are_invalid(
    tmp_path: Path, config: dict[str, Any], summary: dict[str, Any], said: str
) -> None:
    verdict = judge_directory(_endpoints(tmp_path / "x", config, **summary), INTERACTIVE)
    assert (verdict.verdict, said in texts(verdict)) == ("INVALID", True)


@pytest.mark.parametrize(
    "summary",
    [
        {"latency": _series(1000, NAN)},
        {"latency": _series(NAN, 1000)},
        {"latency": {"min": -3, "max": -1, "percentiles": {"99.0": -2}, "early_stopping_percentiles": {"99.0": 1}}},
        {"duration_ns": INF},
        {"n_samples_issued": INF},
        {"qps": "abc"},
        {"tps": [1]},
        {"complete": None},
        {"state": "interrupted"},
    ],
)
def test_garbled_results_of_endpoints_are_no_measurement(tmp_path: Path, summary: dict[str, Any]) -> None:
    with pytest.raises(MeasureError):
        judge_directory(_endpoints(tmp_path / "x", **summary), INTERACTIVE)


def test_nested_without_end_is_no_measurement(tmp_path: Path) -> None:
    deep = _endpoints(tmp_path / "x")
    (deep / "config.yaml").write_text("{a: " * 3000)
    with pytest.raises(MeasureError):
        judge_directory(deep, INTERACTIVE)


def test_results_of_endpoints_do_not_hide_another_test(tmp_path: Path) -> None:
    both = _endpoints(tmp_path / "x")
    (both / "verdict.json").write_text('{"verdict": "FAILED", "reasons": []}')
    with pytest.raises(ConfigError, match="results of endpoints and another test"):
        judge_directory(both, INTERACTIVE)

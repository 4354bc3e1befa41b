"""`judge_directory` on files that somebody edited, cut, mixed or moved: never VALID, and never an unexpected error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError, ExitCode, MeasureError
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.logs import DETAIL, SUMMARY
from dynamo_mlperf.load.settings import below_rules, build_settings
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import TransferEvidence
from tests.fakes.odd_files import ODD
from tests.fakes.oracle import Script
from tests.load.test_judge_directory import (
    INTERACTIVE,
    _as_if_full,
    _endpoints,
    _series,
    _short_copy,
    run_to_judge,
    texts,
)

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


# -- ours --


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disaggregated run of ours by lowered rules, made once."""
    root = tmp_path_factory.mktemp("made")
    lowered = Reduction(min_duration_s=0.5, samples=64, percentile=90, latency_limit_ms=5000)
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 100, 64, lowered)
    run_to_judge(root, settings, Script(ttft_ms=20, tpot_ms=1, tokens=3), [f"sample {n}" for n in range(64)])
    proven = TransferEvidence(
        disaggregated=True, proof="kv-counters", requests=64, prefill_requests=64, remote_prefills=64,
        prompt_tokens=640, external_tokens=640, kv_bytes=1, transfers=64,
    )  # fmt: skip
    (root / "evidence.json").write_text(json.dumps({"transfer": dataclasses.asdict(proven)}))
    (root / "topology.yaml").write_text(
        "engine: vllm\nroles: {prefill: {workers: 1}, decode: {workers: 1}}\nreduced: {samples: 64}\n"
        "measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive}\n"
    )
    (root / "commands.jsonl").write_text(json.dumps({"argv": ["python", "-m", "dynamo.vllm"]}) + "\n")
    theirs = judge(root / "loadgen", settings, proven, "reduced", str(root))
    (root / "verdict.json").write_text(json.dumps({**theirs.as_json(), "verdict": "VALID", "reasons": []}))
    return root


@pytest.fixture
def ours(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _end(text: str) -> Callable[[Path], None]:
    """Another end for one query."""

    def edit(root: Path) -> None:
        lines = (root / "loadgen" / "queries.csv").read_text().splitlines()
        cells = lines[5].split(",")
        cells[4] = text
        lines[5] = ",".join(cells)
        (root / "loadgen" / "queries.csv").write_text("\n".join(lines) + "\n")

    return edit


def _unreduced(root: Path) -> None:
    _edit(root / "measure.json", lambda spec: spec["settings"].update(reduced=False))
    topology = root / "topology.yaml"
    topology.write_text(topology.read_text().replace("reduced: {samples: 64}\n", ""))


def _engine(root: Path, engine: str, started: str) -> None:
    topology = root / "topology.yaml"
    topology.write_text(topology.read_text().replace("engine: vllm", f"engine: {engine}"))
    (root / "commands.jsonl").write_text(json.dumps({"argv": ["nice", "python", "-m", started]}) + "\n")


def _other_sample(root: Path) -> None:
    lines = (root / "loadgen" / "queries.csv").read_text().splitlines()
    lines[5] = ",".join([lines[5].split(",")[0], str(5 * 10**9), *lines[5].split(",")[2:]])
    (root / "loadgen" / "queries.csv").write_text("\n".join(lines) + "\n")


def _lost_at_the_end(root: Path) -> None:
    log = root / "loadgen" / DETAIL
    log.write_text(log.read_text().replace('"result_query_count", "value": 64', '"result_query_count", "value": 63'))


def _side_test(root: Path, recorded: str | None, found: str) -> None:
    _edit(root / "verdict.json", lambda it: it.update(tests={"TEST06": recorded} if recorded else {}))
    (root / "TEST06").mkdir()
    (root / "TEST06" / "result.json").write_text(json.dumps({"verdict": found}))


INVALID: dict[str, tuple[Callable[[Path], object], str]] = {
    "evidence lost": (
        lambda root: (root / "evidence.json").unlink(),
        "proof of disaggregation: wanted engine counters, got no evidence.json. copy the whole run directory",
    ),
    "evidence of another kind": (
        lambda root: _edit(root / "evidence.json", lambda it: it["transfer"].update(disaggregated=False, proof="none")),
        "proof of disaggregation",
    ),
    "class": (_unreduced, "class of the result: wanted settings of the rules, got lowered: min_duration_ms"),
    "engine": (lambda root: _engine(root, "mocker", "dynamo.vllm"), "class of the result: wanted reduced, as the run"),
    "reasons lost": (
        lambda root: (root / "verdict.json").write_text('{"verdict": "INVALID", "reasons": []}'),
        "verdict of the run itself",
    ),
    "failure hidden": (
        lambda root: _edit(root / "loadgen" / "client.json", lambda it: it["failed"].append({"sample": 1})),
        "failed requests in both files",
    ),
    "sample far outside": (_other_sample, "equal issue"),
    "queries lost at the end": (_lost_at_the_end, "queries that ended by LoadGen's log: wanted 64, got 63"),
    "another rate recorded": (
        lambda root: _edit(root / "verdict.json", lambda it: it.update(target_qps=99)),
        "figures that the run itself recorded: wanted those of its files, got others: target_qps",
    ),
    "a test that did not pass": (
        lambda root: _side_test(root, "VALID", "INVALID"),
        "TEST06 test: wanted VALID, as the run itself recorded, got INVALID in its result.json",
    ),
    "a test that is gone": (
        lambda root: _edit(root / "verdict.json", lambda it: it.update(tests={"accuracy": "VALID"})),
        "accuracy test: wanted VALID, as the run itself recorded, got none in its result.json",
    ),
}


@pytest.mark.loadgen
@pytest.mark.parametrize("name", INVALID)
def test_a_tampered_run_of_ours_is_invalid(ours: Path, name: str) -> None:
    edit, said = INVALID[name]
    edit(ours)
    verdict = judge_directory(ours)
    assert (verdict.verdict, said in texts(verdict)) == ("INVALID", True)


@pytest.mark.loadgen
def test_a_test_that_verdict_json_lost_counts_all_the_same(ours: Path) -> None:
    _side_test(ours, None, "INVALID")
    verdict = judge_directory(ours)
    assert (verdict.tests, verdict.exit_code) == ({"TEST06": "INVALID"}, ExitCode.INVALID)


@pytest.mark.loadgen
@pytest.mark.parametrize("end", ["", "nan", "inf", "-5", "1" + "0" * 400])
def test_a_query_without_an_end_is_no_measurement(ours: Path, end: str) -> None:
    _end(end)(ours)
    assert judge_directory(ours).verdict == "FAILED"


@pytest.mark.loadgen
@pytest.mark.parametrize("left", [[], [{"name": "loadgen", "role": "loadgen", "cpu_s": 1.0}], ["http"]])
def test_an_account_without_a_client_process_is_none(ours: Path, left: list[object]) -> None:
    _edit(ours / "loadgen" / "client.json", lambda it: it.update(processes=left))
    assert judge_directory(ours).verdict == "FAILED"


def _pipe(root: Path) -> None:
    (root / "loadgen" / "queries.csv").unlink()
    os.mkfifo(root / "loadgen" / "queries.csv")


def _counted(**counts: object) -> Callable[[Path], None]:
    return lambda root: _edit(root / "evidence.json", lambda it: it["transfer"].update(counts))


def _cut_topology(root: Path) -> None:
    text = (root / "topology.yaml").read_text()
    (root / "topology.yaml").write_text(text[: text.index("measure:")])


NOTHING: dict[str, Callable[[Path], object]] = {
    "requests in words": _counted(requests="64"),
    "bytes in a list": _counted(kv_bytes=[1]),
    "more than can be counted": _counted(kv_bytes=10**400),
    "not a number": _counted(transfers=NAN),
    "an unknown proof": _counted(proof="trust me"),
    "a topology that is cut": _cut_topology,
    "a process without a command": lambda root: (root / "commands.jsonl").write_text('{"argv": {}}\n'),
    "rate of 0": lambda root: _edit(root / "measure.json", lambda it: it["settings"].update(target_qps=0)),
    "another engine": lambda root: _engine(root, "vllm", "dynamo.mocker"),
    "no settings": lambda root: (root / "measure.json").unlink(),
    "no topology": lambda root: (root / "topology.yaml").unlink(),
    "cut settings": lambda root: (root / "measure.json").write_text("{"),
    "another scenario": lambda root: _edit(root / "measure.json", lambda it: it["settings"].update(scenario="Offline")),
    "an unknown verdict": lambda root: (root / "verdict.json").write_text('{"verdict": "valid", "reasons": []}'),
    "a pipe": _pipe,
}


@pytest.mark.loadgen
@pytest.mark.parametrize("name", NOTHING)
def test_a_spoilt_run_of_ours_is_no_measurement(ours: Path, name: str) -> None:
    NOTHING[name](ours)
    with pytest.raises(MeasureError) as caught:
        judge_directory(ours)
    assert ("without its" in caught.value.what) == name.startswith("no ")


@pytest.mark.loadgen
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "file",
    [
        *("topology.yaml", "verdict.json", "evidence.json", "commands.jsonl", "measure.json"),
        *("loadgen/queries.csv", "loadgen/client.json", f"loadgen/{DETAIL}"),
    ],
)
def test_an_odd_file_in_the_place_of_a_record_is_no_measurement(ours: Path, file: str, odd: str) -> None:
    """None is waited for or read without end, and none hides what the record said."""
    path = ours / file
    path.unlink(missing_ok=True)
    ODD[odd](path)
    found = "no measurement"
    with contextlib.suppress(MeasureError):
        found = judge_directory(ours).verdict
    assert found in ("no measurement", "FAILED")


@pytest.mark.loadgen
def test_its_logs_alone_are_not_judged_as_somebody_elses(ours: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(ours / "loadgen", tmp_path / "elsewhere")
    for said in (None, Wanted(benchmark="qwen3-vl-235b-a22b", scenario="Server")):
        with pytest.raises(MeasureError, match=r"is part of a run of ours .* whatever --benchmark and --scenario say"):
            judge_directory(moved, said)


@pytest.mark.parametrize("scenario", ["Offline", "Server", "Interactive"])
@pytest.mark.parametrize("name", ["qwen3-vl-235b-a22b", "gpt-oss-120b", "deepseek-r1", "llama2-70b-99.9"])
def test_settings_of_the_rules_are_not_below_them(name: str, scenario: str) -> None:
    full = build_settings(benchmark(name), scenario, 10, 100_000)
    assert below_rules(full) == []
    assert below_rules(dataclasses.replace(full, min_duration_ms=1)) == ["min_duration_ms"]
    longer = dataclasses.replace(full, min_duration_ms=full.min_duration_ms + 1, performance_sample_count=99_999)
    assert below_rules(longer) == []

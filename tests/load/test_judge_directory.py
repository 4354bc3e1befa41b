"""`judge_directory`: ours as the run judged itself, others' by the full rules, and what is no measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import TransferEvidence, Verdict
from tests.fakes.loadgen_logs import write_summary
from tests.fakes.oracle import Oracle, Script
from tests.fakes.stub_sut import StubPlan

V6_0_SEEDS = {
    "effective_qsl_rng_seed": 2465351861681999779,
    "effective_sample_index_rng_seed": 14276810075590677512,
    "effective_schedule_rng_seed": 3936089224930324775,
}
DEPLOYED = "roles: {prefill: {}, decode: {}}\nmeasure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive}\n"
ROUTED = TransferEvidence(disaggregated=True, proof="routing only", requests=64, prefill_requests=64)


def texts(verdict: Verdict) -> str:
    return "\n".join(reason.text() for reason in verdict.reasons)


# -- ours --


def run_to_judge(root: Path, settings: LoadSettings, script: Script, samples: list[str], max_tokens: int = 50) -> None:
    """A run directory as a job leaves it, less what the judge does not read."""
    bodies = (chat_body("m", [{"role": "user", "content": text}], max_tokens) for text in samples)
    write_requests(root / "requests.bin", bodies)
    with Oracle(script) as oracle:
        spec = MeasureSpec(settings, root / "requests.bin", (("127.0.0.1", oracle.port),), root / "loadgen")
        (root / "measure.json").write_text(json.dumps(spec.to_json()))
        argv = [sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(root / "measure.json")]
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.loadgen
@pytest.mark.parametrize("slow", [1, 2])
def test_our_run_gets_the_verdict_it_gave_and_one_sample_decides(tmp_path: Path, slow: int) -> None:
    lowered = Reduction(min_duration_s=0.5, samples=64, percentile=90, latency_limit_ms=900)
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 100, 64, lowered)
    samples = [f"sample {n}" + (" fault=slow" if n < slow else "") for n in range(64)]
    run_to_judge(tmp_path, settings, Script(ttft_ms=180, tpot_ms=1, tokens=3), samples)
    (tmp_path / "evidence.json").write_text(json.dumps({"transfer": dataclasses.asdict(ROUTED)}))
    (tmp_path / "topology.yaml").write_text(f"engine: mocker\n{DEPLOYED}reduced: {{samples: 64}}\n")
    (tmp_path / "commands.jsonl").write_text('{"process": "decode-0", "argv": ["python", "-m", "dynamo.mocker"]}\n')
    (tmp_path / "events.jsonl").write_text('{"event": "process_started", "process": "decode-0"}\n')
    theirs = judge(tmp_path / "loadgen", settings, ROUTED, "rehearsal", str(tmp_path))
    theirs = dataclasses.replace(theirs, model="tiny-model")
    (tmp_path / "verdict.json").write_text(json.dumps(theirs.as_json()))
    ours = judge_directory(tmp_path)
    assert ours.as_json() == theirs.as_json(), "which may be INVALID for a client that a busy machine held up"
    assert (ours.result_class, ours.latency_p99_ms["end_to_end"].over_limit) == ("rehearsal", slow)
    assert ("end_to_end within 900 ms: wanted at most 1 of 64 over, got 2 over" in texts(ours)) == (slow == 2)
    assert judge_directory(tmp_path / "loadgen").as_json() == ours.as_json(), "the folder of the logs is as good"
    lost = {"check": "workers lost", "wanted": "none", "got": "decode-1", "action": "run again", "text": "x"}
    theirs_json = theirs.as_json()
    more = {
        **theirs_json,
        "verdict": "INVALID",
        "reasons": [*theirs_json["reasons"], lost],
        "notes": ["lost: decode-1"],
    }
    (tmp_path / "verdict.json").write_text(json.dumps(more))
    knew = judge_directory(tmp_path)
    assert (knew.verdict, knew.reasons[-1].got, knew.notes[-1]) == ("INVALID", "decode-1", "lost: decode-1")
    other = "VALID" if ours.verdict == "INVALID" else "INVALID"
    (tmp_path / "verdict.json").write_text(json.dumps({"verdict": other, "reasons": []}))
    robbed = judge_directory(tmp_path)
    if other == "VALID":
        assert "the run itself recorded VALID" in robbed.notes[-1]
    else:
        assert texts(robbed).startswith("verdict of the run itself: wanted VALID, got INVALID")
    (tmp_path / "verdict.json").write_text(json.dumps({"verdict": "FAILED", "reasons": [lost]}))
    with pytest.raises(MeasureError, match="FAILED: decode-1"):
        judge_directory(tmp_path)
    (tmp_path / "verdict.json").unlink()
    with pytest.raises(MeasureError, match="did not come to its verdict"):
        judge_directory(tmp_path)
    with pytest.raises(ConfigError, match="was made for --scenario Interactive, not Server"):
        judge_directory(tmp_path, Wanted(scenario="Server"))


def test_a_run_that_failed_or_never_ended_is_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text("engine: vllm\n")
    with pytest.raises(MeasureError, match="did not come to its verdict"):
        judge_directory(tmp_path)
    reason = {"check": "run", "wanted": "a measurement", "got": "decode-0 died", "action": "read logs/decode-0.log"}
    (tmp_path / "verdict.json").write_text(json.dumps({"verdict": "FAILED", "reasons": [reason]}))
    with pytest.raises(MeasureError, match="FAILED: decode-0 died") as caught:
        judge_directory(tmp_path)
    assert caught.value.action == "read logs/decode-0.log"


# -- any LoadGen's --


def _short(directory: Path) -> Path:
    conf = (
        "*.Server.target_qps = 1000\n*.Server.min_duration = 100\n"
        "*.Server.min_query_count = 462\n*.*.performance_sample_count_override = 66\n"
    )
    return StubPlan("gpt-oss-120b-interactive", conf, 66).run(directory)


def _as_if_full(directory: Path, **changes: Any) -> Path:
    """The log of a short test, with the numbers that a full one shows: a test here cannot take ten minutes."""
    values = {
        "effective_min_duration_ms": 600_000,
        "effective_performance_sample_count": 6396,
        "result_completed_samples_per_sec": 0.7,
        "result_completed_tokens_per_second": 0.7 * 1278,
        **changes,
    }
    lines = (directory / DETAIL).read_text().splitlines()
    for number, line in enumerate(lines):
        entry = json.loads(line.removeprefix(":::MLLOG "))
        if entry["key"] in values:
            lines[number] = ":::MLLOG " + json.dumps({**entry, "value": values[entry["key"]]})
    (directory / DETAIL).write_text("\n".join(lines) + "\n")
    with contextlib.suppress(MeasureError):
        write_summary(directory)
    return directory


@pytest.mark.loadgen
def test_a_foreign_log_is_recognised_and_held_to_the_full_rules(tmp_path: Path) -> None:
    verdict = judge_directory(_short(tmp_path / "logs"))
    assert (verdict.verdict, verdict.benchmark, verdict.scenario) == ("INVALID", "gpt-oss-120b", "Interactive")
    checks = [reason.check for reason in verdict.reasons]
    assert checks == ["setting effective_min_duration_ms", "setting effective_performance_sample_count", "duration"]
    assert verdict.reasons[0].text().startswith("setting effective_min_duration_ms: wanted 600000 or more, got 100")
    assert sum(note.startswith("not checked: ") for note in verdict.notes) == 3
    assert set(verdict.latency_p99_ms) == {"ttft", "tpot"}


@pytest.mark.loadgen
def test_a_full_foreign_log_is_valid_and_says_what_was_not_checked(tmp_path: Path) -> None:
    logs = _as_if_full(_short(tmp_path / "results" / "x" / "gpt-oss-120b" / "Interactive" / "performance" / "run_1"))
    verdict = judge_directory(logs.parents[1])
    assert (verdict.verdict, texts(verdict), verdict.result_class) == ("VALID", "", "official")
    assert "not checked: failed requests: LoadGen counts an answer with an error as completed" in verdict.notes
    later = judge_directory(logs, Wanted(round_name="v6.0"))
    assert [reason.check for reason in later.reasons] == [f"setting {key}" for key in V6_0_SEEDS]
    assert later.reasons[0].action == "these are the seeds of v6.1: judge it with --round v6.1"
    _as_if_full(logs, **V6_0_SEEDS)
    assert judge_directory(logs, Wanted(round_name="v6.0")).verdict == "VALID"
    assert "these are the seeds of v6.0: judge it with --round v6.0" in texts(judge_directory(logs))


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"effective_schedule_rng_seed": 1}, "setting effective_schedule_rng_seed: wanted 16159082839903944936 (round v6.1), got 1"),
        ({"requested_server_tpot_latency": 15_000_001}, "setting requested_server_tpot_latency: wanted 15000000 or less"),
        ({"requested_server_ttft_latency": 0}, "setting requested_server_ttft_latency: wanted 2000000000 or less, got 0"),
        ({"effective_target_latency_percentile": 0.97}, "wanted 0.99 or more, got 0.97"),
        ({"effective_sample_concatenate_permutation": False}, "setting effective_sample_concatenate_permutation: wanted True"),
        ({"requested_use_token_latencies": False}, "setting requested_use_token_latencies: wanted True"),
        ({"effective_performance_issue_same": True}, "setting effective_performance_issue_same: wanted False"),
        ({"effective_test_mode": "FindPeakPerformance"}, "setting effective_test_mode"),
        ({"effective_scenario": "MultiStream"}, "setting effective_scenario: wanted Server, got MultiStream"),
        ({"result_completed_samples_per_sec": 0.8}, "duration: wanted 600 s or more, got 576.250 s"),
        ({"result_query_count": 461}, "queries that LoadGen issued: wanted 462, got 461"),
        ({"num_errors": 3}, "error entries in LoadGen's log: wanted 0, got 3"),
        ({"result_validity": "INVALID"}, "LoadGen's result: wanted VALID, got INVALID. see mlperf_log_summary.txt"),
        (
            {"result_time_per_output_token_99.00_percentile_ns": 16e6, "result_time_per_output_token_99.90_percentile_ns": 17e6, "result_time_to_output_token_max": 17e6},
            "tpot within 15 ms: wanted at most 0 of 462 over, got 5 to",
        ),
    ],
)  # fmt: skip
def test_each_rule_alone_makes_a_foreign_log_invalid(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    logs = _as_if_full(_short_copy(tmp_path), **changes)
    verdict = judge_directory(logs, Wanted("gpt-oss-120b", "Interactive"))
    assert verdict.verdict == "INVALID"
    assert text in texts(verdict)


_SHORT: dict[str, str] = {}


def _short_copy(directory: Path) -> Path:
    """The logs of one real test, made once."""
    if not _SHORT:
        _SHORT.update({path.name: path.read_text() for path in _short(directory / "made").glob("mlperf_log_*.txt")})
    copy = directory / "copy"
    copy.mkdir()
    for name, text in _SHORT.items():
        (copy / name).write_text(text)
    return copy


@pytest.mark.loadgen
def test_what_the_percentiles_leave_open_is_said(tmp_path: Path) -> None:
    slow = {"result_first_token_99.90_percentile_latency_ns": 3e9, "result_first_token_max_latency_ns": 3e9}
    counts = {"generated_query_count": 24_576, "result_query_count": 24_576, "result_completed_samples_per_sec": 40}
    logs = _as_if_full(_short_copy(tmp_path), **slow, **counts)
    verdict = judge_directory(logs)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    assert (
        "not checked to the last sample: ttft: 25 to 245 of 24576 over the limit by LoadGen's percentiles, 209 may be; "
        "LoadGen itself says early stopping met"
    ) in verdict.notes
    wrong = _as_if_full(logs, result_completed_tokens_per_second=40 * 20_000)
    assert "an accuracy run like this one would not pass: mean output tokens per sample: wanted at most 10998.9" in (
        "\n".join(judge_directory(wrong).notes)
    )


@pytest.mark.loadgen
def test_an_accuracy_run_covers_its_data_set(tmp_path: Path) -> None:
    conf = "*.Server.target_qps = 100000\n"
    whole = StubPlan("deepseek-r1", conf, 4388, accuracy=True).run(tmp_path / "deepseek-r1" / "Server")
    verdict = judge_directory(whole)
    assert (verdict.verdict, texts(verdict), verdict.completed_qps) == ("VALID", "", None)
    cut = _as_if_full(whole, generated_query_count=4387)
    assert texts(judge_directory(cut)).startswith("samples issued: wanted 4388, got 4387")
    part = StubPlan("deepseek-r1", conf, 100, accuracy=True).run(tmp_path / "part" / "deepseek-r1" / "Server")
    assert "setting effective_accuracy_sample_count: wanted 4388, got 100" in texts(judge_directory(part))


# -- endpoints' --


def _series(percentile_ms: float, stopped_ms: float | None) -> dict[str, Any]:
    high = max(percentile_ms, stopped_ms or 0) * 1e6
    return {
        "min": 1e6, "max": high, "avg": 2e6,
        "percentiles": {"99.0": percentile_ms * 1e6, "50.0": 2e6},
        "early_stopping_percentiles": {"99.0": None if stopped_ms is None else stopped_ms * 1e6},
    }  # fmt: skip


def _endpoints(directory: Path, config: dict[str, Any] | None = None, **summary: Any) -> Path:
    """A run of endpoints in the shape of its 0.1.0, with what a test changes."""
    runtime = {
        "min_duration_ms": 600_000,
        "scheduler_random_seed": 16159082839903944936,
        "dataloader_random_seed": 2747215439041700203,
    }
    used = {key: runtime[key] for key in ("scheduler_random_seed", "dataloader_random_seed")}
    settings: dict[str, Any] = {
        "submission_ref": {"model": "qwen3-vl-235b-a22b", "ruleset": "mlperf-inference-v6.1"},
        "model_params": {"name": "Qwen/Qwen3-VL-235B-A22B-Instruct", "streaming": "on"},
        "settings": {"runtime": runtime, "load_pattern": {"type": "poisson", "target_qps": 40.0}},
    }
    for key, value in (config or {}).items():
        place = settings
        *parents, last = key.split(".")
        for parent in parents:
            place = place[parent]
        place[last] = value
    values = {
        "n_samples_issued": 24_000, "n_samples_completed": 24_000, "n_samples_failed": 0, "duration_ns": 601_000_000_000,
        "complete": True, "state": "complete", "qps": 39.9, "tps": 1700.0,
        "latency": _series(1457, 1487), "ttft": _series(300, 310), "tpot": _series(9, 10),
        "run_config": used,
        **summary,
    }  # fmt: skip
    (directory / "performance").mkdir(parents=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(settings))
    (directory / "performance" / "result_summary.json").write_text(json.dumps(values))
    return directory


INTERACTIVE = Wanted(scenario="Interactive")


def test_a_run_of_endpoints_is_judged_by_its_early_stopping_percentile(tmp_path: Path) -> None:
    verdict = judge_directory(_endpoints(tmp_path / "good"), INTERACTIVE)
    assert (verdict.verdict, texts(verdict), verdict.completed_qps) == ("VALID", "", 39.9)
    latency = verdict.latency_p99_ms["end_to_end"]
    assert (latency.plain, latency.early_stopping, latency.over_limit_allowed) == (1457, 1487, 203)
    assert sum(note.startswith("not checked: ") for note in verdict.notes) == 3
    slow = judge_directory(_endpoints(tmp_path / "slow", latency=_series(1472, 1504)), INTERACTIVE)
    assert texts(slow) == (
        "end_to_end within 1500 ms: wanted early-stopping p99 within it, got early-stopping p99 1504.0 ms, "
        "plain p99 1472.0 ms. the plain percentile is within it: run for longer, or lower target_qps a little"
    )


@pytest.mark.parametrize(
    ("config", "summary", "text"),
    [
        ({}, {"n_samples_failed": 1}, "failed requests: wanted 0, got 1 of 24000"),
        ({}, {"n_samples_completed": 23_990}, "failed requests: wanted 0, got 10 of 24000"),
        ({}, {"duration_ns": 599_000_000_000}, "duration: wanted 600 s or more, got 599.000 s"),
        ({}, {"latency": _series(1457, None)}, "too few queries for p99: wanted 662 with none over"),
        ({}, {"latency": {}}, "end_to_end within 1500 ms: wanted its p99, got not measured"),
        ({"settings.runtime.scheduler_random_seed": 42}, {}, "setting scheduler_random_seed: wanted 16159082839903944936 (round v6.1), got 42"),
        ({}, {"run_config": {"dataloader_random_seed": 42}}, "setting dataloader_random_seed as used: wanted 2747215439041700203"),
        ({"settings.runtime.min_duration_ms": 60_000}, {}, "setting min_duration_ms: wanted 600000 or more, got 60000"),
        ({"settings.load_pattern.type": "concurrency"}, {}, "setting load_pattern.type: wanted poisson, got concurrency"),
    ],
)  # fmt: skip
def test_each_rule_alone_makes_a_run_of_endpoints_invalid(
    tmp_path: Path, config: dict[str, Any], summary: dict[str, Any], text: str
) -> None:
    verdict = judge_directory(_endpoints(tmp_path / "x", config, **summary), INTERACTIVE)
    assert verdict.verdict == "INVALID"
    assert text in texts(verdict)
    assert len(verdict.reasons) == 1


def test_ttft_and_tpot_of_endpoints_are_judged_and_need_streaming(tmp_path: Path) -> None:
    wanted = Wanted("gpt-oss-120b", "Interactive")
    assert judge_directory(_endpoints(tmp_path / "good"), wanted).verdict == "VALID"
    exactly = judge_directory(_endpoints(tmp_path / "exactly", tpot=_series(14, 15)), wanted)
    assert "tpot within 15 ms" in texts(exactly), "the checker wants less than the limit"
    silent = judge_directory(_endpoints(tmp_path / "silent", {"model_params.streaming": "off"}, tpot={}), wanted)
    assert "setting streaming: wanted on, got off" in texts(silent)
    assert "tpot within 15 ms: wanted its p99, got not measured" in texts(silent)


def test_endpoints_may_not_drive_llama2(tmp_path: Path) -> None:
    verdict = judge_directory(_endpoints(tmp_path / "x"), Wanted("llama2-70b-99.9", "Server"))
    assert "load client of llama2-70b-99.9 in v6.1: wanted loadgen, got endpoints" in texts(verdict)


def test_offline_of_endpoints_needs_the_whole_data_set(tmp_path: Path) -> None:
    config = {"settings.load_pattern.type": "max_throughput"}
    part = judge_directory(_endpoints(tmp_path / "part", config))
    assert texts(part) == "samples: wanted 48289 or more, got 24000. write n_samples_to_issue, and run again"
    counts = {"n_samples_issued": 48_289, "n_samples_completed": 48_289}
    assert judge_directory(_endpoints(tmp_path / "whole", config, **counts)).verdict == "VALID"


# -- none --


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"complete": False, "state": "interrupted"})])
def test_half_a_run_of_endpoints_is_no_measurement(tmp_path: Path, text: str) -> None:
    directory = _endpoints(tmp_path / "x")
    (directory / "performance" / "result_summary.json").write_text(text)
    with pytest.raises(MeasureError, match=r"cannot be read|holds no results|did not end"):
        judge_directory(directory, INTERACTIVE)


def test_what_holds_no_measurement_says_so(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="holds no measurement"):
        judge_directory(tmp_path)
    with pytest.raises(ConfigError, match="there is no directory"):
        judge_directory(tmp_path / "none")
    (tmp_path / DETAIL).write_text("")
    with pytest.raises(ConfigError, match=f"{DETAIL} is a file\n  Try: name the directory that holds it: {tmp_path}$"):
        judge_directory(tmp_path / DETAIL)
    with pytest.raises(MeasureError, match="did not start"):
        judge_directory(tmp_path)


@pytest.mark.parametrize("name", ["config.yaml", "performance/result_summary.json"])
@pytest.mark.parametrize("wrong", ["[]", "7", '{"n_samples_issued": "many", "settings": 3}', "\x00"])
def test_records_of_the_wrong_kind_are_no_measurement(tmp_path: Path, name: str, wrong: str) -> None:
    directory = _endpoints(tmp_path / "x")
    (directory / name).write_text(wrong)
    with pytest.raises((MeasureError, ConfigError)):
        judge_directory(directory)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    "key", ["result_query_count", "effective_min_duration_ms", "result_first_token_max_latency_ns"]
)
@pytest.mark.parametrize("wrong", ["text", None, [], {}])
def test_a_log_with_values_of_the_wrong_kind_is_never_valid(tmp_path: Path, key: str, wrong: object) -> None:
    logs = _as_if_full(_short_copy(tmp_path), **{key: wrong})
    try:
        verdict = judge_directory(logs, Wanted("gpt-oss-120b", "Interactive"))
    except MeasureError as error:
        assert str(logs) in error.what  # noqa: PT017
    else:
        assert verdict.verdict == "INVALID"
        if key == "result_first_token_max_latency_ns":
            assert texts(verdict).startswith("ttft within 2000 ms: wanted its percentiles, got not logged")


@pytest.mark.parametrize("name", ["measure.json", "verdict.json", "evidence.json"])
def test_cut_records_of_ours_are_no_measurement(tmp_path: Path, name: str) -> None:
    (tmp_path / "topology.yaml").write_text("engine: mocker\n")
    (tmp_path / name).write_text('{"cut": ')
    with pytest.raises((MeasureError, ConfigError)):
        judge_directory(tmp_path)


@pytest.mark.loadgen
def test_what_cannot_be_told_has_to_be_said(tmp_path: Path) -> None:
    conf = "*.Server.target_qps = 1000\n*.Server.min_duration = 50\n*.*.performance_sample_count_override = 66\n"
    logs = StubPlan("resnet50", conf, 66).run(tmp_path / "logs")
    with pytest.raises(ConfigError, match="does not tell its benchmark and scenario") as caught:
        judge_directory(logs)
    assert caught.value.action == "say it with --benchmark and --scenario"
    assert "setting effective_target_latency_ns" not in texts(
        judge_directory(logs, Wanted("qwen3-vl-235b-a22b", "Server"))
    )
    with pytest.raises(ConfigError, match="has no Interactive scenario in that round"):
        judge_directory(logs, Wanted("qwen3-vl-235b-a22b", "Interactive", "v6.0"))

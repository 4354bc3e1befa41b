"""The verdict of a run of endpoints made here, from files of its shape: VALID as it stands, and INVALID for each change."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.load.account import QUERIES_HEADER
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.endpoints_accuracy import judge_accuracy
from dynamo_mlperf.load.endpoints_config import EndpointsTest, catalogue_data, config, sample_count
from dynamo_mlperf.load.endpoints_run import EndpointsRecord, judge_run
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.record import TransferEvidence, Verdict, write_verdict
from tests.load.test_judge_directory import _endpoints

QPS = 12.0
RULES = benchmark("qwen3-vl-235b-a22b")
SETTINGS = build_settings(RULES, "Interactive", QPS, 8_000, request_timeout_s=60)
NUMBER = sample_count(SETTINGS)
SENT = NUMBER + 8
MOVED = TransferEvidence(
    disaggregated=True, proof="kv-counters", requests=SENT, prefill_requests=SENT, remote_prefills=SENT,
    prompt_tokens=9 * SENT, external_tokens=9 * SENT, kv_bytes=1, transfers=SENT,
)  # fmt: skip
Row = list[Any]


def _config() -> dict[str, Any]:
    test = EndpointsTest(
        SETTINGS, (("10.0.0.1", 20000),), "qwen-0a1b2c", None, catalogue_data("Interactive", whole=True), 8, 2, 1024,
        accuracy=False, pin_cores=False, report_dir="endpoints",
    )  # fmt: skip
    return config(test)


RECORD = EndpointsRecord(SETTINGS, _config(), "0.1.0", "ea3327530376fef63d706f4105612e17c2c80a8d", "0" * 64)


def _rows() -> list[Row]:
    """As endpoints issues them: by its schedule, each sample once; a millisecond to the first token, 800 to the end."""
    rng, at_ms, rows = random.Random(SETTINGS.seeds.schedule), 0.0, []
    for order in range(NUMBER):
        at_ms += int(rng.expovariate(QPS / 1e9)) / 1e6
        rows.append([order, order, at_ms, at_ms + 1, at_ms + 800, 0, 0, ""])
    return rows


ROWS = _rows()


def _summary() -> dict[str, Any]:
    seeds = {"scheduler_random_seed": SETTINGS.seeds.schedule, "dataloader_random_seed": SETTINGS.seeds.sample_index}
    latency = {
        "min": 7e8, "max": 9e8, "avg": 8e8,
        "percentiles": {"99.0": 8e8, "50.0": 8e8}, "early_stopping_percentiles": {"99.0": 8.1e8},
    }  # fmt: skip
    return {
        "version": "0.1.0", "git_sha": "ea33275", "n_samples_issued": NUMBER, "n_samples_completed": NUMBER,
        "n_samples_failed": 0, "duration_ns": 660e9, "complete": True, "state": "complete", "qps": 12.01, "tps": 500.0,
        "latency": latency, "run_config": seeds,
    }  # fmt: skip


def _used() -> dict[str, Any]:
    used: dict[str, Any] = yaml.safe_load(yaml.safe_dump(_config()))
    seeds = _summary()["run_config"]
    used["settings"]["runtime"].update(seeds)
    return used


def _write(
    root: Path,
    rows: list[Row] | None = None,
    summary: Mapping[str, Any] | None = None,
    used: Callable[[dict[str, Any]], object] = lambda _value: None,
) -> Path:
    directory = root / "endpoints"
    (directory / "performance").mkdir(parents=True)
    (directory / "performance" / "result_summary.json").write_text(json.dumps({**_summary(), **(summary or {})}))
    value = _used()
    used(value)
    (directory / "config.yaml").write_text(yaml.safe_dump(value))
    lines = [",".join(map(str, row)) for row in (ROWS if rows is None else rows)]
    (directory / "queries.csv").write_text("\n".join([QUERIES_HEADER, *lines]) + "\n")
    (directory / "client.json").write_text(json.dumps({"client": "endpoints", "sent": SENT}))
    return directory


def _judge(directory: Path, transfer: TransferEvidence | None = MOVED, record: EndpointsRecord = RECORD) -> Verdict:
    return judge_run(directory, record, transfer, "official", str(directory))


def _texts(verdict: Verdict) -> str:
    return "\n".join(reason.text() for reason in verdict.reasons)


def _changed(place: int, column: int, value: object) -> list[Row]:
    rows = [list(row) for row in ROWS]
    rows[place][column] = value
    return rows


def _late(row: Row) -> Row:
    """Every 50th sample is issued 40 ms late."""
    return [*row[:2], *(at + 40 * (row[0] % 50 == 0) for at in row[2:5]), *row[5:]]


def test_a_run_by_the_full_rules_is_valid(tmp_path: Path) -> None:
    verdict = _judge(_write(tmp_path))
    assert (verdict.verdict, _texts(verdict), verdict.result_class) == ("VALID", "", "official")
    assert (verdict.requests, verdict.completed_qps, verdict.tokens_per_second) == (NUMBER, 12.01, 500.0)
    latency = verdict.latency_p99_ms["end_to_end"]
    assert (latency.plain, latency.early_stopping, latency.over_limit, latency.over_limit_allowed) == (800, 810, 0, 58)
    assert verdict.client["issued_late_ms"]["max"] < 0.001
    assert verdict.transfer == MOVED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": _changed(7, 7, "HTTP 500")}, f"failed requests: wanted 0, got 1 of {NUMBER} (sample 7: HTTP 500)"),
        ({"rows": _changed(7, 1, 8)}, "equal issue: wanted 8000 samples, equally often, got 7999 samples, each 1 to 2 times"),
        ({"rows": _changed(7, 1, -1)}, "equal issue: wanted 8000 samples"),
        ({"rows": ROWS[:-1]}, f"samples that endpoints issued: wanted {NUMBER}, got {NUMBER} in result_summary.json, {NUMBER - 1} in the event log"),
        ({"summary": {"n_samples_issued": NUMBER + 1}}, f"got {NUMBER + 1} in result_summary.json"),
        ({"rows": [_late(row) for row in ROWS]}, "client-limited: wanted samples issued within 15 ms of their schedule (p99), got 40.0 ms"),
        ({"rows": [[*row[:4], row[4] + 900 * (row[0] % 100 == 0), *row[5:]] for row in ROWS]}, f"end_to_end within 1500 ms: wanted at most 58 over it, got 80 of {NUMBER} over it by the event log"),
        ({"summary": {"version": "0.2.0"}}, "release of endpoints: wanted 0.1.0"),
        ({"summary": {"git_sha": "598dbfd"}}, "release of endpoints: wanted 0.1.0 ea33275"),
        ({"summary": {"duration_ns": 599e9}}, "duration: wanted 600 s or more, got 599.000 s"),
        ({"used": lambda value: value["settings"]["warmup"].update(salt=True)}, "setting settings.warmup.salt: wanted False, got True"),
        ({"used": lambda value: value["model_params"].update(max_new_tokens=10)}, "setting model_params.max_new_tokens: wanted 150, got 10"),
        ({"used": lambda value: value["settings"]["runtime"].update(scheduler_random_seed=42)}, "setting scheduler_random_seed: wanted 16159082839903944936 (round v6.1), got 42"),
    ],
)  # fmt: skip
def test_each_change_makes_it_invalid_and_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    verdict = _judge(_write(tmp_path, **change))
    assert verdict.verdict == "INVALID"
    assert said in _texts(verdict)


def test_failed_requests_are_told_once_and_by_our_count(tmp_path: Path) -> None:
    verdict = _judge(_write(tmp_path, _changed(7, 7, "broken"), {"n_samples_failed": 5}))
    assert [reason.check for reason in verdict.reasons].count("failed requests") == 1
    assert (verdict.failed_requests, verdict.latency_p99_ms["end_to_end"].over_limit) == (1, 1)


def test_the_counters_hold_all_that_was_sent(tmp_path: Path) -> None:
    directory = _write(tmp_path)
    assert "prompts prefilled remotely" in _texts(_judge(directory, replace(MOVED, remote_prefills=NUMBER)))
    assert "proof of disaggregation" in _texts(_judge(directory, TransferEvidence(disaggregated=True, proof="none")))
    assert "nothing is said about disaggregation" in str(_judge(directory, None).notes)


def test_a_lowered_run_is_not_official(tmp_path: Path) -> None:
    lowered = replace(RECORD, settings=replace(SETTINGS, target_latency_ms=3000.0))
    assert "class of the result: wanted settings of the rules" in _texts(_judge(_write(tmp_path), record=lowered))


def test_an_offline_run_that_was_too_short_is_told_its_rate(tmp_path: Path) -> None:
    counts = {"n_samples_issued": 48_289, "n_samples_completed": 48_289, "duration_ns": 200_000_000_000}
    directory = _endpoints(tmp_path / "x", {"settings.load_pattern.type": "max_throughput"}, **counts)
    assert _texts(judge_directory(directory)) == (
        "duration: wanted 600 s or more, got 200.000 s. "
        "set target_qps to about 241.5: endpoints plans an Offline run by it"
    )


def test_a_run_at_a_rate_that_is_too_short_is_told_a_slower_one(tmp_path: Path) -> None:
    counts = {"n_samples_issued": 8000, "n_samples_completed": 8000, "duration_ns": 594_000_000_000}
    directory = _endpoints(tmp_path / "x", {"settings.load_pattern.target_qps": 13.4}, **counts)
    wanted = Wanted(scenario="Interactive")
    (said,) = [text for text in _texts(judge_directory(directory, wanted)).split("\n") if text.startswith("duration")]
    assert said == (
        "duration: wanted 600 s or more, got 594.000 s. set target_qps to 13.199 or less, "
        "or write a larger n_samples_to_issue, in whole data sets"
    )


# -- a whole run directory --


def _run(root: Path) -> Path:
    root.mkdir()
    paths = RunPaths(root)
    report = _write(root)
    paths.topology.write_text(
        "engine: vllm\nroles: {prefill: {}, decode: {}}\n"
        "measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, client: endpoints}\n"
    )
    paths.evidence.write_text(json.dumps({"transfer": asdict(MOVED)}))
    paths.commands.write_text('{"process": "decode-0", "argv": ["python", "-m", "dynamo.vllm"]}\n')
    paths.events.write_text('{"event": "process_started", "process": "decode-0"}\n')
    (root / "endpoints.json").write_text(json.dumps(RECORD.to_json()))
    write_verdict(paths, replace(_judge(report), run_dir=str(root), model="q3vl"))
    return root


def test_judge_gives_a_run_its_own_verdict_again(tmp_path: Path) -> None:
    root = _run(tmp_path / "run")
    for place in (root, root / "endpoints"):
        verdict = judge_directory(place)
        assert (verdict.verdict, _texts(verdict), verdict.scenario) == ("VALID", "", "Interactive")
        assert (verdict.model, verdict.run_dir) == ("q3vl", str(root))
    with pytest.raises(ConfigError, match="this run was made for --scenario Interactive, not Server"):
        judge_directory(root, Wanted(scenario="Server"))
    (root / "evidence.json").unlink()
    assert "proof of disaggregation" in _texts(judge_directory(root))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("endpoints.json", "{"), ("endpoints.json", "[]"), ("endpoints.json", '{"settings": {}}'),
        ("endpoints/queries.csv", "order"), ("endpoints/client.json", '{"sent": true}'), ("endpoints/client.json", "{}"),
        ("endpoints/client.json", '{"sent": NaN}'), ("endpoints/config.yaml", "a: [b"),
        ("endpoints/performance/result_summary.json", "{}"), ("endpoints/performance/result_summary.json", None),
        ("topology.yaml", None), ("verdict.json", None), ("endpoints/queries.csv", None),
    ],
)  # fmt: skip
def test_half_a_run_is_never_valid(tmp_path: Path, name: str, text: str | None) -> None:
    root = _run(tmp_path / "run")
    if text is None:
        (root / name).unlink()
    else:
        (root / name).write_text(text)
    try:
        verdict = judge_directory(root)
    except MeasureError:
        return
    assert verdict.verdict == "FAILED"
    assert verdict.completed_qps is None


# -- its accuracy phase --


def _scores(directory: Path, **changes: Any) -> Path:
    counts = {"issued": 8000, "scored": 8000, "empty": 0, "missing": 0}
    entry = {
        "dataset_type": "accuracy",
        "score": 0.785,
        "total_samples": 8000,
        "complete": True,
        "response_counts": counts,
    }
    (directory / "accuracy").mkdir(exist_ok=True, parents=True)
    value = {"accuracy_scores": [{**entry, **changes}]}
    (directory / "accuracy" / "accuracy_results.json").write_text(json.dumps(value))
    return directory


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": 0.7799}, "F1_HIERARCHICAL: wanted 0.779922 or more, got 0.779900"),
        ({"score": None}, "F1_HIERARCHICAL: wanted 0.779922 or more, got none"),
        ({"total_samples": 44}, "samples: wanted 8000, got 44"),
        ({"complete": False}, "answers scored: wanted 8000"),
        ({"response_counts": {"scored": 7999, "empty": 1, "missing": 0}}, "answers scored: wanted 8000, got 7999 scored, 1 empty, 0 missing"),
    ],
)  # fmt: skip
def test_an_accuracy_phase_answers_everything_and_meets_its_floor(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    settings: LoadSettings = SETTINGS
    assert judge_accuracy(_scores(tmp_path), settings, "official").verdict == "VALID"
    result = judge_accuracy(_scores(tmp_path, **changes), settings, "official")
    assert said in "\n".join(reason.text() for reason in result.reasons)
    written = json.loads((tmp_path / "accuracy" / "result.json").read_text())
    assert (written["test"], written["verdict"]) == ("accuracy", "INVALID")
    if "score" in changes:  # simulated engines write at random
        assert judge_accuracy(tmp_path, settings, "rehearsal").verdict == "VALID"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"accuracy_scores": []}',
        '{"accuracy_scores": [{"dataset_type": "accuracy", "score": "high"}]}',
        '{"accuracy_scores": [{"dataset_type": "accuracy", "score": 1, "total_samples": -4}]}',
    ],
)
def test_scores_that_cannot_be_read_are_no_measurement(tmp_path: Path, text: str) -> None:
    _scores(tmp_path)
    (tmp_path / "accuracy" / "accuracy_results.json").write_text(text)
    with pytest.raises(MeasureError, match="cannot be read"):
        judge_accuracy(tmp_path, SETTINGS, "official")

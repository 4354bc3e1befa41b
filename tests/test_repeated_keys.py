"""A record that is evidence says one thing: where a key stands twice, whoever reads it names the key, and takes neither."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.benchmark.accuracy.answers import AnswerLog
from dynamo_mlperf.benchmark.json_lines import json_lines
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import DynamoMlperfError
from dynamo_mlperf.files import RepeatedKeyError, RunPaths, read_json, read_json_lines, strict_json
from dynamo_mlperf.job.split_record import read_object
from dynamo_mlperf.load import endpoints_run
from dynamo_mlperf.load.endpoints_accuracy import judge_accuracy
from dynamo_mlperf.load.endpoints_answers import accuracy_answers
from dynamo_mlperf.load.endpoints_events import read_events
from dynamo_mlperf.load.endpoints_results import read_results
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.load.queries import read_client
from dynamo_mlperf.load.score_process import read_scores
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.spec import read_spec
from dynamo_mlperf.load.verification import verify_tokens
from dynamo_mlperf.record import read_verdict
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.submission.gate_scenario import parse_json
from dynamo_mlperf.submission.proofs import token_band_findings
from dynamo_mlperf.submission.records import Run
from dynamo_mlperf.submission.records import read_record as read_run_record
from dynamo_mlperf.submission.scores import read_endpoints_scores
from dynamo_mlperf.tuning.calibration import read_calibration
from dynamo_mlperf.tuning.prediction import read_prediction
from dynamo_mlperf.tuning.records import check_probes
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TWICE = '{"a": 1, "b": 2, "a": 3}'
SETTINGS = build_settings(benchmark("gpt-oss-120b"), "Server", 10, 100_000)

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "settings": ("x/measure.json", read_spec),
    "client": ("x/client.json", read_client),
    "endpoints: what was asked": ("x/endpoints.json", endpoints_run.read_record),
    "endpoints: summary": ("x/performance/result_summary.json", lambda path: read_results(path.parent.parent)),
    "endpoints: events": ("x/events.jsonl", lambda path: read_events(path, {})),
    "endpoints: samples": ("x/sample_idx_map.json", lambda path: list(accuracy_answers(path.parent))),
    "endpoints: accuracy": (
        "x/accuracy/accuracy_results.json",
        lambda path: judge_accuracy(path.parent.parent, SETTINGS, "official"),
    ),
    "score": ("x/score.json", read_scores),
    "token ids": ("x/mlperf_log_accuracy.json", lambda path: verify_tokens(path, {2}, offline=True)),
    "answers": ("x/mlperf_log_accuracy.json", lambda path: list(AnswerLog(path))),
    "data set": ("x/prompts.jsonl", lambda path: list(json_lines(path, "name another"))),
    "factors": ("x/factors.json", read_calibration),
    "prediction": ("x/prediction.json", read_prediction),
    "a probe": ("x/probe-001/record.json", lambda path: check_probes(path.parent.parent)),
    "a split": ("x/split.json", read_object),
    "package: a record": ("x/evidence.json", read_run_record),
    "package: commands": ("x/commands.jsonl", lambda path: list(Run(path.parent).commands())),
    "package: scores": ("x/accuracy.json", lambda path: read_endpoints_scores(path, benchmark("gpt-oss-120b"))),
    "package: tokens": ("x/summary.json", lambda path: token_band_findings(path, benchmark("gpt-oss-120b"))),
    "check": ("x/system.json", parse_json),
}
"""By what reads it: a file of a run, or of a tree, or one that a person names."""


@pytest.mark.parametrize("name", READERS)
def test_whoever_reads_it_names_the_key(tmp_path: Path, name: str) -> None:
    file, reader = READERS[name]
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(("[\n" if name == "answers" else "") + TWICE + "\n")
    with pytest.raises(DynamoMlperfError) as caught:
        reader(path)
    assert 'the key "a"' in caught.value.what
    assert str(tmp_path) in caught.value.what


@pytest.mark.parametrize("key", ["a", "", 'a"', "x" * 1000, "\u20ac"])
def test_it_is_found_at_any_depth_and_told_in_short(key: str) -> None:
    """`{"a": {"a": 1}}` is no repetition: each object has its own keys."""
    inside = f"{json.dumps(key)}: {json.dumps({key: 1})}"
    assert strict_json(f"[[{{{inside}}}]]") == [[{key: {key: 1}}]]
    with pytest.raises(RepeatedKeyError) as caught:
        strict_json(f"[[{{{inside}, {inside}}}]]")
    assert caught.value.key == json.dumps(key)[:80]


def test_a_verdict_and_events_name_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.verdict.write_text('{"verdict": "INVALID", "verdict": "VALID"}')
    with pytest.raises(RepeatedKeyError, match=r'^verdict\.json holds the key "verdict" twice$'):
        read_verdict(paths)
    paths.events.write_text('{"event": "a"}\n{"event": "b", "event": "c"}\n')
    with pytest.raises(RepeatedKeyError, match=r'^the key "event" stands there twice$'):
        read_json_lines(paths.events)


def test_loadgens_log_names_its_line(tmp_path: Path) -> None:
    entry = {"key": "result_validity", "value": "VALID", "metadata": {}}
    invalid = json.dumps(entry).replace('"value"', '"value": "INVALID", "value"')
    (tmp_path / DETAIL).write_text(f":::MLLOG {json.dumps(entry)}\n:::MLLOG {invalid}\n")
    with pytest.raises(DynamoMlperfError, match='garbled at line 2: the key "value" stands there twice'):
        read_logs(tmp_path)


def test_the_report_shows_no_such_record_and_says_why(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "valid", queries=800)
    paths.verdict.write_text('{"verdict": "INVALID", ' + paths.verdict.read_text().lstrip("{ \n"))
    shown = read_run(paths.root)
    assert shown.verdict is None
    assert 'verdict.json holds the key "verdict" twice' in shown.damaged


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'"\\ud', b"[1] 2", "\ufeff1", "NaN x"])
def test_what_is_no_json_is_a_value_error_as_everywhere(raw: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json(raw)


def test_anything_else_is_read_as_the_standard_library_reads_it(tmp_path: Path) -> None:
    value = {"a": [{"a": 1}, {"a": 1.5e300}, None, "\ud800 \u20ac"], "": {"b": {}}, "c": float("inf")}
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32-be"):
        (tmp_path / "x").write_bytes(json.dumps(value).encode(encoding))
        assert read_json(tmp_path / "x") == value
    with pytest.raises(ValueError, match="Infinity is no number"):
        read_json(tmp_path / "x", finite=True)

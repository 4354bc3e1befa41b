"""`judge` as a person calls it: the answer on stdout, its exit code, and nothing that needs a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.cli.judge import lines
from dynamo_mlperf.record import TransferEvidence, Verdict
from dynamo_mlperf.tuning.records import RecordDirectory
from tests.report.run_builder import build_run

INVALID = """\
INVALID [official]: gpt-oss-120b Interactive, {directory}
  duration: wanted 600 s or more, got 30.000 s
    run for longer: write a larger n_samples_to_issue, in whole data sets
  TPOT within 15 ms: wanted early-stopping p99 within it, got early-stopping p99 16.5 ms, plain p99 16.0 ms
    lower target_qps, or give the role that limits it more GPUs
  3000 requests, 30.0 s, 100.00 queries/s, 128,000.00 tokens/s
  TTFT: p99 300.0 ms, early stopping 310.0 ms, limit 2000 ms, 0 over it, 16 allowed
  TPOT: p99 16.0 ms, early stopping 16.5 ms, limit 15 ms, 30 over it, 16 allowed
  note: not checked: that every sample was issued equally often: the summary has no samples
  note: not checked: the client's own speed: no account of it beside the results
  note: not checked: KV transfers and remote prefill: no engine counters beside the results
"""


def _judge(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "judge", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def _series(plain_ms: float, stopped_ms: float) -> dict[str, Any]:
    return {
        "min": 1e6,
        "max": stopped_ms * 1e6,
        "percentiles": {"99.0": plain_ms * 1e6},
        "early_stopping_percentiles": {"99.0": stopped_ms * 1e6},
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Thirty seconds of endpoints, over the limit of TPOT."""
    runtime = {
        "min_duration_ms": 600_000,
        "scheduler_random_seed": 16159082839903944936,
        "dataloader_random_seed": 2747215439041700203,
    }
    config = {
        "submission_ref": {"model": "gpt-oss-120b", "ruleset": "mlperf-inference-v6.1"},
        "model_params": {"streaming": "on"},
        "settings": {"runtime": runtime, "load_pattern": {"type": "poisson", "target_qps": 100.0}},
    }
    summary = {
        "n_samples_issued": 3000, "n_samples_completed": 3000, "n_samples_failed": 0, "duration_ns": 30_000_000_000,
        "complete": True, "qps": 100.0, "tps": 128_000.0, "ttft": _series(300, 310), "tpot": _series(16, 16.5),
    }  # fmt: skip
    (tmp_path / "performance").mkdir()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "performance" / "result_summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_an_invalid_run_ends_with_5_and_every_reason(directory: Path) -> None:
    done = _judge(str(directory), "--scenario", "Interactive")
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == INVALID.format(directory=directory)


def test_json_has_the_keys_of_verdict_json(directory: Path) -> None:
    done = _judge(str(directory), "--scenario", "Interactive", "--json")
    value = json.loads(done.stdout)
    assert (done.returncode, value["verdict"], value["class"]) == (5, "INVALID", "official")
    assert [reason["check"] for reason in value["reasons"]] == ["duration", "tpot within 15 ms"]
    assert set(value["reasons"][0]) == {"check", "wanted", "got", "action", "text"}
    assert value["latency_p99_ms"]["tpot"]["early_stopping"] == 16.5


COUNTED = TransferEvidence(
    disaggregated=True, proof="kv-counters", requests=64, remote_prefills=64, kv_bytes=1_500_000, transfers=64
)


@pytest.mark.parametrize(
    ("moved", "told"),
    [
        (COUNTED, ["  disaggregation: 64 of 64 prefilled remotely, 1.5 MB of KV in 64 transfers, 0 failed"]),
        (
            replace(COUNTED, proof="routing only", remote_prefills=63),
            ["  disaggregation: 63 of 64 prefilled remotely (proof: routing only)"],
        ),
        (replace(COUNTED, proof="none"), []),
        (replace(COUNTED, disaggregated=False), []),
        (None, []),
    ],
)
def test_a_run_of_ours_says_what_ran_and_how_much_was_prefilled_remotely(
    moved: TransferEvidence | None, told: list[str]
) -> None:
    verdict = Verdict(
        "VALID", "reduced", "qwen3-vl-235b-a22b", "Server", "runs/x", requests=64, completed_qps=1.27512,
        tokens_per_second=40.0, duration_s=50.0, transfer=moved, model="tiny",
    )  # fmt: skip
    assert list(lines(verdict)) == [
        "VALID [reduced]: qwen3-vl-235b-a22b Server, model tiny, runs/x",
        "  64 requests, 50.0 s, 1.28 queries/s, 40.00 tokens/s",
        *told,
    ]


def test_a_run_is_found_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    build_run(tmp_path / "runs" / "demo-1", "failed")
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "judge"]
    for word, status, said in (
        ("demo", 4, "the run in runs/demo-1 FAILED"),
        ("demo-1", 4, "the run in runs/demo-1 FAILED"),
        ("dem", 4, "the run in runs/demo-1 FAILED"),
        ("dex", 2, "no run 'dex' below runs"),
        ("./demo", 2, "there is no directory demo"),
    ):
        done = subprocess.run([*argv, word], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr


def test_a_search_that_was_cut_names_the_command_that_goes_on(tmp_path: Path) -> None:
    root = build_run(tmp_path / "run", "failed").root
    recorded = json.loads((root / "verdict.json").read_text())
    why = {"wanted": "a measurement", "got": "stopped by SIGINT", "action": "see events.jsonl and logs/"}

    def told(check: str) -> tuple[str, str]:
        (root / "verdict.json").write_text(json.dumps({**recorded, "reasons": [{"check": check, **why}]}))
        plain, as_json = _judge(str(root)), _judge(str(root), "--json")
        assert (plain.returncode, as_json.returncode) == (4, 4)
        return plain.stderr, json.loads(as_json.stdout)["reasons"][0]["action"]

    own = f"the run in {root} FAILED: stopped by SIGINT\n  Try: {why['action']}"
    assert own in told("interrupted")[0], "nothing was begun that could go on"
    RecordDirectory(root / "search", {"model": "tiny"}).close()
    for text in told("interrupted"):
        assert f"`dynamo-mlperf search FILE --resume {root}` goes on where it was" in text
    assert told("serving")[1] == why["action"]


def test_a_valid_run_ends_with_0(directory: Path) -> None:
    path = directory / "performance" / "result_summary.json"
    better = {**json.loads(path.read_text()), "duration_ns": 600_000_000_000, "tpot": _series(14, 14.5)}
    path.write_text(json.dumps(better))
    done = _judge(str(directory), "--scenario", "Interactive", "--benchmark", "gpt-oss-120b", "--round", "v6.1")
    assert done.returncode == 0
    assert done.stdout.startswith("VALID [official]: gpt-oss-120b Interactive, ")
    assert "note: not checked: " in done.stdout


def test_nothing_to_judge_ends_with_4(tmp_path: Path) -> None:
    done = _judge(str(tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"error: {tmp_path} holds no measurement")
    value = json.loads(_judge(str(tmp_path), "--json").stdout)
    assert (value["verdict"], value["completed_qps"]) == ("FAILED", None)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("/nowhere",), "there is no directory /nowhere"),
        (("{}",), "does not tell its scenario"),
        (("{}", "--scenario", "interactive"), "no scenario 'interactive'"),
        (("{}", "--scenario", "Server", "--benchmark", "gptoss"), "no benchmark 'gptoss'"),
        (("{}", "--scenario", "Server", "--round", "v9"), "no rules of round 'v9'"),
    ],
)
def test_usage_ends_with_2(directory: Path, words: tuple[str, ...], text: str) -> None:
    done = _judge(*(word.format(directory) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr


def test_what_files_hold_neither_steers_the_terminal_nor_stops_the_answer(directory: Path) -> None:
    config = yaml.safe_load((directory / "config.yaml").read_text())
    config["settings"]["load_pattern"]["type"] = "\ud800\x1b[31m\nVALID"
    (directory / "config.yaml").write_text(json.dumps(config))
    done = _judge(str(directory), "--scenario", "Interactive")
    assert (done.returncode, done.stderr) == (5, "")
    assert "got \\ud800\\x1b[31m\\nVALID\n" in done.stdout


def test_a_test_that_makes_the_exit_code_is_told() -> None:
    """The performance test is VALID, and the answer ends with 5."""
    verdict = Verdict("VALID", "official", "b", "Offline", "runs/x", tests={"accuracy": "INVALID", "TEST06": "VALID"})
    assert (list(lines(verdict))[-2:], verdict.exit_code) == (
        [
            "  accuracy test INVALID: its result.json says why; the exit code is that of all tests",
            "  TEST06 test VALID",
        ],
        5,
    )


def test_a_sweep_that_was_killed_is_told_how_it_goes_on(tmp_path: Path) -> None:
    """Its controller left no verdict, and what it measured is not to be measured again."""
    (tmp_path / "topology.yaml").write_text("engine: mocker\n")
    done = _judge(str(tmp_path))
    assert (done.returncode, "Try: wait for its end, or run it again" in done.stderr) == (4, True)
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "summary.json").write_text('{"state": "running"}')
    done = _judge(str(tmp_path))
    assert (done.returncode, f"dynamo-mlperf sweep FILE --resume {tmp_path}`" in done.stderr) == (4, True), done.stderr

"""`measure` against servers that are not what they are taken for, and when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.fakes.made_data import write_made_data
from tests.fakes.oracle import Oracle, Script
from tests.fakes.truth_oracle import Knowledge, TruthOracle

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = "llama2-70b-99.9"
FILE = {
    "schema": 1,
    "name": "served-elsewhere",
    "nodes": {"count": 1, "gpus": 1},
    "model": {"name": "m", "weights": {"path": "."}},
    "engine": "vllm",
    "roles": {"aggregated": {"workers": 1}},
    "measure": {"benchmark": LLAMA, "scenario": "Server", "target_qps": 20},
}
LOWERED = ("--reduced", "min_duration_s=20", "--reduced", "samples=49")


def _argv(url: str, *more: str) -> list[str]:
    words = ["measure", url, "--model", "m", "--benchmark", LLAMA, "--scenario", "Server", "--dataset", "data"]
    return [sys.executable, "-m", "dynamo_mlperf.cli", *words, "--target-qps", "20", "--run-dir", "run", *more]


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://no-such-host.invalid:8000", 4, "name the host so that it is found from here"),
        ("http://127.0.0.1:1", 4, "start the server, or name the one that is up"),
    ],
)
def test_an_address_that_is_none_is_told_as_such(tmp_path: Path, url: str, code: int, said: str) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    done = subprocess.run(_argv(url, *LOWERED), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.loadgen
def test_an_oracle_gives_no_official_result(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data")
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url)
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, oracle.stats().requests) == (2, 0), done.stderr
        assert "is an oracle: it knows the answers and is no model\n  Try: add --rehearsal" in done.stderr
        assert not (tmp_path / "run").exists(), "what is refused uses no run directory up"


@pytest.mark.loadgen
def test_an_interrupt_while_it_measures_leaves_no_result_and_no_process(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url, *LOWERED, "--rehearsal")
        with subprocess.Popen(asked, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True) as running:
            end = time.monotonic() + 240
            while oracle.stats().requests < 10 and time.monotonic() < end:
                time.sleep(0.05)
            os.kill(running.pid, signal.SIGINT)
            assert running.wait(timeout=240) == 130
            with pytest.raises(ProcessLookupError):
                os.killpg(running.pid, 0)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["reasons"][0]["check"]) == ("FAILED", "interrupted")


@pytest.mark.loadgen
def test_a_scorer_that_does_not_end_is_ended(tmp_path: Path) -> None:
    """No scorer is up within a tenth of a second."""
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    file = yaml.safe_dump({**FILE, "timeouts": {"scoring_s": 0.1}})
    (tmp_path / "file.yaml").write_text(file)
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url, *LOWERED, "--mode", "accuracy", "--topology", "file.yaml", "--json")
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    result = json.loads(done.stdout)
    assert result["notes"][-1] == "not scored: the answers were not scored within 0.1 s (timeouts.scoring_s)"
    assert (done.returncode, result["class"], result["scores"]) == (0, "reduced", {}), "official, it would be FAILED"
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    ends = {event["process"]: event["status"] for event in events if event["event"] == "process_exited"}
    assert ends["score-accuracy"] == -signal.SIGKILL


@pytest.mark.loadgen
def test_a_name_that_the_server_does_not_know_uses_no_run_directory_up(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url, *LOWERED, "--rehearsal", "--warmup-requests", "0")
        wrong = [word if word != "m" else "typo" for word in asked]
        done = subprocess.run(wrong, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert (done.returncode, oracle.stats().requests) == (2, 0), done.stderr
        assert "serves no model 'typo'; it lists" in done.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("words", "warmed"), [((), 8), (("--warmup-requests", "3"), 3), (("--warmup-requests", "0"), 0)]
)
def test_a_canary_and_a_warm_up_come_before_the_timed_test(tmp_path: Path, words: tuple[str, ...], warmed: int) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    lowered = ("--reduced", "min_duration_s=2", "--reduced", "samples=49", "--reduced", "percentile=90")
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url, *lowered, "--rehearsal", *words, "--json")
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        requests = oracle.stats().requests
    verdict = json.loads(done.stdout)
    assert verdict["requests"] == 49, done.stderr
    assert requests == 49 + 1 + warmed
    evidence = json.loads((tmp_path / "run" / "evidence.json").read_text())
    assert list(evidence["canary"]["answers"]) == [oracle.url]
    assert all(evidence["canary"]["answers"].values())
    assert evidence["warmup"]["requests"] == warmed
    assert ("no warm-up was sent" in " ".join(verdict["notes"])) == (warmed == 0)
    phases = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    begun = [event["phase"] for event in phases if event["event"] == "phase_begin"]
    assert begun == ["check", "canary", *(["warmup"] if warmed else []), "measure", "judge"]


@pytest.mark.loadgen
def test_a_server_that_answers_with_errors_fails_before_the_timed_test(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    with Oracle(Script(faults={"all": "500"})) as oracle:
        done = subprocess.run(
            _argv(f"http://127.0.0.1:{oracle.port}", *LOWERED, "--rehearsal"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 4, done.stderr
    assert "before the test" in done.stderr
    assert "HTTP 500" in done.stderr
    assert "look at the server's log" in done.stderr
    assert not (tmp_path / "run" / "loadgen").exists()

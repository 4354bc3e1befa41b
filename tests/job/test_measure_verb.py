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

from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Knowledge, TruthOracle

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = "llama2-70b-99.9"
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
    done = subprocess.run(_argv(url, *LOWERED), cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


@pytest.mark.loadgen
def test_an_oracle_gives_no_official_result(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data")
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url)
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert (done.returncode, oracle.stats().requests) == (2, 0), done.stderr
        assert "is an oracle: it knows the answers and is no model\n  Try: add --rehearsal" in done.stderr
        assert json.loads((tmp_path / "run" / "verdict.json").read_text())["verdict"] == "FAILED"


@pytest.mark.loadgen
def test_an_interrupt_while_it_measures_leaves_no_result_and_no_process(tmp_path: Path) -> None:
    write_made_data(LLAMA, tmp_path / "data", share=0.002)
    with TruthOracle(Knowledge(tmp_path / "data", LLAMA)) as oracle:
        asked = _argv(oracle.url, *LOWERED, "--rehearsal")
        with subprocess.Popen(asked, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True) as running:
            end = time.monotonic() + 60
            while oracle.stats().requests < 10 and time.monotonic() < end:
                time.sleep(0.05)
            os.kill(running.pid, signal.SIGINT)
            assert running.wait(timeout=60) == 130
            with pytest.raises(ProcessLookupError):
                os.killpg(running.pid, 0)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["reasons"][0]["check"]) == ("FAILED", "interrupted")

"""`measure --client endpoints`: against an oracle that knows the truth, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.load.endpoints_program import RELEASES
from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Knowledge, TruthOracle

QWEN = "qwen3-vl-235b-a22b"
SAMPLES = 24
LOWERED = ("--reduced", f"samples={SAMPLES}", "--reduced", "min_duration_s=1")
END_S = 400.0


def _measure(root: Path, port: int, *more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "measure", f"http://127.0.0.1:{port}", "--model", "m"]
    argv += ["--target-qps", "60", "--client", "endpoints", *LOWERED, *more]
    return subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=END_S, check=False)


@pytest.mark.endpoints
def test_its_own_scorer_finds_what_the_oracle_knows(tmp_path: Path) -> None:
    write_made_data(QWEN, tmp_path / "data", share=SAMPLES / 8000, interactive=True)
    with TruthOracle(Knowledge(tmp_path / "data", QWEN, right=1.0)) as oracle:
        asked = ("--benchmark", QWEN, "--scenario", "Offline", "--dataset", "data", "--with-accuracy", "--json")
        python = ("--endpoints-python", os.environ["ENDPOINTS_PYTHON"])
        done = _measure(tmp_path, oracle.port, *asked, *python, "--run-dir", "run", "--rehearsal")
    verdict = json.loads(done.stdout)
    # A whole data set at once may take less than the second that was asked for.
    assert {reason["check"] for reason in verdict["reasons"]} <= {"duration"}, done.stderr
    assert (verdict["class"], verdict["requests"], verdict["tests"]) == ("rehearsal", 72, {"accuracy": "VALID"})
    result = json.loads((tmp_path / "run" / "endpoints" / "accuracy" / "result.json").read_text())
    assert result["scores"] == {"F1_HIERARCHICAL": 1.0}
    endpoint = json.loads((tmp_path / "run" / "endpoint.json").read_text())
    assert (endpoint["client"], endpoint["class"]) == ("endpoints", "rehearsal")
    assert json.loads((tmp_path / "run" / "versions.json").read_text())["inference-endpoint"] == "0.1.0"


@pytest.mark.parametrize(
    ("benchmark", "more", "text"),
    [
        ("llama2-70b-99.9", (), "llama2-70b-99.9 is not measured with endpoints"),
        ("gpt-oss-120b", ("--with-accuracy",), "cannot score the accuracy of gpt-oss-120b: its Live"),
        ("gpt-oss-120b", ("--mode", "accuracy"), "--mode accuracy is LoadGen's"),
        ("gpt-oss-120b", ("--client", "loadgen", "--with-accuracy"), "--with-accuracy is for --client endpoints"),
        ("gpt-oss-120b", (), "the site file names no environment that has it"),
        ("gpt-oss-120b", ("--endpoints-python", "/nowhere"), "there is no /nowhere"),
    ],
)
def test_what_endpoints_cannot_do_is_refused_before_anything_is_sent(
    tmp_path: Path, benchmark: str, more: tuple[str, ...], text: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "why"}\n' * SAMPLES)
    done = _measure(tmp_path, 1, "--benchmark", benchmark, "--scenario", "Server", "--dataset", ".", *more)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "runs").exists()


def test_tokens_are_judged_only_where_they_can_be_counted(tmp_path: Path) -> None:
    told = json.dumps({"version": "0.1.0", "git_sha": RELEASES["v6.1"].commits[0][:7], "direct_url": None})
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *parquet*) touch "$3";; *) echo \'{told}\';; esac\n')
    python.chmod(0o755)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "why"}\n' * SAMPLES)
    with TruthOracle(Knowledge(tmp_path, "gpt-oss-120b")) as oracle:
        asked = ("--benchmark", "gpt-oss-120b", "--scenario", "Server", "--dataset", ".")
        done = _measure(
            tmp_path, oracle.port, *asked, "--endpoints-python", str(python), "--run-dir", "run", "--rehearsal"
        )
    assert done.returncode == 2, done.stderr
    assert "the model's directory has no tokenizer" in done.stderr

"""What `run` and `job` say at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dynamo_mlperf.cli.launch import verdict_line
from dynamo_mlperf.record import Reason, Verdict


@pytest.mark.parametrize(("scenario", "unit"), [("Offline", "samples/s"), ("Server", "queries/s")])
def test_the_last_line_has_the_scenarios_unit_and_a_short_path(
    scenario: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = (Reason("duration", "600 s or more", "20 s", "x"), Reason("LoadGen's result", "VALID", "INVALID", "y"))
    verdict = Verdict(
        "INVALID", "reduced", "qwen3-vl-235b-a22b", scenario, str(tmp_path / "runs" / "x"), reasons, completed_qps=48.2
    )
    said = f"INVALID (duration) [reduced] qwen3-vl-235b-a22b {scenario} 48.20 {unit}  "
    assert verdict_line(verdict) == f"{said}{tmp_path}/runs/x"
    monkeypatch.chdir(tmp_path)
    assert verdict_line(verdict) == f"{said}runs/x"


@pytest.mark.parametrize(("model", "named"), [("tiny", ", model tiny"), ("qwen3-vl-235b-a22b", ""), ("", "")])
def test_the_last_line_names_a_model_that_is_not_the_benchmarks(model: str, named: str) -> None:
    verdict = Verdict("VALID", "reduced", "qwen3-vl-235b-a22b", "Server", "/x", completed_qps=1.28, model=model)
    assert verdict_line(verdict) == f"VALID [reduced] qwen3-vl-235b-a22b Server 1.28 queries/s{named}  /x"


def test_a_file_for_more_gpus_than_this_machine_has_is_refused_before_anything_else(
    repository: Path, tmp_path: Path
) -> None:
    file = repository / "topologies" / "q3vl-gb200x16-interactive-4p8d.yaml"
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "run", str(file)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    gpus = yaml.safe_load(file.read_text())["nodes"]
    said = f"this file wants {gpus['count']} nodes x {gpus['gpus']} GPUs, and this machine has 1 GPUs"
    assert (done.returncode, said in done.stderr, "rehearse FILE" in done.stderr) == (2, True, True), done.stderr
    assert not (tmp_path / "runs").exists()

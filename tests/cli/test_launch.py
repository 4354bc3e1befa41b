"""What `run` and `job` say at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

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

"""Performance, accuracy and compliance on one deployment: real Dynamo, real LoadGen, simulated engines."""

from __future__ import annotations

import json

import pytest

from dynamo_mlperf.load.audit import AUDIT_CONFIG
from dynamo_mlperf.record import PHASES
from tests.fakes.made_data import write_made_data
from tests.job.chain import Place

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

MEASURE = {"benchmark": "llama2-70b-99.9", "scenario": "Server", "target_qps": 8, "dataset": "data"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(tmp_path_factory.mktemp("side"))
    write_made_data("llama2-70b-99.9", made.root / "data", share=0.0005)
    return made


def test_a_job_runs_accuracy_and_compliance_on_the_deployment_it_measured(place: Place) -> None:
    edits = {
        "measure": {**MEASURE, "accuracy": True, "compliance": True},
        "reduced": {"latency_limit_ms": None, "min_duration_s": 0.5, "samples": 12},
    }
    with place.run(place.topology(edits, role={"args": {"speedup-ratio": 1000}})) as run:
        ended = run.end()
        verdict = run.verdict()
    results = {name: json.loads((run.paths.root / name / "result.json").read_text()) for name in ("accuracy", "TEST06")}
    assert verdict["tests"] == {name: result["verdict"] for name, result in results.items()}
    assert [entry for result in results.values() for entry in result["reasons"]] == [], ended.stderr
    assert ended.status == {"VALID": 0, "INVALID": 5}[verdict["verdict"]]
    assert run.phases() == [*PHASES[: PHASES.index("stop")], "accuracy", "compliance", *PHASES[PHASES.index("stop") :]]
    # Random answers: scores are told, and nothing is concluded from them.
    accuracy = results["accuracy"]
    assert (accuracy["class"], accuracy["scores"]["ROUGE1"] < 44) == ("rehearsal", True)
    assert any("scores mean nothing" in note for note in accuracy["notes"])
    assert (run.paths.root / "accuracy" / "accuracy.txt").read_text().splitlines()[-1].startswith("hash=")
    for name in results:
        evidence = json.loads((run.paths.root / name / "evidence.json").read_text())
        assert evidence["transfer"]["prefill_requests"] == 12
    folder = run.paths.root / "TEST06"
    assert "Sample length check pass: True" in (folder / "verify_accuracy.txt").read_text()
    assert not (folder / AUDIT_CONFIG).exists()


def test_what_its_side_tests_lack_is_refused_before_a_job_starts(place: Place) -> None:
    edits = {
        "measure": {**MEASURE, "benchmark": "gpt-oss-120b", "compliance": True},
        "reduced": {"latency_limit_ms": None, "samples": 12},
    }
    with place.run(place.topology(edits)) as run:
        ended = run.end()
    assert ended.status == 2
    assert "the TEST07 test has a data set of its own" in " ".join(ended.stderr.split())
    assert not run.paths.root.exists()

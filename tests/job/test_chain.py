"""From a topology file to a recorded verdict, on this machine, with real Dynamo, real LoadGen and simulated engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.load.logs import read_logs
from dynamo_mlperf.record import PHASES
from tests.job.chain import LIMIT_MS, TOKEN, Ended, Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

VERDICT_KEYS = {
    "verdict",
    "class",
    "reasons",
    "benchmark",
    "scenario",
    "model",
    "target_qps",
    "completed_qps",
    "tokens_per_second",
    "latency_p99_ms",
    "remote_prefills",
    "requests",
    "kv_bytes",
    "failed_transfers",
    "run_dir",
}
ROLE = {"workers": 1, "args": {"max-num-seqs": 64, "speedup-ratio": 10}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("chain"))


def assert_valid(run: Run, ended: Ended) -> dict[str, Any]:
    """VALID, exit 0, nothing left; returns the recorded verdict."""
    verdict = run.verdict()
    assert (verdict["verdict"], verdict["reasons"], ended.status) == ("VALID", [], 0), ended.stderr
    assert verdict.keys() >= VERDICT_KEYS
    assert verdict["class"] == "rehearsal"
    assert verdict["benchmark"] == "qwen3-vl-235b-a22b"
    assert verdict["run_dir"] == str(run.paths.root)
    assert verdict["failed_requests"] == 0
    figures = read_logs(run.paths.load).values
    theirs = figures.get("result_completed_samples_per_sec", figures.get("result_samples_per_second"))
    assert verdict["completed_qps"] == theirs
    assert verdict["completed_qps"] == pytest.approx(verdict["requests"] / verdict["duration_s"], rel=0.1)
    # An answer of the mocker is as long as the rules allow: 150 tokens.
    assert verdict["tokens_per_second"] == pytest.approx(150 * verdict["requests"] / verdict["duration_s"])
    assert run.phases() == list(PHASES)
    run.assert_nothing_left()
    return verdict


def holds_everything(run: Run, topology: Path) -> None:
    """The run directory has all of the evidence, and no secret."""
    paths, processes = run.paths, ("prefill-0", "decode-0")
    assert paths.topology.read_bytes() == topology.read_bytes()
    plan = json.loads(paths.plan.read_text())
    assert [entry["address"] for entry in plan["binding"]] == ["127.0.0.1", "127.0.0.1"]
    versions = json.loads(paths.versions.read_text())
    assert {"dynamo_mlperf", "python", "kernel", "ai-dynamo", "mlcommons-loadgen"} <= versions.keys()
    for name in (*processes, "frontend-0", "etcd", "loadgen", "stage-0", "check-0"):
        assert paths.log_of(name).exists(), name
    for when in ("before", "after"):
        assert {page.stem for page in (paths.metrics / when).iterdir()} == set(processes)
        assert "dynamo_component_requests_total" in (paths.metrics / when / "decode-0.prom").read_text()
    for name in ("mlperf_log_summary.txt", "mlperf_log_detail.txt", "user.conf", "queries.csv", "client.json"):
        assert (paths.load / name).stat().st_size > 0, name
    evidence = json.loads(paths.evidence.read_text())
    assert evidence["canary"]["requests"] == 2
    assert evidence["warmup"]["requests"] == 2
    assert evidence["workers"]["prefill-0"]["served"] == evidence["workers"]["decode-0"]["served"] == 44
    assert paths.report.read_text().startswith("<!DOCTYPE html>")
    guilty = [path for path in paths.root.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert guilty == []


def says_how_each_process_was_started(run: Run) -> None:
    commands = run.commands()
    # The engine is asked for its flags once per version.
    assert set(commands) - {"engine-flags"} == {
        "check-0",
        "stage-0",
        "etcd",
        "prefill-0",
        "decode-0",
        "frontend-0",
        "loadgen",
    }
    decode = commands["decode-0"]
    assert decode["node"] == 1
    assert decode["argv"][1:3] == ["-m", "dynamo.mocker"]
    assert decode["argv"][decode["argv"].index("--disaggregation-mode") + 1] == "decode"
    assert "--no-enable-prefix-caching" in decode["argv"]
    assert decode["env"]["DYN_NAMESPACE"] == commands["frontend-0"]["env"]["DYN_NAMESPACE"]
    assert decode["env"]["PATH"]
    for entry in commands.values():
        assert entry["argv"]
        assert entry["env"]["DYNAMO_MLPERF_RUN"].startswith(f"{run.run_id}@")
        assert "HF_TOKEN" not in entry["env"]


def test_interactive_leaves_a_complete_record(place: Place) -> None:
    topology = place.topology()
    with place.run(topology) as run:
        ended = run.end()
        verdict = assert_valid(run, ended)
        assert (verdict["scenario"], verdict["target_qps"], verdict["requests"]) == ("Interactive", 14, 44)
        assert verdict["remote_prefills"] == 44
        assert verdict["disaggregation"]["proof"] == "routing only"
        latency = verdict["latency_p99_ms"]["end_to_end"]
        assert (latency["limit"], latency["percentile"], latency["over_limit"]) == (LIMIT_MS, 0.9, 0)
        holds_everything(run, topology)
        says_how_each_process_was_started(run)
        assert "  1 of 1 machines looked at\n" in ended.stderr, "the plan's two nodes are one machine"
        last = ended.stdout.splitlines()[-1]
        assert last.startswith("VALID [rehearsal] qwen3-vl-235b-a22b Interactive ")
        assert last.endswith(f"  {run.paths.root.relative_to(place.root)}")
        ends = [entry["phase"] for entry in run.events() if entry["event"] == "phase_end"]
        assert ends == list(PHASES)


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_other_scenarios_and_one_json_object(place: Place, scenario: str) -> None:
    offline = scenario == "Offline"
    lowered = {"percentile": None, "latency_limit_ms": None} if offline else {}
    # Offline runs as fast as it can: sixteen answers of a second each at a time make it last.
    role = {"args": {"max-num-seqs": 16, "speedup-ratio": 1}} if offline else {}
    topology = place.topology({"measure": {"scenario": scenario}, "reduced": lowered}, role=role)
    with place.run(topology, "--json") as run:
        ended = run.end()
        verdict = assert_valid(run, ended)
        assert verdict["scenario"] == scenario
        assert verdict["requests"] >= 44
        assert verdict["remote_prefills"] == verdict["requests"]
        assert json.loads(ended.stdout) == verdict
        assert ended.stdout.count("\n") == 1


def test_a_limit_that_cannot_be_met_is_invalid(place: Place) -> None:
    topology = place.topology({"reduced": {"latency_limit_ms": 1, "min_duration_s": 1}})
    with place.run(topology) as run:
        ended = run.end()
        verdict = run.verdict()
        assert (ended.status, verdict["verdict"]) == (5, "INVALID"), ended.stderr
        assert verdict["latency_p99_ms"]["end_to_end"]["over_limit"] == 44
        assert verdict["completed_qps"] > 0
        assert any("44" in reason["text"] for reason in verdict["reasons"])
        assert ended.stdout.splitlines()[-1].startswith("INVALID (")
        assert run.phases() == list(PHASES)
        run.assert_nothing_left()


def test_aggregated_workers_found_through_files(place: Place) -> None:
    roles = {"prefill": None, "decode": None, "aggregated": {**ROLE, "workers": 2}}
    with place.run(place.topology({"roles": roles, "frontends": {"discovery": "file", "router": "kv"}})) as run:
        ended = run.end()
        verdict = assert_valid(run, ended)
        assert verdict["disaggregation"]["disaggregated"] is False
        evidence = json.loads(run.paths.evidence.read_text())
        served = {name: counts["served"] for name, counts in evidence["workers"].items()}
        assert set(served) == {"aggregated-0", "aggregated-1"}
        assert sum(served.values()) == 44
        assert all(served.values())
        assert "etcd" not in run.commands()


def test_two_frontends_over_two_workers_of_each_role(place: Place) -> None:
    roles = {"prefill": {"workers": 2}, "decode": {"workers": 2}}
    edits = {"nodes": {"gpus": 2}, "roles": roles, "frontends": {"count": 2}}
    with place.run(place.topology(edits)) as run:
        ended = run.end()
        verdict = assert_valid(run, ended)
        assert verdict["remote_prefills"] == 44
        evidence = json.loads(run.paths.evidence.read_text())
        assert set(evidence["workers"]) == {"prefill-0", "prefill-1", "decode-0", "decode-1"}
        assert all(counts["served"] for counts in evidence["workers"].values())
        # Two samples to each of two pairs, through each of two frontends.
        assert evidence["canary"]["requests"] == 8
        for index in range(2):
            assert "http-request" in run.paths.log_of(f"frontend-{index}").read_text()

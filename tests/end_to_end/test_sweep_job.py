"""One Slurm job that sweeps over three splits of sixteen simulated GPUs; cut short, then resumed by another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from tests.end_to_end.bench import Cluster, Place, topology
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, wait_until
from tests.job.chain import machine_is_busy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
NAME = "sweep-16"


def swept(repository: Path, place: Place) -> Path:
    """The shipped sweep with engines twice as fast and runs of seconds, on a cluster that pretends two GPUs a node."""
    text = topology(
        repository / "topologies" / "rehearse-sweep.yaml",
        name=NAME,
        roles={
            "prefill": {"workers": 6, "tensor_parallel": 2, "args": {"max-num-seqs": 1, "speedup-ratio": 0.15}},
            "decode": {"workers": 4, "args": {"max-num-seqs": 1, "speedup-ratio": 2}},
        },
        search={"low": 3, "high": 40, "tolerance": 0.15, "time_budget_s": 120},
        reduced={"min_duration_s": 4, "samples": 44, "percentile": 90, "latency_limit_ms": 3000},
    )
    return place.write(f"{NAME}.yaml", text.replace("--gres=gpu:4", "--gres=gpu:2"))


def summary(run_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run_dir / "sweep" / "summary.json").read_text())
    return value


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(RunPaths(run_dir)) if event["event"] == kind]


def test_one_job_sweeps_over_sixteen_gpus_and_another_resumes_it(
    repository: Path, place: Place, cluster: Cluster
) -> None:
    file = swept(repository, place)
    first = cluster.submit(file)
    cut = place.root / "runs" / f"{NAME}-{first}"
    wait_until(lambda: (cut / "sweep" / "5P6D").exists() and bool(events(cut, "split_ready")), 400, "the second split")
    cluster.login("scancel", first)
    wait_until(lambda: ended(cluster, first), 180, "the end of the job")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    assert json.loads((cut / "verdict.json").read_text())["reasons"][0]["check"] == "interrupted"
    before = summary(cut)
    assert (before["state"], [one["split"] for one in before["splits"]]) == ("stopped", ["6P4D"])
    assert before["splits"][0]["bottleneck"]["role"] == "decode", "at 75:25"
    (moved,) = events(cut, "split_begin")
    assert (len(moved["stop"]), moved["start"]) == (1, ["decode-4", "decode-5"])
    restarted = {event["process"] for event in events(cut, "process_started")}
    assert len({name for name in restarted if name.startswith(("prefill-", "decode-"))}) == 12, "none started twice"

    second = cluster.login("sbatch", "--parsable", file.name, "--resume", f"runs/{NAME}-{first}").strip()
    run_dir = place.root / "runs" / f"{NAME}-{second}"
    wait_until(lambda: ended(cluster, second), 900, "the end of the resumed job")
    job = cluster.job(second)
    log = (place.root / f"slurm-{second}.out").read_text()
    found = summary(run_dir)
    assert found["state"] == "finished"
    measured = {one["split"]: one for one in found["splits"]}
    assert measured["6P4D"]["resumed"]
    assert measured["6P4D"]["rate_qps"] == before["splits"][0]["rate_qps"]
    assert not [name for name in events(run_dir, "process_started") if name["process"].startswith("6P4D")]
    assert measured.keys() | {one["split"] for one in found["pruned"]} == {"6P4D", "5P6D", "4P8D"}
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    if machine_is_busy() and found["winner"] is None:  # no client was in time, and no rate was found
        assert (job["JobState"], job["ExitCode"]) == ("FAILED", "5:0"), log[-3000:]
        return
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log[-3000:]
    assert found["winner"] in {"5P6D", "4P8D"} or machine_is_busy(), "the balanced splits"
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["class"]) == ("VALID", "rehearsal")
    assert verdict["target_qps"] == measured[found["winner"]]["target_qps"]
    assert json.loads((run_dir / "plan.json").read_text())["split"]["workers"] == found["winner"]
    assert "Sweep over splits" in (run_dir / "report.html").read_text()
    assert len(events(run_dir, "staged")) == 4

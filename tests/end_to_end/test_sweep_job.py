"""A sweep over three splits of sixteen simulated GPUs in one Slurm job, cut twice and resumed twice.

By its time limit, while workers change from one split to the next; then by a node's loss of power, between the probes
of a split; a third job goes on to the end.
"""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from tests.end_to_end.bench import Cluster, Place, topology
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, wait_until
from tests.job.chain import machine_is_busy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
NAME = "sweep-16"
ORDER = ["4P8D", "5P6D", "6P4D"]
"""The way with the fewest restarts: a prefill worker more each time."""
AT_FIRST = 4
DARK = "n3"

HELD_PYTHON = """#!/bin/sh
case "$*" in *"--disaggregation-mode prefill"*)
  for slot in {slots}; do mkdir {folder}/$slot 2>/dev/null && exec {python} "$@"; done
  while [ -d {folder} ]; do sleep 0.2; done;;
esac
exec {python} "$@"
"""
"""Engines of which only the first few prefill workers come up, as long as a folder is there."""


def swept(repository: Path, place: Place) -> Path:
    """The shipped sweep with engines twice as fast and runs of seconds, on a cluster that pretends two GPUs a node."""
    text = topology(
        repository / "topologies" / "rehearse-sweep.yaml",
        name=NAME,
        site=str(place.root / "held-site.yaml"),
        roles={
            "prefill": {"workers": 6, "tensor_parallel": 2, "args": {"max-num-seqs": 1, "speedup-ratio": 0.15}},
            "decode": {"workers": 4, "args": {"max-num-seqs": 1, "speedup-ratio": 2}},
        },
        sweep={"splits": ORDER[::-1], "prune": False},
        search={"low": 5, "high": 40, "tolerance": 0.2, "time_budget_s": 120},
        reduced={"min_duration_s": 4, "samples": 44, "percentile": 90, "latency_limit_ms": 3000},
    )
    return place.write(f"{NAME}.yaml", text.replace("--gres=gpu:4", "--gres=gpu:2"))


@pytest.fixture
def slots(repository: Path, place: Place) -> Path:
    """While this folder is there, AT_FIRST prefill workers come up and no more."""
    folder = place.root / "slots"
    folder.mkdir()
    python = place.root / "held-python"
    numbers = " ".join(map(str, range(AT_FIRST)))
    python.write_text(HELD_PYTHON.format(slots=numbers, folder=folder, python=sys.executable))
    python.chmod(0o755)
    site = yaml.safe_load((repository / "slurm" / "sites" / "devcluster.yaml").read_text())
    (place.root / "held-site.yaml").write_text(yaml.safe_dump({**site, "engine_python": str(python)}))
    return folder


def summary(run_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run_dir / "sweep" / "summary.json").read_text())
    return value


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(RunPaths(run_dir)) if event["event"] == kind]


def standing(cluster: Cluster, job_id: str) -> dict[str, Any]:
    (found,) = json.loads(cluster.login("dynamo-mlperf", "status", job_id, "--json"))
    return dict(found)


def log_of(place: Place, job_id: str) -> str:
    return (place.root / f"slurm-{job_id}.out").read_text()[-3000:]


def resume(cluster: Cluster, place: Place, file: Path, old: str) -> tuple[str, Path]:
    """Send the job that goes on with another; its id and its run directory."""
    job_id = cluster.login("sbatch", "--parsable", file.name, "--resume", f"runs/{NAME}-{old}").strip()
    return job_id, place.root / "runs" / f"{NAME}-{job_id}"


def cut_split(run_dir: Path) -> Path | None:
    """The folder of the split that is measured, where a probe of it has ended and another one has told something."""
    for folder in (run_dir / "sweep").glob("*/"):
        streams = [path for path in folder.glob("probe-*/stream.jsonl") if not path.with_name("record.json").exists()]
        told = any(path.read_text().count("\n") >= 2 for path in streams)
        if told and whole(folder) and not (folder / "split.json").exists():
            return folder
    return None


def whole(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("probe-*/record.json"))


def started(run_dir: Path) -> list[str]:
    return [event["process"] for event in events(run_dir, "process_started")]


def measured_here(run_dir: Path) -> set[str]:
    """Splits of which a probe was started in this run."""
    return {name.partition("-")[0] for name in started(run_dir) if "-probe-" in name}


def rates(run_dir: Path) -> dict[str, float | None]:
    return {one["split"]: one["rate_qps"] for one in summary(run_dir)["splits"]}


def cut_on_its_way(cluster: Cluster, place: Place, file: Path) -> str:
    """A job whose time is over while the first worker of the second split does not come up; its id."""
    job_id = cluster.submit(file)
    run_dir = place.root / "runs" / f"{NAME}-{job_id}"
    wait_until(lambda: ended(cluster, job_id) or bool(events(run_dir, "split_begin")), 400, "the way to a split")
    (moved,) = events(run_dir, "split_begin")
    assert (moved["split"], len(moved["stop"]), moved["start"]) == ("5P6D", 2, ["prefill-4"]), log_of(place, job_id)
    wait_until(lambda: "prefill-4" in started(run_dir), 90, "the start of its worker")
    cluster.login("scontrol", "update", f"JobId={job_id}", "EndTime=now+1")
    wait_until(lambda: ended(cluster, job_id), 180, "the end of the job's time")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    stood = standing(cluster, job_id)
    assert (stood["outcome"]["word"], stood["outcome"]["exit_code"]) == ("TIMEOUT", 143)
    assert json.loads((run_dir / "verdict.json").read_text())["reasons"][0]["check"] == "interrupted"
    told = summary(run_dir)
    assert (told["state"], [one["split"] for one in told["splits"]]) == ("stopped", ["4P8D"])
    why = "when the run ended: stopped by SIGTERM; resume the sweep"
    assert {one["split"]: one["reason"] for one in told["not_measured"]} == {
        "5P6D": f"its workers were being started {why}",
        "6P4D": f"not begun {why}",
    }
    assert len(set(started(run_dir))) == len(started(run_dir)), "none started twice"
    return job_id


def cut_by_a_lost_node(cluster: Cluster, place: Place, file: Path, old: str) -> tuple[str, str, list[str]]:
    """A job that resumes it and loses a node in mid-search; its id, the split and its probes that count."""
    job_id, run_dir = resume(cluster, place, file, old)
    wait_until(lambda: ended(cluster, job_id) or cut_split(run_dir) is not None, 400, "the second probe of a split")
    at = cut_split(run_dir)
    assert at is not None, log_of(place, job_id)
    cluster.call("node-kill", DARK)
    try:
        wait_until(lambda: ended(cluster, job_id), 90, "the end of the job")
        wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    finally:
        cluster.call("node-boot", DARK)
    stood = standing(cluster, job_id)
    assert not stood["outcome"]["success"]
    assert stood["outcome"]["exit_code"] != 0
    assert json.loads((run_dir / "verdict.json").read_text())["verdict"] == "FAILED"
    told = summary(run_dir)
    before = place.root / "runs" / f"{NAME}-{old}"
    assert told["resumes"] == {"run": str(before), "finished": ["4P8D"], "probes": {}}
    assert told["state"] == "stopped"
    assert rates(run_dir)["4P8D"] == rates(before)["4P8D"]
    assert "4P8D" not in measured_here(run_dir)
    (why,) = [one["reason"] for one in told["not_measured"] if one["split"] == at.name]
    assert why.startswith("it was being measured")
    assert DARK in why.partition("when the run ended: ")[2], "whatever noticed its loss first"
    return job_id, at.name, whole(at)


def test_a_sweep_goes_on_after_its_time_limit_and_after_a_lost_node(
    repository: Path, place: Place, cluster: Cluster, slots: Path
) -> None:
    file = swept(repository, place)
    first = cut_on_its_way(cluster, place, file)
    shutil.rmtree(slots)
    second, at, counted = cut_by_a_lost_node(cluster, place, file, first)
    dark = place.root / "runs" / f"{NAME}-{second}"
    third, run_dir = resume(cluster, place, file, second)
    wait_until(lambda: ended(cluster, third), 900, "the end of the resumed job")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    found, finished = summary(run_dir), rates(dark)
    assert (found["state"], found["pruned"], found["not_measured"]) == ("finished", [], []), log_of(place, third)
    assert found["resumes"]["finished"] == list(finished)
    assert found["resumes"]["probes"] == ({at: len(counted)} if counted else {})
    assert rates(run_dir).keys() == set(ORDER)
    assert {name: rates(run_dir)[name] for name in finished} == finished
    assert measured_here(run_dir) == set(ORDER) - finished.keys(), "finished splits are not searched again"
    for name in counted:
        old, new = (path / "sweep" / at / name / "record.json" for path in (dark, run_dir))
        assert new.samefile(old), "probes of the split that was cut count again"
    stood = standing(cluster, third)["outcome"]
    if machine_is_busy() and found["winner"] is None:  # no client was in time, and no rate was found
        assert stood["exit_code"] == 5, log_of(place, third)
        return
    assert (stood["word"], stood["exit_code"]) == ("VALID", 0), log_of(place, third)
    is_result(run_dir, found)
    page = (run_dir / "report.html").read_text()
    assert "Sweep over splits" in page
    assert f"resumes {dark}" in page
    assert len(events(run_dir, "staged")) == 4


def is_result(run_dir: Path, found: dict[str, Any]) -> None:
    """The winner's confirming run is the run's result."""
    by_name = {one["split"]: one for one in found["splits"]}
    assert found["winner"] in {"5P6D", "4P8D"} or machine_is_busy(), "the balanced splits"
    assert by_name["6P4D"]["bottleneck"]["role"] == "decode" or machine_is_busy(), "at 75:25"
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["class"]) == ("VALID", "rehearsal")
    assert verdict["target_qps"] == by_name[found["winner"]]["target_qps"]
    assert json.loads((run_dir / "plan.json").read_text())["split"]["workers"] == found["winner"]

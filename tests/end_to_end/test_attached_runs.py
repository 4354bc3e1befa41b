"""Runs inside a live allocation of a real Slurm: two side by side, one that is cancelled, one that is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from dynamo_mlperf.submission.nodes import nodes_of
from dynamo_mlperf.submission.records import Run
from tests.end_to_end.bench import Cluster, Place
from tests.end_to_end.test_cluster import engine_processes, measuring, wait_until
from tests.end_to_end.test_jobs import topology

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
SITE = "interface: eth0\n"


def started(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    """A verb on the login node, in a session of its own, so that a signal can be sent to it as a terminal would."""
    environment = {**os.environ, "DEVCLUSTER_DIR": str(cluster.root)}
    argv = (str(cluster.program), "exec", "dynamo-mlperf", *words)
    return subprocess.Popen(
        argv,
        cwd=cluster.work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def attached(cluster: Cluster, file: Path, job_id: str, *words: str) -> subprocess.Popen[str]:
    return started(cluster, "run", file.name, "--attach", job_id, "--site", "./plain-site.yaml", "--json", *words)


def until_measuring(place: Place, run: str, process: subprocess.Popen[str]) -> None:
    def reached() -> bool:
        assert process.poll() is None, process.communicate()
        return measuring(place, run)

    wait_until(reached, 300, "the measurement")


def hosts(run_dir: Path) -> list[str]:
    return [node["host"] for node in json.loads(RunPaths(run_dir).plan.read_text())["binding"]]


def shared_memory(cluster: Cluster) -> dict[str, str]:
    found = {node: cluster.on_node(node, "ls", "/dev/shm").strip() for node in ("n1", "n2", "n3", "n4")}
    return {node: names for node, names in found.items() if names}


def test_runs_share_an_allocation_that_outlives_them(place: Place, cluster: Cluster) -> None:
    (place.root / "plain-site.yaml").write_text(SITE)
    short, long = topology(place, "short", min_duration_s=4), topology(place, "long", min_duration_s=500)
    cluster.login("salloc", "--no-shell", "--nodes=4", "--gres=gpu:1", "--mem=2000", "--time=30", "--job-name=held")
    job_id = cluster.login("squeue", "--noheader", "--name=held", "--format=%i").strip()
    runs = place.root / "runs"
    try:
        one = attached(cluster, long, job_id, "--run-dir", "runs/interrupted")
        until_measuring(place, "interrupted", one)
        other = attached(cluster, short, job_id, "--run-dir", "runs/beside")
        out, err = other.communicate(timeout=400)
        verdict: dict[str, Any] = json.loads(out)
        assert (other.returncode, verdict["verdict"], verdict["reasons"]) == (0, "VALID", []), err
        assert f"attached to job {job_id}: 2 of 4 nodes, first n3" in err
        assert "measuring" in err
        assert (hosts(runs / "interrupted"), hosts(runs / "beside")) == (["n1", "n2"], ["n3", "n4"])
        counted = json.loads(RunPaths(runs / "beside").evidence.read_text())["workers"]
        assert {counts["served"] for counts in counted.values()} == {verdict["requests"]}, "by its own workers alone"
        seen = nodes_of(Run(runs / "beside"))
        assert (seen.held, bool(seen.facts)) == ((1, 1), True), "what a submission says of the nodes"
        assert Run(runs / "beside").versions["slurm"]
        assert not engine_processes(cluster).keys() & {"n3", "n4"}
        assert one.poll() is None

        third = attached(cluster, topology(place, "third", nodes=3), job_id)
        out, err = third.communicate(timeout=180)
        assert (third.returncode, json.loads(out)["error"]["exit_code"]) == (3, 3)
        assert "another run of ours is under way on 2 of them (n1, n2; " in err
        stands = {
            run["run"]: run["outcome"]["word"] for run in json.loads(cluster.login("dynamo-mlperf", "status", "--json"))
        }
        assert (stands["interrupted"], stands["beside"]) == ("RUNNING", "VALID")

        os.killpg(one.pid, signal.SIGINT)
        out, err = one.communicate(timeout=180)
        verdict = json.loads(out)
        assert (one.returncode, verdict["verdict"]) == (130, "FAILED"), err
        assert verdict["reasons"][0]["got"] == "stopped by SIGINT"
        assert read_events(RunPaths(runs / "interrupted"))[-1]["exit_code"] == 130
        assert engine_processes(cluster) == {}, "as soon as the prompt is back"

        last = attached(cluster, long, job_id, "--run-dir", "runs/cancelled")
        until_measuring(place, "cancelled", last)
        (ended,) = json.loads(cluster.login("dynamo-mlperf", "cancel", "cancelled", "--json"))
        assert (ended["state"], ended["left"]) == ("ended: CANCELLED", [])
        assert last.wait(timeout=180) == 130
        last.communicate()
        assert (engine_processes(cluster), shared_memory(cluster)) == ({}, {})
        assert cluster.job(job_id)["JobState"] == "RUNNING", "it is the user's"
    finally:
        cluster.login("scancel", job_id)

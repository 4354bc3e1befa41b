"""Engines that a batch job holds on a real Slurm: measured through from the login node, until the job is cancelled."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from dynamo_mlperf.submission.nodes import nodes_of
from dynamo_mlperf.submission.records import Run
from tests.end_to_end.test_attached_runs import SITE, attached, hosts, until_measuring
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, wait_until
from tests.end_to_end.test_jobs import topology

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.bench import Cluster, Place

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]


def holds(place: Place, cluster: Cluster, run: Path, job_id: str) -> bool:
    assert not ended(cluster, job_id), (place.root / f"slurm-{job_id}.out").read_text()
    return any(event["event"] == "hold_begin" for event in read_events(RunPaths(run)))


def engines(cluster: Cluster) -> dict[str, list[str]]:
    """The engines of each node, by process id and command line."""
    found = engine_processes(cluster)
    return {node: sorted(line for line in lines if "dynamo.mocker" in line) for node, lines in found.items()}


def standing(cluster: Cluster, run: str) -> dict[str, Any]:
    (found,) = json.loads(cluster.login("dynamo-mlperf", "status", run, "--json"))
    return dict(found["outcome"])


def test_a_job_holds_its_engines_until_it_is_cancelled(place: Place, cluster: Cluster) -> None:
    (place.root / "plain-site.yaml").write_text(SITE)
    file = topology(place, "holder", min_duration_s=4, slurm="--time=30")
    words = ("--site", "./plain-site.yaml", "--hold")
    job_id = cluster.login("sbatch", "--parsable", file.name, *words).strip()
    runs = place.root / "runs"
    holder = runs / f"holder-{job_id}"
    try:
        wait_until(lambda: holds(place, cluster, holder, job_id), 400, "the hold")
        up = engines(cluster)
        assert any(up.values())
        assert (place.root / f"slurm-{job_id}.out").read_text().count("VALID"), "its result is told before the hold"

        again = attached(cluster, topology(place, "again", min_duration_s=5), job_id, "--run-dir", "runs/again")
        out, err = again.communicate(timeout=400)
        verdict: dict[str, Any] = json.loads(out)
        assert (again.returncode, verdict["verdict"], verdict["reasons"]) == (0, "VALID", []), err
        assert verdict["notes"][0].startswith(f"engines held by run {holder.name}, up for ")
        assert hosts(runs / "again") == hosts(holder)
        seen, theirs = (nodes_of(Run(run)) for run in (runs / "again", holder))
        assert replace(seen, run="") == replace(theirs, run=""), "to a submission they are one"
        assert (bool(seen.facts), Run(runs / "again").versions) == (True, Run(holder).versions)
        counted = json.loads(RunPaths(runs / "again").evidence.read_text())["workers"]
        assert {counts["served"] for counts in counted.values()} == {verdict["requests"]}, "those of this run alone"
        assert engines(cluster) == up

        other = attached(cluster, topology(place, "wider", nodes=3), holder.name)
        out, err = other.communicate(timeout=180)
        refused = json.loads(out)["error"]
        assert (other.returncode, refused["exit_code"]) == (2, 2), err
        assert refused["what"] == f"run {holder.name} holds another deployment: nodes.count is 2 there, 3 here"
        assert standing(cluster, holder.name)["word"] == "RUNNING"
        assert standing(cluster, "again")["word"] == "VALID"

        long = attached(cluster, topology(place, "long", min_duration_s=500), holder.name, "--run-dir", "runs/cut")
        until_measuring(place, "cut", long)
        cluster.login("scancel", job_id)
        out, err = long.communicate(timeout=180)
        verdict = json.loads(out)
        assert (long.returncode, verdict["verdict"]) == (143, "FAILED"), err
        assert verdict["reasons"][0]["got"] == f"run {holder.name}, which holds the engines, was stopped by SIGTERM"
        wait_until(lambda: ended(cluster, job_id), 180, "the end of the job")
        wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
        assert standing(cluster, "cut")["word"] == "CANCELLED"
        left = standing(cluster, holder.name)
        assert (left["word"], left["success"]) == ("VALID", True), left
        assert left["warnings"][-1] == "the hold of its engines was ended by Slurm: CANCELLED"
    finally:
        cluster.login("scancel", job_id, check=False)

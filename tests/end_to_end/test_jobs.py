"""Jobs on a real Slurm that share nodes, are cut off from each other, run out of time, or are started again."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, measuring, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.bench import Cluster, Place

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]

LEAKY_PYTHON = """#!{python}
import mmap, os, runpy, sys
if sys.argv[1:3] == ["-m", "dynamo.mocker"] and "--model-path" in sys.argv:
    left = open(f"/dev/shm/left-by-{{os.getpid()}}", "wb+")
    left.truncate(4096)
    held = mmap.mmap(left.fileno(), 4096)
    sys.argv = sys.argv[2:]
    runpy.run_module("dynamo.mocker", run_name="__main__", alter_sys=True)
else:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""An engine that never takes its shared memory away: one that was killed."""


def topology(
    place: Place,
    name: str,
    *,
    nodes: int = 2,
    gpus: int = 1,
    min_duration_s: float = 8,
    slurm: str = "",
    site: str = "leaky-site.yaml",
    **more: object,
) -> Path:
    """One worker of each role on a GPU of its own, without --exclusive: other jobs may be on the nodes."""
    role = {"workers": 1, "args": {"max-num-seqs": 64, "speedup-ratio": 10}}
    content: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "site": str(place.root / site),
        "nodes": {"count": nodes, "gpus": gpus},
        "model": {"name": "tiny", "weights": {"path": "assets/tiny-qwen3-vl-moe"}},
        "engine": "mocker",
        "device": "cpu",
        "roles": {"prefill": role, "decode": role},
        "measure": {
            "benchmark": "qwen3-vl-235b-a22b",
            "scenario": "Interactive",
            "target_qps": 6,
            "dataset": "assets/tiny-product-catalogue",
        },
        "reduced": {
            "min_duration_s": min_duration_s,
            "samples": 44,
            "percentile": 90,
            "latency_limit_ms": 60000,
        },
        "timeouts": {"warmup_requests": 2},
        **more,
    }
    head = f"#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes={nodes} --gres=gpu:{gpus} --mem=2000 {slurm}\n"
    return place.write(f"{name}.yaml", head + yaml.safe_dump(content))


@pytest.fixture(scope="module")
def leaky(place: Place) -> Iterator[Path]:
    """A site whose engines leave shared memory behind."""
    python = place.root / "leaky-python"
    python.write_text(LEAKY_PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    site = place.root / "leaky-site.yaml"
    site.write_text(yaml.safe_dump({"interface": "eth0", "engine_python": str(python)}))
    yield site
    python.unlink()


@pytest.fixture(scope="module")
def out_of_time(place: Place, cluster: Cluster, leaky: Path) -> str:
    """A job whose minute runs out while the other tests are at work."""
    return cluster.submit(topology(place, "minute", min_duration_s=300, slurm="--time=1 --no-requeue --nodelist=n1,n2"))


def record(place: Place, run: str) -> RunPaths:
    return RunPaths(place.root / "runs" / run)


def shared_memory_of(cluster: Cluster) -> dict[str, list[str]]:
    """What our engines left in /dev/shm, by node."""
    found = {node: cluster.on_node(node, "ls", "/dev/shm").split() for node in ("n1", "n2", "n3", "n4")}
    return {node: names for node, names in found.items() if any("left-by-" in name for name in names)}


def test_two_jobs_on_the_same_nodes_never_meet(place: Place, cluster: Cluster, leaky: Path, out_of_time: str) -> None:
    file = topology(place, "neighbours", slurm="--no-requeue --nodelist=n3,n4")
    jobs = [cluster.submit(file) for _ in range(2)]
    for job_id in jobs:
        wait_until(lambda job_id=job_id: ended(cluster, job_id), 300, "the job's end")  # type: ignore[misc]
    ports, devices, names = [], [], []
    for job_id in jobs:
        paths = record(place, f"neighbours-{job_id}")
        verdict = json.loads(paths.verdict.read_text())
        assert (verdict["verdict"], verdict["reasons"]) == ("VALID", []), paths.root
        counted = json.loads(paths.evidence.read_text())["workers"]
        # Every request of a job, and no other, was served by its own workers.
        assert {name: counts["served"] for name, counts in counted.items()} == dict.fromkeys(
            ("prefill-0", "decode-0"), verdict["requests"]
        )
        binding = json.loads(paths.plan.read_text())["binding"]
        assert [node["host"] for node in binding] == ["n3", "n4"]
        devices.append({(node["host"], device) for node in binding for device in node["devices"]})
        commands = [json.loads(line) for line in paths.commands.read_text().splitlines()]
        own = [command["env"] for command in commands if command["process"] in counted]
        ports.append({env["DYN_SYSTEM_PORT"] for env in own})
        names.append({env["DYN_NAMESPACE"] for env in own})
    assert len(devices[0]) == len(devices[1]) == 2
    for one, other in (devices, ports, names):
        assert one.isdisjoint(other)
    begins = [read_events(record(place, f"neighbours-{job_id}"))[0]["t"] for job_id in jobs]
    first_end = read_events(record(place, f"neighbours-{jobs[0]}"))[-1]["t"]
    assert begins[1] < first_end  # they were there at once
    assert {"n3", "n4"}.isdisjoint(shared_memory_of(cluster))
    removed = [e for e in read_events(record(place, f"neighbours-{jobs[0]}")) if e["event"] == "shared_memory_removed"]
    assert {event["node"] for event in removed} == {0, 1}


def test_nodes_that_cannot_reach_each_other_are_named(place: Place, cluster: Cluster, leaky: Path) -> None:
    file = topology(place, "cut", nodes=3, slurm="--no-requeue --nodelist=n2,n3,n4")
    cluster.on_node("n3", "ip", "route", "add", "blackhole", "10.77.0.14/32")
    try:
        job_id = cluster.submit(file)
        wait_until(lambda: ended(cluster, job_id), 180, "the job's end")
    finally:
        cluster.on_node("n3", "ip", "route", "del", "blackhole", "10.77.0.14/32")
    assert cluster.job(job_id)["ExitCode"] == "3:0"
    said = json.loads(record(place, f"cut-{job_id}").verdict.read_text())["reasons"][0]["got"]
    assert said.startswith("2 of 6 connections between nodes fail: n3 (10.77.0.13) to n4 (10.77.0.14:"), said
    assert "; n4 (10.77.0.14) to n3 (10.77.0.13:" in said


def test_a_job_that_slurm_starts_again_refuses_and_leaves_the_record(
    place: Place, cluster: Cluster, leaky: Path
) -> None:
    file = topology(place, "again", min_duration_s=120, slurm="--nodelist=n3,n4")
    job_id = cluster.login("sbatch", "--parsable", "--requeue", "--open-mode=append", file.name).strip()
    run = f"again-{job_id}"
    wait_until(lambda: measuring(place, run), 300, "the measurement")
    cluster.login("scontrol", "requeue", job_id)
    verdict = record(place, run).verdict
    wait_until(verdict.exists, 180, "the verdict")
    before = verdict.read_bytes()
    assert json.loads(before)["verdict"] == "FAILED"
    wait_until(lambda: cluster.job(job_id)["JobState"] == "PENDING", 180, "the second start in the queue")
    cluster.login("scontrol", "update", f"JobId={job_id}", "StartTime=now")
    wait_until(lambda: ended(cluster, job_id), 180, "the job's second end")
    assert cluster.job(job_id)["ExitCode"] == "3:0"
    said = (place.root / f"slurm-{job_id}.out").read_text()
    assert f"Slurm has restarted job {job_id} from the top (1 times)" in said
    assert verdict.read_bytes() == before


def test_a_job_that_runs_out_of_time_leaves_nothing_and_no_success(
    place: Place, cluster: Cluster, out_of_time: str
) -> None:
    wait_until(lambda: ended(cluster, out_of_time), 300, "the end of its minute")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    assert cluster.job(out_of_time)["JobState"] == "TIMEOUT"
    paths = record(place, f"minute-{out_of_time}")
    verdict = json.loads(paths.verdict.read_text())
    assert (verdict["verdict"], verdict["completed_qps"]) == ("FAILED", None)
    assert verdict["reasons"][0]["check"] == "interrupted"
    assert paths.log_of("prefill-0").exists()
    wait_until(lambda: not shared_memory_of(cluster), LEFT_S, "the end of their shared memory")

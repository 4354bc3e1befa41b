"""Sbatch of topology files on a real four-node Slurm."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from dynamo_mlperf.staging.manifest import load_manifest
from tests.end_to_end.bench import Cluster, Place, answers, topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
NODES = ("n1", "n2", "n3", "n4")
LEFT_S = 30
"""After this time nothing of a job is left on any node: what is promised, however it ended."""


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not after {timeout_s} s"
        time.sleep(0.3)


def ended(cluster: Cluster, job_id: str) -> bool:
    return cluster.job(job_id)["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}


def engine_processes(cluster: Cluster) -> dict[str, list[str]]:
    """Processes of ours that run on each node, by their command lines."""
    found = {}
    for node in NODES:
        lines = cluster.on_node(node, "ps", "-eo", "pid,args").splitlines()
        ours = [line for line in lines if "dynamo." in line or "dynamo_mlperf" in line or "etcd" in line]
        if ours:
            found[node] = ours
    return found


def temporary(cluster: Cluster) -> dict[str, list[str]]:
    """What lies in each node's /tmp and shared memory."""
    return {node: cluster.on_node(node, "ls", "-A", "/tmp", "/dev/shm").split() for node in NODES}


def mocker_2p2d(repository: Path, place: Place, name: str, **reduced: float) -> Path:
    workers = {"workers": 2, "args": {"max-num-seqs": 64}}
    text = topology(
        repository / "topologies" / "devcluster-2p2d.yaml",
        name=name,
        engine="mocker",
        roles={"prefill": {**workers, "tensor_parallel": 2}, "decode": workers},
        measure={
            "benchmark": "qwen3-vl-235b-a22b",
            "scenario": "Interactive",
            "target_qps": 5,
            "dataset": "assets/tiny-product-catalogue",
        },
        reduced={"samples": 44, "percentile": 90, "latency_limit_ms": 60000, **reduced},
    )
    return place.write(f"{name}.yaml", text)


def test_a_job_runs_on_four_nodes_with_their_own_addresses_and_disks_and_the_file_as_it_was_submitted(
    repository: Path, place: Place, cluster: Cluster
) -> None:
    for node in NODES:  # what another test has staged
        cluster.on_node(node, "sh", "-c", f"rm -rf {cluster.root}/nvme/*")
    before = temporary(cluster)
    file = mocker_2p2d(repository, place, "four-nodes", min_duration_s=5)
    job_id = cluster.login("sbatch", "--parsable", "--begin=now+2", file.name).strip()
    submitted = file.read_text()
    file.write_text("schema: 1\nname: broken\n")
    wait_until(lambda: ended(cluster, job_id), 400, "the job's end")
    run_dir = place.root / "runs" / f"four-nodes-{job_id}"
    job = cluster.job(job_id)
    log = (place.root / f"slurm-{job_id}.out").read_text()
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), log[-3000:]
    assert (run_dir / "topology.yaml").read_text() == submitted
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["class"]) == ("VALID", "rehearsal")
    plan = json.loads((run_dir / "plan.json").read_text())
    assert [node["host"] for node in plan["binding"]] == list(NODES)
    assert len({node["address"] for node in plan["binding"]}) == 4
    assert {worker["ranks"][0]["node"] for worker in plan["workers"]} == {0, 1, 2, 3}
    commands = [json.loads(line) for line in (run_dir / "commands.jsonl").read_text().splitlines()]
    by_process = {command["process"]: command for command in commands}
    for worker in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        node = by_process[worker]["node"]
        assert by_process[worker]["env"]["DYN_SYSTEM_HOST"] == plan["binding"][node]["address"]
        model_dir = by_process[worker]["argv"][by_process[worker]["argv"].index("--model-path") + 1]
        assert "model.safetensors.index.json" in cluster.on_node(by_process[worker]["host"], "ls", model_dir)
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    assert temporary(cluster) == before
    staged = [event for event in read_events(RunPaths(run_dir)) if event["event"] == "staged"]
    total_bytes = load_manifest(repository / "staging" / "tiny-qwen3-vl-moe.yaml").total_bytes
    assert [event["bytes_from_store"] + event["bytes_from_peers"] for event in staged] == [total_bytes] * 4
    # Once, where the nodes are not so busy that the store proves faster than they are.
    assert total_bytes <= sum(event["bytes_from_store"] for event in staged) < 4 * total_bytes, "not by each node"
    assert not (run_dir / "stage-peers.json").exists(), "holds a secret"


def measuring(place: Place, run: str) -> bool:
    progress = place.root / "runs" / run / "loadgen" / "progress.json"
    return progress.exists() and json.loads(progress.read_text())["completed"] >= 5


def test_scancel_leaves_nothing_and_no_success(repository: Path, place: Place, cluster: Cluster) -> None:
    job_id = cluster.submit(mocker_2p2d(repository, place, "cancelled", min_duration_s=120))
    run = f"cancelled-{job_id}"
    wait_until(lambda: measuring(place, run), 300, "the measurement")
    cluster.login("scancel", job_id)
    wait_until(lambda: ended(cluster, job_id), 180, "the end of the job")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    verdict = json.loads((place.root / "runs" / run / "verdict.json").read_text())
    assert verdict["verdict"] == "FAILED"
    assert verdict["reasons"][0]["check"] == "interrupted"
    assert verdict["completed_qps"] is None
    assert (place.root / "runs" / run / "logs" / "prefill-0.log").exists()


def test_a_dead_worker_is_named_and_the_job_ends(repository: Path, place: Place, cluster: Cluster) -> None:
    job_id = cluster.submit(mocker_2p2d(repository, place, "bereft", min_duration_s=120))
    run = f"bereft-{job_id}"
    wait_until(lambda: measuring(place, run), 300, "the measurement")
    commands = (place.root / "runs" / run / "commands.jsonl").read_text().splitlines()
    host = next(entry["host"] for entry in map(json.loads, commands) if entry["process"] == "decode-1")
    cluster.on_node(host, "pkill", "-KILL", "-f", "dynamo.mocker")
    wait_until(lambda: ended(cluster, job_id), 180, "the end of the job")
    verdict = json.loads((place.root / "runs" / run / "verdict.json").read_text())
    assert verdict["verdict"] == "FAILED"
    assert f"({host}) was killed by SIGKILL" in verdict["reasons"][0]["got"]
    assert "decode-1" in verdict["reasons"][0]["got"]
    assert cluster.job(job_id)["ExitCode"] == "4:0"
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")


def test_a_node_that_loses_power_ends_the_job(repository: Path, place: Place, cluster: Cluster) -> None:
    job_id = cluster.submit(mocker_2p2d(repository, place, "dark", min_duration_s=120))
    run = f"dark-{job_id}"
    wait_until(lambda: measuring(place, run), 300, "the measurement")
    cluster.call("node-kill", "n3")
    try:
        wait_until((place.root / "runs" / run / "verdict.json").exists, 180, "a verdict")
        verdict = json.loads((place.root / "runs" / run / "verdict.json").read_text())
        assert verdict["verdict"] == "FAILED"
        assert verdict["completed_qps"] is None
        wait_until(lambda: ended(cluster, job_id), 180, "the end of the job")
        wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    finally:
        cluster.call("node-boot", "n3")


@pytest.mark.vllm
def test_real_engines_over_four_nodes_equal_an_aggregated_server(
    repository: Path, place: Place, cluster: Cluster, aggregated: list[str]
) -> None:
    file = place.write("devcluster-2p2d.yaml", (repository / "topologies" / "devcluster-2p2d.yaml").read_text())
    before = temporary(cluster)
    job_id = cluster.submit(file)
    run_dir = place.root / "runs" / f"devcluster-2p2d-{job_id}"
    wait_until(lambda: ended(cluster, job_id), 900, "the job's end")
    assert cluster.job(job_id)["ExitCode"] == "0:0", (place.root / f"slurm-{job_id}.out").read_text()[-3000:]
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["class"]) == ("VALID", "reduced")
    assert verdict["remote_prefills"] == verdict["requests"] == 64
    assert verdict["failed_transfers"] == 0
    assert verdict["disaggregation"]["local_tokens"] == 0
    assert verdict["kv_bytes"] > 0
    assert answers(run_dir) == [aggregated, aggregated]
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")
    assert temporary(cluster) == before, "sockets, files and shared memory of vLLM, too"

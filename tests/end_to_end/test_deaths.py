"""One component of a real Slurm job dies: the job ends, names the first death, and gives the nodes back (R49)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import RunPaths
from tests.end_to_end.bench import Cluster, Place
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, measuring, wait_until
from tests.end_to_end.test_jobs import topology

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]

PAIRS = ("n1,n2", "n3,n4")
"""Two jobs of two nodes each are under way at once."""

PROGRAMS = {
    "etcd": "[^ ]*etcd --",
    "frontend-0": "[^ ]*python[^ ]* -m dynamo.frontend",
    "prefill-0": "[^ ]*python[^ ]* -m dynamo.mocker .*--disaggregation-mode prefill",
    "loadgen": "[^ ]*python[^ ]* -m dynamo_mlperf.load.loadgen_process",
    "aggregated-1": "[^ ]*python[^ ]* -m dynamo.mocker",
}
"""How the command line of the program itself begins; that of its srun, on the first node, has it further behind."""


def started(place: Place, cluster: Cluster, name: str, nodes: str, **more: Any) -> str:
    (place.root / "plain-site.yaml").write_text("interface: eth0\n")
    slurm = f"--no-requeue --nodelist={nodes}"
    return cluster.submit(topology(place, name, min_duration_s=120, slurm=slurm, site="plain-site.yaml", **more))


def paths_of(place: Place, run: str) -> RunPaths:
    return RunPaths(place.root / "runs" / run)


def kill(place: Place, cluster: Cluster, run: str, victim: str) -> str:
    """Kill the program of a process on its node; returns the node."""
    entries = map(json.loads, paths_of(place, run).commands.read_text().splitlines())
    host = next(str(entry["host"]) for entry in entries if entry["process"] == victim)
    done = cluster.call("exec", "-n", host, "pkill", "-KILL", "-f", f"^{PROGRAMS[victim]}", check=False)
    assert done.returncode == 0, f"no such process on {host}"
    return host


def verdict_of(place: Place, run: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(paths_of(place, run).verdict.read_text())
    return found


@pytest.mark.parametrize("victims", [("etcd", "frontend-0"), ("prefill-0", "loadgen")])
def test_one_death_ends_the_job_is_named_and_gives_the_nodes_back(
    place: Place, cluster: Cluster, victims: tuple[str, str]
) -> None:
    jobs = {name: started(place, cluster, f"without-{name}", PAIRS[at]) for at, name in enumerate(victims)}
    hosts = {}
    for victim, job_id in jobs.items():
        run = f"without-{victim}-{job_id}"
        wait_until(lambda run=run: measuring(place, run), 300, "the measurement")  # type: ignore[misc]
        hosts[victim] = kill(place, cluster, run, victim)
    for at, (victim, job_id) in enumerate(jobs.items()):
        wait_until(lambda job_id=job_id: ended(cluster, job_id), 180, "the end of the job")  # type: ignore[misc]
        job, verdict = cluster.job(job_id), verdict_of(place, f"without-{victim}-{job_id}")
        assert (job["JobState"], job["ExitCode"]) == ("FAILED", "4:0")
        assert (verdict["verdict"], verdict["completed_qps"]) == ("FAILED", None)
        (reason,) = verdict["reasons"]
        where = f"node {PAIRS[at].split(',').index(hosts[victim])} ({hosts[victim]})"
        assert reason["got"].startswith(f"{victim} on {where} was killed by SIGKILL"), reason
        assert f"logs/{victim}.log" in reason["action"]
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")


def test_a_lost_replica_is_dropped_or_brought_back_and_the_result_says_so(place: Place, cluster: Cluster) -> None:
    jobs = {}
    for policy, nodes in zip(("drop", "restart"), PAIRS, strict=True):
        role = {"workers": 2, "on_worker_loss": policy, "args": {"max-num-seqs": 64, "speedup-ratio": 10}}
        short = {"min_duration_s": 20, "samples": 44, "percentile": 90, "latency_limit_ms": 60000}
        jobs[policy] = started(place, cluster, policy, nodes, roles={"aggregated": role}, reduced=short)
    hosts = {}
    for policy, job_id in jobs.items():
        run = f"{policy}-{job_id}"
        wait_until(lambda run=run: measuring(place, run), 300, "the measurement")  # type: ignore[misc]
        hosts[policy] = kill(place, cluster, run, "aggregated-1")
    for policy, became in (("drop", "dropped"), ("restart", "restarted")):
        job_id = jobs[policy]
        wait_until(lambda job_id=job_id: ended(cluster, job_id), 300, "the end of the job")  # type: ignore[misc]
        verdict = verdict_of(place, f"{policy}-{job_id}")
        assert verdict["verdict"] != "FAILED", verdict["reasons"]
        assert verdict["requests"] > 0
        (note,) = [note for note in verdict["notes"] if note.startswith("lost: ")]
        told = f"lost: aggregated-1 on node 1 ({hosts[policy]}) was killed by SIGKILL: "
        assert note.startswith(told + became), note
        (loss,) = json.loads(paths_of(place, f"{policy}-{job_id}").evidence.read_text())["losses"]
        assert loss["became"] == became
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")

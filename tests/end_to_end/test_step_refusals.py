"""Steps that a real Slurm refuses or leaves waiting: the run ends in time, and names the step and the resource (R45)."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import RunPaths
from tests.end_to_end.bench import Cluster, Place
from tests.end_to_end.test_cluster import LEFT_S, ended, engine_processes, measuring, wait_until
from tests.end_to_end.test_jobs import topology

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]

SITE = "interface: eth0\nstep_start_s: 10\n"
OWN_SRUN = """#!/bin/bash
# A site's own srun before Slurm's: it changes an option of one step.
case " $* " in *" --job-name=dmp-"??????"-{step} "*) set -- "${{@/#{old}/{new}}}" ;; esac
exec {srun} "$@"
"""
BESIDE_A_HOG = """#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:1 --exclusive --no-requeue
node=$(scontrol show hostnames | tail -1)
srun --exact --nodes=1 --nodelist=$node --ntasks=32 --job-name=hog sleep 600 &
until squeue --noheader --steps --jobs=$SLURM_JOB_ID --format=%j | grep -qx hog; do sleep 0.2; done
exec dynamo-mlperf job {file}
"""
REFUSED = {
    "node-1": ("--nodelist=*", "--nodelist=n3", "Requested node configuration is not available; missing: the node"),
    "etcd": ("--ntasks=1", "--ntasks=99", "More processors requested than permitted; missing: CPUs"),
    "prefill-0": ("--mem=0", "--mem=999999", "Memory required by task is not available; missing: memory"),
    "loadgen": (
        "--kill-on-bad-exit=0",
        "--gres=gpu:9",
        "Invalid generic resource (gres) specification; missing: GPUs",
    ),
}
"""The step, one of its options, what that becomes, and what the run says."""


def with_own_srun(place: Place, cluster: Cluster, file: Path, step: str, change: tuple[str, str]) -> str:
    """Sbatch the file where another srun is the first on PATH; returns the job id."""
    old, new = change
    directory = place.root / f"srun-for-{step}"
    directory.mkdir()
    program = directory / "srun"
    program.write_text(OWN_SRUN.format(step=step, old=old, new=new, srun=shutil.which("srun")))
    program.chmod(0o755)
    line = f'PATH={directory}:$PATH exec sbatch --parsable "$1"'
    return cluster.login("sh", "-c", line, "sh", file.name).strip()


def reason_of(place: Place, cluster: Cluster, run: str, job_id: str) -> dict[str, Any]:
    """Why the run failed, once its job has ended with the code that says so."""
    wait_until(lambda: ended(cluster, job_id), 300, f"the end of {run}")
    paths = RunPaths(place.root / "runs" / run)
    verdict = json.loads(paths.verdict.read_text())
    assert (cluster.job(job_id)["ExitCode"], verdict["verdict"]) == ("3:0", "FAILED"), verdict["reasons"]
    found: dict[str, Any] = verdict["reasons"][0]
    return found


def test_a_refused_step_ends_the_run_and_is_named_with_what_is_missing(place: Place, cluster: Cluster) -> None:
    (place.root / "quick-site.yaml").write_text(SITE)
    jobs = {}
    for step, (*change, _told) in REFUSED.items():
        slurm = "--no-requeue --nodelist=" + ("n1,n2" if step in ("node-1", "prefill-0") else "n3,n4")
        file = topology(place, f"refused-{step}", slurm=slurm, site="quick-site.yaml", min_duration_s=60)
        jobs[step] = with_own_srun(place, cluster, file, step, (change[0], change[1]))
    for step, job_id in jobs.items():
        reason = reason_of(place, cluster, f"refused-{step}-{job_id}", job_id)
        found = re.fullmatch(r"Slurm did not start (\S+) on node \d \(n\d\) in \d+ s: (.*)", reason["got"])
        assert found, reason
        assert (found[1], found[2]) == (step, REFUSED[step][2])
        assert reason["action"]
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")


def test_a_step_that_waits_for_another_ends_the_run_which_names_the_one_that_holds_the_node(
    place: Place, cluster: Cluster
) -> None:
    (place.root / "quick-site.yaml").write_text(SITE)
    file = topology(place, "beside-a-hog", site="quick-site.yaml", min_duration_s=60)
    script = place.write("beside-a-hog.sh", BESIDE_A_HOG.format(file=file))
    job_id = with_own_srun(place, cluster, script, "decode-0", ("--overlap", "--exact"))
    reason = reason_of(place, cluster, f"beside-a-hog-{job_id}", job_id)
    found = re.fullmatch(
        r"Slurm did not start decode-0 on node 1 \((n\d)\) in \d+ s: Requested nodes are busy; missing: (.*)",
        reason["got"],
    )
    assert found, reason
    who = f"of {found[1]} held by step {job_id}.0 (hog)"
    assert found[2].split(", ")[0] == f"32 of 32 CPUs {who}"
    assert reason["action"].startswith(f"end what holds it: scancel {job_id}.0")
    wait_until(lambda: not engine_processes(cluster), LEFT_S, "the end of all processes")


def test_all_steps_of_a_job_run_at_once_on_one_small_node(place: Place, cluster: Cluster) -> None:
    (place.root / "quick-site.yaml").write_text("interface: eth0\n")
    file = topology(place, "small", nodes=1, gpus=2, slurm="--cpus-per-task=2 --no-requeue", site="quick-site.yaml")
    file.write_text(file.read_text().replace(" --mem=2000", ""))
    job_id = cluster.submit(file)
    run = f"small-{job_id}"
    wait_until(lambda: measuring(place, run), 300, "the measurement")
    listed = cluster.login("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %j").splitlines()
    names = {line.split()[1].partition("-")[2].partition("-")[2] for line in listed if "dmp-" in line}
    assert names == {"node-0", "etcd", "frontend-0", "prefill-0", "decode-0", "loadgen"}, listed
    assert cluster.job(job_id)["NumCPUs"] == "2"
    wait_until(lambda: ended(cluster, job_id), 300, "the job's end")
    assert cluster.job(job_id)["ExitCode"] == "0:0", (place.root / f"slurm-{job_id}.out").read_text()[-3000:]
    logs = (place.root / "runs" / run / "logs").glob("*.log")
    assert not [log.name for log in logs if "step creation" in log.read_text(errors="replace")]

"""`--attach JOBID` refuses before anything starts, and tells a launcher that failed from a run that did."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.fakes.slurm_programs import NO_CONFIGURATION, NO_CONTROLLER, FakeSlurm
from tests.topology.topology_texts import measure_block, simulated

if TYPE_CHECKING:
    from pathlib import Path

JOB = (
    f"JobId=17 UserId=me({os.getuid()}) JobState=RUNNING Reason=None EndTime=1800000000 NodeList=n[1-2] NumNodes=2 "
    "Nodes=n[1-2] CPU_IDs=0 Mem=4000 GRES=gpu:1(IDX:0) \n"
)


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    directory = tmp_path / "bin"
    directory.mkdir()
    fake = FakeSlurm(directory)
    fake.answers("scontrol", JOB)
    fake.answers("squeue", "")
    fake.script("srun", "exit 1")
    fake.script("scancel", "")
    return fake


def attached(slurm: FakeSlurm, verb: str, *words: str, **blocks: object) -> subprocess.CompletedProcess[str]:
    given = {"measure": measure_block(dataset="/there"), "reduced": {"min_duration_s": 4, "samples": 44}, **blocks}
    value = simulated(**given)
    file = slurm.directory.parent / "sample.yaml"
    file.write_text(yaml.safe_dump(value))
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", verb, file.name, "--attach", "17", *words]
    env = {"PATH": slurm.path, "HOME": str(file.parent), "HF_TOKEN": "hf_secret", "SLURM_CPU_BIND": "x"}
    return subprocess.run(argv, cwd=file.parent, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("verb", ["run", "job", "sweep", "search"])
def test_a_job_with_too_few_nodes_is_refused_by_every_verb(slurm: FakeSlurm, verb: str) -> None:
    blocks = {"sweep": {"splits": ["1P1D"]}} if verb == "sweep" else {}
    done = attached(slurm, verb, nodes={"count": 3, "gpus": 1}, **blocks)
    assert (done.returncode, done.stdout) == (3, "")
    assert "job 17 has 2 nodes (n1, n2), 3 planned" in done.stderr
    assert slurm.calls("srun") == []


@pytest.mark.parametrize("silent", [NO_CONFIGURATION, NO_CONTROLLER])
def test_a_slurm_that_does_not_answer_is_called_that(slurm: FakeSlurm, silent: str) -> None:
    slurm.script("scontrol", silent)
    done = attached(slurm, "run")
    last = "Could not establish a configuration source" if silent == NO_CONFIGURATION else "Unable to contact slurm"
    assert (done.returncode, done.stdout) == (3, "")
    assert f"Slurm does not answer here: {last}" in done.stderr
    assert ("login node" in done.stderr, "squeue" in done.stderr) == (True, False)


def test_too_few_gpus_and_a_run_under_way_are_refused(slurm: FakeSlurm) -> None:
    gpus = {"nodes": {"count": 2, "gpus": 2}, "engine": "vllm", "device": "cuda"}
    done = attached(slurm, "run", **gpus)
    assert (done.returncode, "job 17 was given 1 GPUs on each of 2 nodes (n1, n2), 2 on" in done.stderr) == (3, True)
    slurm.answers("squeue", "17.0  dmp-0a1b2c.1  n2\n")
    done = attached(slurm, "run")
    assert (done.returncode, "another run of ours is under way on 1 of them (n2; 1 steps)" in done.stderr) == (3, True)
    assert slurm.calls("srun") == []


def test_a_test_that_does_not_fit_the_jobs_time_is_refused_before_anything_starts(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", JOB.replace("EndTime=1800000000", f"EndTime={int(time.time()) + 400}"))
    long = {"min_duration_s": 500, "samples": 44}
    done = attached(slurm, "run", reduced=long)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "error: one test takes 8 min 26 s or more (1012 queries at 2 per second), and job 17 has " in done.stderr
    assert " left for it\n  Try: attach to a job with more time" in done.stderr
    done = attached(slurm, "search", reduced=long)
    assert (done.returncode, "(500 s at least by its settings), and job 17 has " in done.stderr) == (3, True)
    assert slurm.calls("srun") == []


def test_a_plan_that_does_not_fit_is_refused_before_slurm_is_asked(slurm: FakeSlurm) -> None:
    done = attached(slurm, "run", roles={"prefill": {"workers": 2}, "decode": {"workers": 1}})
    assert (done.returncode, "3 GPU slots asked for" in done.stderr) == (2, True)
    assert slurm.calls("scontrol") == []
    done = attached(slurm, "sweep", "--parallel", "2", sweep={"splits": ["1P1D"]})
    assert (done.returncode, "--parallel sends jobs of its own" in done.stderr) == (2, True)


def test_a_launcher_that_fails_is_no_run_and_its_code_comes_back_where_one_began(slurm: FakeSlurm) -> None:
    slurm.script("srun", "echo 'srun: error: no way' >&2; exit 1")
    done = attached(slurm, "run")
    assert done.returncode == 3
    assert "srun: error: no way\nerror: job 17: no run began on n1: srun ended with 1" in done.stderr
    (call,) = slurm.calls("srun")
    assert (
        "--quiet --jobid=17 --overlap --mem=0 --immediate=60 --nodes=1 --ntasks=1 --cpu-bind=none --nodelist=n1" in call
    )
    assert "-m dynamo_mlperf.process.relay" in call
    slurm.script("srun", "exit 0")
    done = attached(slurm, "run")
    assert (done.returncode, "no run began on n1: srun ended with 0" in done.stderr) == (3, True), done.stderr
    slurm.script("srun", "kill -9 $$")
    done = attached(slurm, "run")
    assert (done.returncode, "no run began on n1: srun ended with 137 (SIGKILL)" in done.stderr) == (3, True)
    slurm.script("srun", "exit 143")
    done = attached(slurm, "run")
    assert done.returncode == 143
    assert "stopped before a run began on n1: srun ended with 143 (SIGTERM)" in done.stderr
    slurm.script("srun", 'env > "$0.env"; mkdir -p runs/mine; echo out; exit 5')
    done = attached(slurm, "run", "--run-dir", "runs/mine")
    assert (done.returncode, done.stdout) == (5, "out\n"), done.stderr
    seen = (slurm.directory / "srun.env").read_text()
    assert "hf_secret" not in seen
    assert "SLURM_CPU_BIND" not in seen
    again = attached(slurm, "run", "--run-dir", "runs/mine")
    assert (again.returncode, "exists: results of two runs would mix" in again.stderr) == (2, True)


def test_steps_that_a_killed_controller_left_are_ended(slurm: FakeSlurm) -> None:
    name = slurm.directory / "name"
    slurm.script(
        "srun",
        f'for w; do case $w in --job-name=*) echo "${{w#*=}}" > {name};; esac; done; mkdir -p runs/mine; kill -9 $$',
    )
    slurm.script("squeue", f'[ ! -e {name} ] || [ -e {name}.gone ] || echo "17.4 $(sed s/[.].*//  {name})-decode-0 n1"')
    slurm.script("scancel", f"touch {name}.gone")
    done = attached(slurm, "run", "--run-dir", "runs/mine")
    assert done.returncode == 137, done.stderr
    assert "runs/mine was cut short: srun ended with 137 (SIGKILL)" in done.stderr
    assert slurm.calls("scancel") == ["--signal=KILL 17.4"]


def test_only_attach_makes_what_the_controller_is_told(slurm: FakeSlurm) -> None:
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "job", "sample.yaml", "--within", '{"token": 1}']
    done = subprocess.run(argv, cwd=slurm.directory, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "--within is not as --attach writes it" in done.stderr) == (2, True)

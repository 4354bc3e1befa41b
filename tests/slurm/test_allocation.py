"""The srun command line of a step, whole, and what a batch job's environment must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob

ENVIRONMENT = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_SUBMIT_DIR": "/home/me"}


def test_a_step_gets_its_environment_by_env_alone() -> None:
    allocation = SlurmAllocation(SlurmJob.current(ENVIRONMENT))
    command = Command(
        "decode-1",
        ("python", "-m", "engine", "--kv", '{"a": "b,c"}'),
        {"PATH": "/bin", "UCX_NET_DEVICES": "eth0,eth1"},
        Path("x.log"),
        node=2,
        cwd=Path("/run"),
    )
    assert allocation.step_argv(command) == [
        "srun",
        "--jobid=42",
        "--overlap",
        "--mem=0",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist=n3",
        "--job-name=dmp-decode-1",
        "--input=none",
        "--kill-on-bad-exit=0",
        "--unbuffered",
        "--chdir=/run",
        "env",
        "-i",
        "PATH=/bin",
        "UCX_NET_DEVICES=eth0,eth1",
        "python",
        "-m",
        "engine",
        "--kv",
        '{"a": "b,c"}',
    ]


def test_outside_a_job_it_says_what_to_use_instead() -> None:
    with pytest.raises(SetupError, match="dynamo-mlperf run"):
        SlurmJob.current({})


def test_a_restarted_job_refuses_to_mix_results() -> None:
    with pytest.raises(SetupError, match=r"restarted job 42.*\(2 times\)"):
        SlurmJob.current({**ENVIRONMENT, "SLURM_RESTART_COUNT": "2"})

"""The srun command line of a step, whole, and what a batch job's environment must say."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob

ENVIRONMENT = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_SUBMIT_DIR": "/home/me"}


def test_a_step_gets_its_environment_by_env_alone() -> None:
    allocation = SlurmAllocation(SlurmJob.current(ENVIRONMENT), token="0a1b2c")
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
        "--immediate=60",
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        "--nodelist=n3",
        "--job-name=dmp-0a1b2c-decode-1",
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


def test_our_agent_alone_sees_what_slurm_says_and_hears_us() -> None:
    allocation = SlurmAllocation(SlurmJob.current(ENVIRONMENT))
    command = Command("node-0", ("python", "-m", "agent"), {"PATH": "/bin"}, Path("x.log"), agent=True)
    argv = allocation.step_argv(command)
    assert "--input=none" not in argv
    assert argv[argv.index("env") :] == ["env", "PATH=/bin", "python", "-m", "agent"]


def test_outside_a_job_it_says_what_to_use_instead() -> None:
    with pytest.raises(SetupError, match="dynamo-mlperf run"):
        SlurmJob.current({})


def test_a_restarted_job_refuses_to_mix_results() -> None:
    with pytest.raises(SetupError, match=r"restarted job 42.*\(2 times\)"):
        SlurmJob.current({**ENVIRONMENT, "SLURM_RESTART_COUNT": "2"})


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_signals_go_to_the_steps_by_id_and_never_to_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "srun", "exec sleep 600")
    program(
        tmp_path,
        "squeue",
        "printf '42.3   dmp-0a1b2c-decode-0\\n42.4   dmp-0a1b2c-prefill-0\\n42.batch   batch\\n42.9  other\\n"
        "42.5  dmp-ffffff-decode-0\\n42.6  dmp-0a1b2c.0-3\\n'",
    )
    program(tmp_path, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    allocation = SlurmAllocation(SlurmJob.current(ENVIRONMENT), token="0a1b2c")
    child = allocation.start(Command("decode-0", ("engine",), {}, tmp_path / "decode-0.log"))
    allocation.send([child], signal.SIGTERM)
    assert (tmp_path / "cancelled").read_text() == "--signal=TERM 42.3\n"
    assert child.poll() is None
    allocation.send([child], signal.SIGKILL)
    while child.poll() is None:
        time.sleep(0.01)
    assert (tmp_path / "cancelled").read_text().splitlines()[-1] == "--signal=KILL 42.3"
    assert allocation.sweep()[:2] == ["step decode-0", "step prefill-0"]
    left_alone = "the steps of another run in the same job, and our own controller's"
    assert (tmp_path / "cancelled").read_text().splitlines()[-1] == "--signal=KILL 42.3 42.4", left_alone


def test_stopping_goes_on_when_slurm_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "srun", "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    allocation = SlurmAllocation(SlurmJob.current(ENVIRONMENT))
    child = allocation.start(Command("decode-0", ("engine",), {}, tmp_path / "decode-0.log"))
    program(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    allocation.send([child], signal.SIGTERM)
    allocation.send([child], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.poll() == -signal.SIGKILL

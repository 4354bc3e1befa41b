"""`status`: the table, one run alone, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.fakes.slurm_programs import NO_ACCOUNTING, FakeSlurm
from tests.slurm.test_outcome import make_run

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli", "status")


def status(place: Path, *words: str, fake: FakeSlurm) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("env", f"PATH={fake.path}", *PROGRAM, *words),
        cwd=place,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def two_runs(tmp_path: Path) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    fake.directory.mkdir()
    fake.script("sacct", NO_ACCOUNTING)
    fake.answers(
        "scontrol",
        "JobId=42 JobState=COMPLETED Reason=None ExitCode=0:0 DerivedExitCode=1:0 NodeList=n[1-2]\n"
        "JobId=43 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0 DerivedExitCode=0:0 NodeList=n[1-2]\n",
    )
    make_run(tmp_path / "runs", "42")
    make_run(tmp_path / "runs", "43", verdict=None, code=None)
    return fake


def test_all_runs_by_default_with_one_question(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    done = status(tmp_path, fake=fake)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["RUN", "JOB", "STANDS", "PHASE", "WORKERS"]
    assert lines[1].split()[:4] == ["r-42", "42", "VALID", "-"]
    assert lines[1].endswith(
        "  0 of 2 ready, 1 ended  "
        "4.50 completed per second; warning: a step of the job ended with 1 (Slurm's derived exit code)"
    )
    assert "NODE_FAIL" in lines[2]
    assert lines[2].endswith("lost a node (NodeDown)")
    assert len(fake.calls("scontrol")) == 1


def test_one_run_alone_has_its_workers(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    done = status(tmp_path, "43", fake=fake)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0] == "r-43  NODE_FAIL"
    assert "  job      43 NODE_FAIL, NodeDown on n[1-2] (by scontrol)" in shown
    assert "  worker   decode-0  ready  n1" in shown
    assert "  worker   decode-1  planned  n2" in shown


def test_json_carries_everything(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    one, two = json.loads(status(tmp_path, "--json", fake=fake).stdout)
    assert (one["run"], one["job_id"], one["verdict"], one["outcome"]["success"]) == ("r-42", "42", "VALID", True)
    assert (two["job"]["state"], two["outcome"]["word"], two["phase"]) == ("NODE_FAIL", "NODE_FAIL", "measure")


def test_no_runs_and_unknown_runs(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    (tmp_path / "empty").mkdir()
    assert status(tmp_path / "empty", fake=fake).stdout.startswith("no runs below runs/")
    refused = status(tmp_path, "r-44", fake=fake)
    assert (refused.returncode, "Try: name r-4" in refused.stderr) == (2, True)


def test_watching_ends_when_all_have_ended(tmp_path: Path) -> None:
    assert "NODE_FAIL" in status(tmp_path, "--watch", fake=two_runs(tmp_path)).stdout

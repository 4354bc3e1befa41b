"""`cancel` of runs on this machine: the controller is asked to end, and only it."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.process.machine import controller_of
from tests.fakes.slurm_programs import NO_ACCOUNTING, NO_SUCH_JOB, FakeSlurm
from tests.job.chain import Place
from tests.slurm.test_outcome import make_run

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli", "cancel")
CONTROLLER = """
import json, shutil, signal, sys, time
from pathlib import Path
from dynamo_mlperf.process.machine import make_scratch, run_mark
root, obey, run = Path(sys.argv[1]), sys.argv[2] == "obey", sys.argv[3]
root.mkdir(parents=True)
events = root / "events.jsonl"
events.write_text(json.dumps({"t": 1.0, "event": "job_begin", "run": run, "place": "this machine, 1 virtual node"}) + "\\n")
scratch = make_scratch(run, run_mark(run))
def end(*_):
    if obey:
        (root / "verdict.json").write_text(json.dumps({"verdict": "FAILED", "reasons": [{"check": "interrupted", "got": "stopped by SIGTERM"}]}))
        with events.open("a") as out: out.write(json.dumps({"t": 2.0, "event": "job_end", "exit_code": 143}) + "\\n")
        raise SystemExit(143)
signal.signal(signal.SIGTERM, end)
try:
    print("up", flush=True)
    while True: time.sleep(0.1)
except KeyboardInterrupt: pass
finally:
    shutil.rmtree(scratch)
"""


class Controller:
    """A process that runs as the controller of a run."""

    def __init__(self, root: Path, manner: str = "obey", run_id: str = "") -> None:
        argv = (sys.executable, "-c", CONTROLLER, str(root), manner, run_id or root.name)
        self.popen = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdout is not None
        if self.popen.stdout.readline() != "up\n":
            self.end()
            raise AssertionError(f"the controller ended with {self.popen.returncode}")

    def end(self) -> None:
        """Whatever happened, it is gone and its scratch directory with it."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)
        self.popen.wait(timeout=60)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def cancel(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*PROGRAM, *words), cwd=place, text=True, capture_output=True, check=False, timeout=240)


def test_the_controller_of_the_named_run_ends_and_no_other(tmp_path: Path) -> None:
    name = f"cancel-{secrets.token_hex(4)}-"  # its scratch directory outlives a test run that was killed
    one, two = Controller(tmp_path / "runs" / f"{name}1"), Controller(tmp_path / "runs" / f"{name}2")
    try:
        assert controller_of(f"{name}1") == one.popen.pid
        refused = cancel(tmp_path, name.removesuffix("-"))
        assert (refused.returncode, "names 2 runs" in refused.stderr) == (2, True)
        done = cancel(tmp_path, f"{name}1", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [{"run": f"{name}1", "job_id": None, "state": "ended: CANCELLED", "left": []}]
        assert one.popen.wait(timeout=60) == 143
        assert two.popen.poll() is None
        assert controller_of(f"{name}2") == two.popen.pid
        again = cancel(tmp_path, f"runs/{name}1")
        assert (again.returncode, again.stdout) == (0, f"{name}1  had ended already: CANCELLED\n")
    finally:
        one.end()
        two.end()


def test_what_does_not_end_is_said(tmp_path: Path) -> None:
    name = f"stubborn-{secrets.token_hex(4)}"
    stubborn = Controller(tmp_path / "runs" / name, "ignore")
    try:
        done = cancel(tmp_path, name, "--timeout", "0.5")
        assert done.returncode == 3
        assert f"left: controller with pid {stubborn.popen.pid}, still stopping after 0.5 s" in done.stdout
    finally:
        stubborn.end()


def test_a_run_whose_controller_is_gone_has_ended(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "gone"
    root.mkdir(parents=True)
    (root / "events.jsonl").write_text(json.dumps({"event": "job_begin", "place": "this machine"}) + "\n")
    done = cancel(tmp_path, "gone")
    assert (done.returncode, done.stdout) == (0, "gone  had ended already: its controller is gone\n")


@pytest.mark.parametrize("word", ["nothing", "runs/nothing"])
def test_no_such_run(tmp_path: Path, word: str) -> None:
    assert cancel(tmp_path, word).returncode == 2


def test_a_run_in_a_directory_of_another_name_is_found_by_its_id(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "runs" / "first-try", run_id=f"elsewhere-{secrets.token_hex(4)}")
    try:
        done = cancel(tmp_path, "first-try", "--json")
        assert json.loads(done.stdout) == [
            {"run": "first-try", "job_id": None, "state": "ended: CANCELLED", "left": []}
        ], done.stderr
        assert controller.popen.wait(timeout=60) == 143
    finally:
        controller.end()


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_the_controller_of_a_run_is_known_until_its_end_is_on_record(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.run(place.topology()) as run:
        run.wait_for_phase("check")
        done = cancel(tmp_path, str(run.paths.root))
        assert done.stdout == f"{run.paths.root.name}  ended: CANCELLED\n", done.stderr
        assert run.events()[-1]["event"] == "job_end"
        assert run.end().status == 143
        run.assert_nothing_left()


def test_a_job_that_nobody_knows_is_refused_before_another_is_ended(tmp_path: Path) -> None:
    fake = FakeSlurm(tmp_path / "bin")
    fake.directory.mkdir()
    fake.script("sacct", NO_ACCOUNTING)
    fake.script("scontrol", NO_SUCH_JOB)
    fake.script("scancel", "true")  # as Slurm 22.05: nothing to say of such a job, and 0
    make_run(tmp_path / "runs", "42", verdict=None, code=None)
    command = ("env", f"PATH={fake.path}", *PROGRAM)
    strange = subprocess.run((*command, "42", "99"), cwd=tmp_path, text=True, capture_output=True, check=False)
    assert (strange.returncode, strange.stdout) == (2, "")
    assert strange.stderr.startswith("error: no job 99: Slurm does not know it\n  Try: ")
    known = subprocess.run((*command, "42"), cwd=tmp_path, text=True, capture_output=True, check=False)
    assert known.returncode == 0, known.stderr
    assert known.stdout == "r-42  had ended already: Slurm does not know it any more, or does not answer\n"
    assert fake.calls("scancel") == []

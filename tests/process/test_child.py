"""Processes: started in sessions of their own, ended with all that they leave behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.process.command import Command, inherited_environment


def command(tmp_path: Path, script: str, name: str = "worker", **env: str) -> Command:
    return Command(name, (sys.executable, "-c", script), {**inherited_environment(), **env}, tmp_path / f"{name}.log")


PATIENCE_S = 60.0
"""Longest wait for what a process does at once on a machine that has nothing else to do."""


def wait_for_text(path: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if path.exists() and text in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"{text!r} never came in {path}: {path.read_text() if path.exists() else 'no file'}")


def ended(child: Child) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = child.poll()
        if status is not None:
            return status
        time.sleep(0.02)
    raise AssertionError(f"{child.command.name} still runs")


def gone(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_environment_is_exactly_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    odd = 'a,b "c" \'d\' $HOME \\ {"x": [1, 2]}'
    child = LocalAllocation(1).start(command(tmp_path, "import os, json; print(json.dumps(dict(os.environ)))", ODD=odd))
    assert ended(child) == 0
    seen = json.loads((tmp_path / "worker.log").read_text())
    assert seen["ODD"] == odd
    assert {"HF_TOKEN", "LD_LIBRARY_PATH", "SLURM_CPU_BIND"} & seen.keys() == set()


def test_missing_program_is_a_setup_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no-such-program"):
        LocalAllocation(1).start(Command("worker", ("no-such-program",), {}, tmp_path / "worker.log"))


def test_secrets_are_not_recorded(tmp_path: Path) -> None:
    record = command(tmp_path, "pass", HF_TOKEN="hf_x", MY_API_KEY="k", UCX_TLS="tcp").as_record()
    assert record["env"]["HF_TOKEN"] == record["env"]["MY_API_KEY"] == "(not recorded)"
    assert record["env"]["UCX_TLS"] == "tcp"


def test_sweep_finds_a_stray_in_a_session_of_its_own(tmp_path: Path) -> None:
    stray = "import os, subprocess, sys\np = subprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('stray', p.pid, flush=True)"
    # Everything below this process goes: what other tests' worker processes have left running would be missed later.
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    allocation = LocalAllocation(1)
    child = allocation.start(command(tmp_path, stray))
    wait_for_text(tmp_path / "worker.log", "stray")
    assert ended(child) == 0
    pid = int((tmp_path / "worker.log").read_text().split()[1])
    assert psutil.pid_exists(pid)
    swept = allocation.sweep()
    assert any(entry.startswith(f"{pid} ") for entry in swept)
    assert gone(pid)


def test_children_end_when_the_controller_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from dynamo_mlperf.process.allocation import LocalAllocation\n"
        "from dynamo_mlperf.process.command import Command, inherited_environment\n"
        f"c = LocalAllocation(1).start(Command('w', ('sleep', '600'), inherited_environment(), Path({str(tmp_path / 'w.log')!r})))\n"
        "print(c.pid, flush=True); time.sleep(600)"
    )
    controller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    with controller, controller.stdout:
        pid = int(controller.stdout.readline())
        assert psutil.pid_exists(pid)
        controller.kill()
    assert gone(pid)


def test_kill_takes_the_whole_process_group(tmp_path: Path) -> None:
    script = "import subprocess, time\np = subprocess.Popen(['sleep', '600'])\nprint('engine', p.pid, flush=True); time.sleep(600)"
    allocation = LocalAllocation(1)
    child = allocation.start(command(tmp_path, script))
    wait_for_text(tmp_path / "worker.log", "engine")
    engine = int((tmp_path / "worker.log").read_text().split()[1])
    allocation.send([child], signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert gone(engine)

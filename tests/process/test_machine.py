"""What a node says of itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from dynamo_mlperf.process.command import RUN_VARIABLE, inherited_environment
from dynamo_mlperf.process.machine import end_processes, facts_from_json, read_machine, run_mark


def test_facts_survive_json(tmp_path: Path) -> None:
    facts = read_machine(tmp_path / "not" / "yet" / "there")
    assert facts_from_json(json.loads(json.dumps(facts.as_json()))) == facts
    assert facts.addresses["lo"] == "127.0.0.1"
    assert facts.disk_free_bytes > 0


def test_a_listening_port_is_seen_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        assert read_machine(tmp_path).listening[port] == os.getpid()
    assert read_machine(tmp_path).listening.get(port) != os.getpid()


def test_leftovers_are_those_whose_controller_is_gone(tmp_path: Path) -> None:
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    dead = f"old-run@{socket.gethostname()}@{namespace}@{2**22 - 1}@1"
    marks = {
        "dead": dead,
        "alive": run_mark("this-run"),
        "elsewhere": f"run@another-host@{namespace}@1@1",
        "contained": f"run@{socket.gethostname()}@{namespace + 1}@{2**22 - 1}@1",
    }
    children = {
        name: subprocess.Popen(["sleep", "600"], env={**inherited_environment(), RUN_VARIABLE: mark})
        for name, mark in marks.items()
    }
    try:
        wait_until_marked(children, marks)
        leftovers = read_machine(tmp_path).leftovers
        assert leftovers.get(children["dead"].pid) == dead
        assert children["alive"].pid not in leftovers
        assert children["elsewhere"].pid not in leftovers
        assert children["contained"].pid not in leftovers, "its number means another process there"
        end_processes([children["dead"].pid, 2**22 - 2])
        assert not psutil.pid_exists(children["dead"].pid)
        assert children["alive"].poll() is None
    finally:
        for child in children.values():
            child.kill()
            child.wait(60)


def wait_until_marked(children: Mapping[str, subprocess.Popen[bytes]], marks: Mapping[str, str]) -> None:
    """Until each process shows its environment: a little after its program has begun."""
    deadline = time.monotonic() + 60
    while any(psutil.Process(children[name].pid).environ().get(RUN_VARIABLE) != mark for name, mark in marks.items()):
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""The agent of a run on a node, as a real process: what it says, holds, tries and cleans."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.process.machine import controller_of, run_mark
from dynamo_mlperf.process.node_agent import busy_port, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAKING = """
import mmap, os, sys, time
held = open(sys.argv[1], "wb+"); held.truncate(4096); mapped = mmap.mmap(held.fileno(), 4096)
print("up", flush=True); time.sleep(600)
"""


class Talk:
    """An agent that runs, as its controller sees it."""

    def __init__(self, place: Path, **env: str) -> None:
        self.mark = run_mark(f"agents-{place.name}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dynamo_mlperf.process.node_agent", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], RUN_VARIABLE: self.mark, **env},
        )
        first = self.answer()
        self.facts, self.scratch = first["facts"], Path(first["scratch"])

    def ask(self, **asked: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        self.process.terminate()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Talk]:
    talk = Talk(tmp_path, CUDA_VISIBLE_DEVICES="2, 5", SLURM_STEP_GPUS="6,7", SLURM_JOB_GPUS="0,1")
    yield talk
    talk.close()


def free_block() -> range:
    """Ports that nobody uses, below those that the kernel hands out."""
    start = next(port for port in range(19000, 19900, 20) if busy_port(range(port, port + 20)) is None)
    return range(start, start + 20)


def test_it_says_which_gpus_slurm_gave(agent: Talk) -> None:
    assert agent.facts["host"] == socket.gethostname()
    assert (agent.facts["devices"], agent.facts["gpus"]) == (["2", "5"], 2)
    assert agent.facts["gpu_numbers"] == [6, 7], "with constrained devices the names count the granted ones alone"


def test_it_has_a_directory_that_goes_away_with_it(agent: Talk, tmp_path: Path) -> None:
    assert agent.scratch.stat().st_mode & 0o777 == 0o700
    assert len(f"{agent.scratch}/{uuid4()}") < 107, "vLLM's UNIX sockets are called so"
    assert controller_of(agent.mark.partition("@")[0]) is None, "it is no controller"
    (agent.scratch / "left").write_text("x")
    killed = Talk(tmp_path / "killed")
    killed.process.kill()
    killed.process.wait()
    assert killed.scratch.is_dir()
    killed.close()
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    assert not agent.scratch.exists()
    other = Talk(tmp_path / "other")
    assert str(killed.scratch) in other.facts["abandoned"]
    assert not killed.scratch.exists(), "the next run on the node removes it"
    other.close()
    assert not other.scratch.exists()


def test_ports_that_one_run_holds_no_other_gets(agent: Talk, tmp_path: Path) -> None:
    block = free_block()
    claim = {"do": "claim", "first": block.start, "end": block.stop, "address": "127.0.0.1"}
    assert agent.ask(**claim) == {"held": block.start}
    other = Talk(tmp_path / "other")
    try:
        overlapping = {**claim, "first": block.stop - 5, "end": block.stop + 5}
        refused = other.ask(**overlapping)
        assert refused == {"taken": block.stop - 5, "by": f"claimed by the run with pid {agent.process.pid}"}
        agent.ask(do="quiet")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.answer() == {"removed": [], "left": []}
        assert other.ask(**claim) == {"held": block.start}
    finally:
        other.close()


def test_a_port_in_use_is_named_before_an_engine_needs_it(agent: Talk) -> None:
    block = free_block()
    with socket.socket() as held:
        held.bind(("127.0.0.1", block.start + 7))
        held.listen(1)
        asked = {"do": "claim", "first": block.start, "end": block.stop, "address": "127.0.0.1"}
        assert agent.ask(**asked) == {"taken": block.start + 7, "by": "in use"}


def test_it_finds_the_places_that_do_not_answer(agent: Talk) -> None:
    block = free_block()
    agent.ask(do="claim", first=block.start, end=block.stop, address="127.0.0.1")
    door, wall = ("127.0.0.1", block.stop - 1), ("127.0.0.1", block.start)
    assert agent.ask(do="connect", to=[door, wall]) == {"failed": {f"127.0.0.1:{block.start}": "Connection refused"}}
    agent.ask(do="quiet")
    assert agent.ask(do="connect", to=[door])["failed"] == {f"127.0.0.1:{block.stop - 1}": "Connection refused"}


def test_hundreds_of_connections_go_in_turns() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(1024)
        assert unreachable([door.getsockname()] * 300, 60.0) == {}


def test_strangers_that_connect_and_close_or_stay_do_not_end_it(agent: Talk) -> None:
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    place = ("127.0.0.1", agent.ask(do="open", address="127.0.0.1")["port"])
    for _ in range(200):
        socket.create_connection(place, 60.0).close()
    stay = [socket.create_connection(place, 60.0) for _ in range(100)]
    block = free_block()
    assert agent.ask(do="claim", first=block.start, end=block.stop, address="127.0.0.1") == {"held": block.start}
    assert agent.ask(do="tidy") == {"removed": []}
    assert len(list(Path(f"/proc/{agent.process.pid}/fd").iterdir())) < 64
    for one in stay:
        one.close()
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.answer() == {"removed": [], "left": []}


def test_it_tidies_up_after_an_engine_while_others_run(agent: Talk) -> None:
    ours = [Path(f"/dev/shm/ours-{os.getpid()}-{number}") for number in (0, 1)]
    engines = [
        subprocess.Popen(
            [sys.executable, "-c", LEAKING, str(path)], stdout=subprocess.PIPE, env={RUN_VARIABLE: agent.mark}
        )
        for path in ours
    ]
    try:
        for engine in engines:
            assert engine.stdout is not None
            assert engine.stdout.readline() == b"up\n"
        assert agent.ask(do="tidy") == {"removed": []}
        engines[0].kill()
        engines[0].wait()
        assert agent.ask(do="tidy") == {"removed": [str(ours[0])]}
        assert ours[1].exists()
    finally:
        for engine, path in zip(engines, ours, strict=True):
            engine.kill()
            engine.wait()
            assert engine.stdout is not None
            engine.stdout.close()
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("ends", ["engine first", "both at once"])
def test_it_removes_the_memory_that_the_runs_engines_left_and_no_other(agent: Talk, ends: str) -> None:
    ours, theirs = (Path(f"/dev/shm/{whose}-{os.getpid()}") for whose in ("ours", "theirs"))
    engines = []
    for path, mark in ((ours, agent.mark), (theirs, "another-run@x@1@2@3")):
        argv = [sys.executable, "-c", LEAKING, str(path)]
        engines.append(subprocess.Popen(argv, stdout=subprocess.PIPE, env={RUN_VARIABLE: mark}))
    try:
        for engine in engines:
            assert engine.stdout is not None
            assert engine.stdout.readline() == b"up\n"
        if ends == "engine first":
            assert agent.ask(do="look") == {"done": "look"}
            engines[0].kill()
            engines[0].wait()
            assert agent.process.stdin is not None
            agent.process.stdin.close()
        else:  # as Slurm ends a job: the engine takes no notice of SIGTERM in time
            engines[0].send_signal(signal.SIGSTOP)
            agent.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 60
            while engines[0].poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert agent.answer() == {"removed": [str(ours)], "left": []}
        assert agent.process.wait(60) == 0
        assert theirs.exists()
        assert engines[1].poll() is None
    finally:
        for engine in engines:
            engine.kill()
            engine.wait()
            assert engine.stdout is not None
            engine.stdout.close()
        for path in (ours, theirs):
            path.unlink(missing_ok=True)

"""The agent of a run on one node of a Slurm job: `python -m dynamo_mlperf.process.node_agent DIRECTORY`.

It says what the node is, holds the run's ports there, tries the way to the other nodes, notes what the run's engines
map in /dev/shm, and removes what is left of that once they are gone, and the directory for what they leave elsewhere.
One JSON object a line goes in and comes out; the first that comes out are the node's facts. It ends at the end of its
input, on SIGINT and on SIGTERM, and when the first node of the job has lost its power.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import selectors
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.process.head_watch import HeadWatch
from dynamo_mlperf.process.machine import end_leftovers, end_processes, make_scratch, read_machine, run_mark
from dynamo_mlperf.process.ports import PortClaim, claimed
from dynamo_mlperf.process.shared_memory import NOTE_EVERY_S, mapped_by, remove_unmapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FrameType

CONNECT_S = 3.0
"""How long another node may take to accept a connection."""
CONNECT_AT_ONCE = 64
GONE_S = 2.5
"""How long the run's processes may take to end once the agent was asked to: Slurm kills all, the agent too, KillWait
after SIGTERM (30 s by default, often less)."""
CALLING_S = 1.0
_POLL_S = 0.05


class _Asked(BaseException):
    """A signal asks for the end; not an Exception, so that nothing takes it for a failure."""


def facts_of(place: Path) -> dict[str, Any]:
    """The node's facts once what earlier runs left there is ended; that is named in them all the same."""
    facts = read_machine(place)
    if facts.leftovers or facts.abandoned:
        end_leftovers(facts)
        facts = replace(read_machine(place), leftovers=facts.leftovers, abandoned=facts.abandoned)
    return facts.as_json()


def busy_port(ports: range) -> int | None:
    """The first port that cannot be listened on; None when all can."""
    for port in ports:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
                tried.listen(1)
            except OSError:
                return port
    return None


def unreachable(places: Sequence[tuple[str, int]], timeout_s: float) -> dict[str, str]:
    """Connect to all places, CONNECT_AT_ONCE at a time; why not, by `host:port`, for those where it fails."""
    failed: dict[str, str] = {}
    for start in range(0, len(places), CONNECT_AT_ONCE):
        failed |= _try_connections(places[start : start + CONNECT_AT_ONCE], timeout_s)
    return failed


def _try_connections(places: Sequence[tuple[str, int]], timeout_s: float) -> dict[str, str]:
    failed: dict[str, str] = {}
    with selectors.DefaultSelector() as waiting:
        for host, port in places:
            tried = socket.socket()
            tried.setblocking(False)  # noqa: FBT003 - the socket module's signature
            number = tried.connect_ex((host, port))
            if number not in {0, 115}:  # EINPROGRESS
                failed[f"{host}:{port}"] = os.strerror(number)
                tried.close()
            else:
                waiting.register(tried, selectors.EVENT_WRITE, f"{host}:{port}")
        deadline = time.monotonic() + timeout_s
        while waiting.get_map() and time.monotonic() < deadline:
            for key, _ in waiting.select(max(0.0, deadline - time.monotonic())):
                tried = key.fileobj  # type: ignore[assignment]
                problem = tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem:
                    failed[key.data] = os.strerror(problem)
                waiting.unregister(tried)
                tried.close()
        for key in list(waiting.get_map().values()):
            failed[key.data] = f"no answer in {timeout_s:g} s"
            key.fileobj.close()  # type: ignore[union-attr]
    return failed


def marked(mark: str) -> list[int]:
    """Processes of this node that carry the run's mark, this one left out."""
    found = []
    wanted = f"{RUN_VARIABLE}={mark}".encode()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


class Agent:
    """What the agent holds, and what it does when asked."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._ports = PortClaim()
        self._door: socket.socket | None = None
        self._mapped: set[int] = set()
        self._scratch: Path | None = None
        self.head = HeadWatch()

    def make_scratch(self) -> str:
        """A directory for the run's processes on this node, which goes with the agent; empty where there is no room.

        Its owner is the agent, under a name that is not the run's: that one names the controller.
        """
        with contextlib.suppress(OSError):
            self._scratch = make_scratch(secrets.token_hex(4), run_mark(f"agent-{self._mark.partition('@')[0]}"))
        return str(self._scratch or "")

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what a line asks for, and say how it went."""
        what = asked["do"]
        if what == "claim":
            return self._claim(range(asked["first"], asked["end"]), asked["address"])
        if what == "connect":
            return {"failed": unreachable([(host, port) for host, port in asked["to"]], CONNECT_S)}
        if what == "open":
            return {"port": self.head.open(asked["address"])}
        if what == "watch":
            return {"watching": self.head.watch(asked["address"], asked["port"], CONNECT_S)}
        if what == "quiet":
            self._close_door()
        elif what == "look":
            self.look()
        elif what == "tidy":
            self.look()
            return {"removed": remove_unmapped(self._mapped)}
        return {"done": what}

    def _claim(self, ports: range, address: str) -> dict[str, Any]:
        """Hold the ports from now on; the last of them answers connections until `quiet`."""
        self._close_door()
        self._ports.release()
        try:
            if self._ports.take([ports], ()) is None:
                pid = next(
                    (pid for block, pid in claimed() if block.start < ports.stop and ports.start < block.stop), 0
                )
                return {"taken": ports.start, "by": f"claimed by the run with pid {pid}"}
        except SetupError as problem:
            return {"taken": ports.start, "by": problem.what}
        busy = busy_port(ports)
        if busy is not None:
            self._ports.release()
            return {"taken": busy, "by": "in use"}
        self._door = socket.socket()
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._door.bind((address, ports.stop - 1))
        self._door.listen(1024)
        return {"held": ports.start}

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def look(self) -> None:
        """Note what the run's processes map in /dev/shm."""
        self._mapped |= mapped_by(marked(self._mark))

    def end(self) -> dict[str, Any]:
        """End what is left of the run here, remove what it left in /dev/shm, and let go of the ports.

        Where the controller has stopped everything before, nothing is left; where Slurm ends the job, all end at once.
        """
        self._close_door()
        self.look()
        deadline = time.monotonic() + GONE_S
        while marked(self._mark) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        end_processes(marked(self._mark))
        left = marked(self._mark)
        removed = remove_unmapped(self._mapped)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._ports.release()
        self.head.close()
        return {"removed": removed, "left": left}


def _lines(head: HeadWatch) -> Iterable[dict[str, Any] | None]:
    """What comes in, line by line, until the first node is lost; None about every NOTE_EVERY_S, whoever else calls."""
    unread = b""
    looked_t = time.monotonic()
    while True:
        sources: list[int | select.epoll] = [0, *head.sources()]
        ready, _, _ = select.select(sources, [], [], CALLING_S if head.calling else NOTE_EVERY_S)
        if head.turn():
            return
        if time.monotonic() - looked_t >= NOTE_EVERY_S:
            looked_t = time.monotonic()
            yield None
        if 0 not in ready:
            continue
        block = os.read(0, 65536)
        if not block:
            return
        *whole, unread = (unread + block).split(b"\n")
        for line in whole:
            yield json.loads(line)


def _say(answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps(answer) + "\n").encode())


def _ask(_number: int, _frame: FrameType | None) -> None:
    raise _Asked


def main(place: str) -> int:
    """Be the agent until asked to end."""
    agent = Agent(os.environ[RUN_VARIABLE])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ask)
    try:
        _say({"facts": facts_of(Path(place)), "scratch": agent.make_scratch()})
        for asked in _lines(agent.head):
            if asked is None:
                agent.look()
            else:
                _say(agent.answer(asked))
    except _Asked:
        pass
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _say(agent.end())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

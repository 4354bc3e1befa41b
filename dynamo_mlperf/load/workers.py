"""The client processes as the LoadGen process sees them: started, connected, watched, ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.channel import ISSUE, STOP, Event, EventReader, Kind
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.process.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

START_TIMEOUT_S = 120.0
"""Longest time from the start of the client processes to their report, connections included."""

_END_TIMEOUT_S = 10.0
_OBITUARY_S = 5.0
"""How long a process whose socket is closed may take to be gone, so that its status can be told."""

_POLL_S = 0.2
_PEER_CREDENTIALS = struct.Struct("3i")
_RECEIVE_BYTES = 262_144
_BUFFER = bytearray(_RECEIVE_BYTES)
"""Of the one thread that reads events: a buffer per read costs a mapping and a cleared page each time."""

_BUFFER_VIEW = memoryview(_BUFFER)
_LOG_TAIL_BYTES = 600


class Worker:
    """One client process and the socket to it."""

    def __init__(self, name: str, child: Child) -> None:
        self.name = name
        self.child = child
        self.socket: socket.socket | None = None
        self.reader = EventReader()
        self.dispatched = 0
        self.ended = 0
        self._waiting = bytearray()

    @property
    def in_flight(self) -> int:
        """Requests sent there without an outcome yet."""
        return self.dispatched - self.ended

    def dispatch(self, order: int, sample: int, issued_ns: int) -> None:
        """Send one query there."""
        self.collect(order, sample, issued_ns)
        self.flush()

    def collect(self, order: int, sample: int, issued_ns: int) -> None:
        """Have one query go there with the next `flush`."""
        self.dispatched += 1
        self._waiting += ISSUE.pack(order, sample, issued_ns)

    def flush(self) -> None:
        """Send what was collected."""
        if self.socket is not None and self._waiting:
            with contextlib.suppress(ConnectionError):  # a dead process is found, and named, by whoever reads events
                self.socket.sendall(self._waiting)
        self._waiting = bytearray()

    def receive(self) -> bytes:
        """What it says.

        Raises:
            MeasureError: It is gone.
            TimeoutError: It says nothing, where the socket has a timeout.
        """
        data = b""
        if self.socket is not None:
            with contextlib.suppress(ConnectionError):  # as good as an end: it died with queries unread
                data = bytes(_BUFFER_VIEW[: self.socket.recv_into(_BUFFER)])
        if not data:
            raise self.died()
        return data

    def died(self) -> MeasureError:
        """What there is to say about its death."""
        deadline = time.monotonic() + _OBITUARY_S
        while (status := self.child.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        log = self.child.command.log
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            last = source.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        how = "closed its socket" if status is None else f"ended with status {status}"
        return MeasureError(f"{self.name} {how} during the measurement: {last or 'its log is empty'}", f"read {log}")


def least_loaded(in_flight: Sequence[int], turn: int) -> int:
    """Position of the least load; among equal ones the first from position `turn` on, round the end."""
    count = len(in_flight)
    return min(((turn + step) % count for step in range(count)), key=in_flight.__getitem__)


class Workers:
    """All client processes of a measurement.

    Args:
        spec_path: The measurement spec that each reads.
        log_dir: Where their logs go.
        count: How many.
    """

    def __init__(self, spec_path: Path, log_dir: Path, count: int) -> None:
        name = f"dynamo-mlperf-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(count)
        self._epoll = select.epoll()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.settimeout(0)
        self._epoll.register(self._wake_out, select.EPOLLIN)
        self._by_number: dict[int, Worker] = {}
        self._turn = 0
        self.all: list[Worker] = []
        module = ("-m", "dynamo_mlperf.load.http_worker")
        for index in range(count):
            command = Command(
                name=f"client worker {index}",
                argv=(sys.executable, *module, str(spec_path), str(index), name),
                env=dict(os.environ),
                log=log_dir / f"client_worker_{index}.log",
            )
            self.all.append(Worker(command.name, Child(command, command.argv, dict(command.env))))

    def connect(self, check_stop: Callable[[], None]) -> list[Event]:
        """Wait until each process has connected and opened its connections; return their reports.

        Raises:
            MeasureError: One died or was not ready in time.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        self._listener.settimeout(_POLL_S)
        while any(worker.socket is None for worker in self.all):
            self._check_start(deadline, check_stop)
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._adopt(peer)
        self._listener.close()
        ready: list[Event] = []
        while len(ready) < len(self.all):
            self._check_start(deadline, check_stop)
            ready += [event for _, event in self.events(_POLL_S) if event.kind == Kind.READY]
        return ready

    def _adopt(self, peer: socket.socket) -> None:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        pid = _PEER_CREDENTIALS.unpack(raw)[0]
        for worker in self.all:
            if worker.child.pid == pid and worker.socket is None:
                worker.socket = peer
                self._by_number[peer.fileno()] = worker
                self._epoll.register(peer, select.EPOLLIN)
                return
        peer.close()  # a stranger

    def _check_start(self, deadline: float, check_stop: Callable[[], None]) -> None:
        check_stop()
        for worker in self.all:
            if worker.child.poll() is not None:
                raise worker.died()
        if time.monotonic() > deadline:
            raise MeasureError(f"client processes not ready within {START_TIMEOUT_S:g} s", "look at their logs")

    def least_loaded(self) -> Worker:
        """The process with the fewest requests in flight; in turn where they are equal."""
        if len(self.all) == 1:
            return self.all[0]
        self._turn += 1
        return self.all[least_loaded([worker.in_flight for worker in self.all], self._turn)]

    def wake(self) -> None:
        """Make a waiting `events` return; may be called from any thread."""
        try:
            self._wake_in.send(b"\0")
        except BlockingIOError:
            return  # it is awake already

    def events(self, timeout_s: float) -> list[tuple[Worker, Event]]:
        """What the processes report within `timeout_s`.

        Raises:
            MeasureError: One of them is gone.
        """
        found: list[tuple[Worker, Event]] = []
        for number, _ in self._epoll.poll(timeout_s):
            worker = self._by_number.get(number)
            if worker is None:
                self._wake_out.recv(4096)
                continue
            found += [(worker, event) for event in worker.reader.feed(worker.receive())]
        return found

    def finish(self) -> dict[str, bytes]:
        """Ask each for its account (JSON by process name), then end them all."""
        accounts: dict[str, bytes] = {}
        deadline = time.monotonic() + _END_TIMEOUT_S
        for worker in self.all:
            if worker.socket is not None:
                worker.socket.sendall(STOP)
                worker.socket.settimeout(_POLL_S)
        for worker in self.all:
            while worker.name not in accounts and worker.socket is not None:
                if time.monotonic() > deadline:
                    raise MeasureError(f"{worker.name} gave no account within {_END_TIMEOUT_S:g} s", "read its log")
                self._take_account(worker, accounts)
        self.kill()
        return accounts

    def _take_account(self, worker: Worker, accounts: dict[str, bytes]) -> None:
        if worker.socket is None:
            return
        try:
            data = worker.receive()
        except TimeoutError:
            return
        for event in worker.reader.feed(data):
            if event.kind == Kind.ACCOUNT:
                accounts[worker.name] = event.tail

    def kill(self) -> None:
        """SIGKILL to every process that is left; they hold nothing worth a farewell."""
        for worker in self.all:
            worker.child.kill_session()
        deadline = time.monotonic() + _END_TIMEOUT_S
        while any(worker.child.poll() is None for worker in self.all) and time.monotonic() < deadline:
            time.sleep(0.005)

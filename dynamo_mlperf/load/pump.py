"""Waits for descriptors, reads sockets, and passes over what nobody needs to see.

There are two, of one contract: this one, and one in C (`_pump.c`) that the installation builds where it finds a
compiler. `docs/performance.md` says what the second saves.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from select import EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from dynamo_mlperf.load.skim import plain

if TYPE_CHECKING:
    from collections.abc import Callable

PYTHON_ONLY = "DYNAMO_MLPERF_PYTHON_PUMP"
"""An environment variable: where it is set, the compiled pump is not used."""

_MOST_READY = 64
_MOST_RESTED = 32
"""As many of those that could wait are served before the pump looks for what cannot."""
_READ_BYTES = 65_536
_MOST_READS = 16
"""As many reads of one socket come before those of another."""
_RESTING = EPOLLIN | EPOLLRDHUP | EPOLLET
_LONGEST_WAIT_NS = 86_400 * 1_000_000_000
"""What a wait in whole milliseconds can hold."""

Data = bytes | OSError | None


class Watched(Protocol):
    """What has a descriptor in a pump."""

    def ready(self, events: int, data: Data, passed_bytes: int, at_ns: int) -> None:
        """There is something.

        Args:
            events: What it was watched for and is ready (a mask as epoll has it).
            data: Of a socket that the pump reads: what came, b"" at its end, the error that reading it met, or None
                where it is ready only for writing.
            passed_bytes: What was passed over since the last call.
            at_ns: When it was read, as `time.monotonic_ns` has it.
        """


Found = tuple[Watched, int, Data, int, int]
"""A watcher and what its `ready` is to be called with."""


class Pump(Protocol):
    """Watches descriptors.

    Attributes:
        seen: How many were ready so far, those passed over included.
    """

    seen: int

    def watch(self, number: int, watched: Watched, events: int) -> None:
        """Watch the descriptor `number`."""

    def read_from(self, number: int) -> None:
        """Read what comes in on this socket, and tell that."""

    def rewatch(self, number: int, events: int) -> None:
        """Watch a descriptor for other events."""

    def forget(self, number: int) -> None:
        """Watch a descriptor no more; before it is closed, and not while it rests."""

    def skim(self, number: int) -> None:
        """Pass over reads here that are plain, until one is not."""

    def rest(self, number: int) -> None:
        """What comes in here can wait a moment, until `rouse`."""

    def rouse(self, number: int) -> None:
        """What comes in here is urgent again."""

    def poll(self, wait_ns: int) -> list[Found]:
        """Wait until there is something to tell, `wait_ns` at most and never longer than a day."""


@dataclass(slots=True)
class _Slot:
    watched: Watched
    reads: bool = False
    skims: bool = False
    known: bool = False  # the resting epoll has it; it stays there until it is forgotten
    passed_bytes: int = 0


class PythonPump:
    """A pump without a compiled part.

    Args:
        rest_ms: Longest rest.
    """

    def __init__(self, rest_ms: int) -> None:
        self.seen = 0
        self._rest_ms = rest_ms
        self._urgent = epoll()
        self._resting = epoll()
        self._slots: dict[int, _Slot] = {}
        self._at_rest = 0
        self._owed = False  # what rests is to be looked at without waiting

    def watch(self, number: int, watched: Watched, events: int) -> None:
        """As `Pump` has it."""
        self._urgent.register(number, events)
        self._slots[number] = _Slot(watched)

    def read_from(self, number: int) -> None:
        """As `Pump` has it."""
        self._slots[number].reads = True

    def rewatch(self, number: int, events: int) -> None:
        """As `Pump` has it."""
        self._urgent.modify(number, events)

    def forget(self, number: int) -> None:
        """As `Pump` has it."""
        slot = self._slots.pop(number)
        self._urgent.unregister(number)
        if slot.known:
            self._resting.unregister(number)

    def skim(self, number: int) -> None:
        """As `Pump` has it."""
        self._slots[number].skims = True

    def rest(self, number: int) -> None:
        """As `Pump` has it."""
        slot = self._slots[number]
        self._urgent.modify(number, 0)
        if not slot.known:
            self._resting.register(number, _RESTING)
            slot.known = True
        self._at_rest += 1

    def rouse(self, number: int) -> None:
        """As `Pump` has it."""
        if number not in self._slots:
            raise KeyError(number)
        self._urgent.modify(number, EPOLLIN)
        self._at_rest -= 1

    def poll(self, wait_ns: int) -> list[Found]:
        """As `Pump` has it."""
        wait_ns = min(wait_ns, _LONGEST_WAIT_NS)
        due_ns = time.monotonic_ns() + wait_ns
        found: list[Found] = []
        while True:
            wait_ms = 0.0 if self._owed else max(0.0, wait_ns / 1e6)
            if self._at_rest:
                wait_ms = min(wait_ms, self._rest_ms)
            self._serve(self._urgent.poll(wait_ms / 1e3, _MOST_READY), found)
            if self._at_rest and not self._owed and found:
                self._owed = True  # what is urgent is told first; what rests has its turn in the next call
                return found
            rested = self._resting.poll(0, _MOST_RESTED) if self._at_rest else []
            self._serve(rested, found)
            self._owed = len(rested) == _MOST_RESTED
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns <= 0 or found:
                return found

    def _serve(self, ready: list[tuple[int, int]], found: list[Found]) -> None:
        self.seen += len(ready)
        for number, events in ready:
            slot = self._slots[number]
            if not slot.reads or events == EPOLLOUT:
                self._tell(slot, events, None, found)
                continue
            self._read_all(number, slot, events, found)

    def _read_all(self, number: int, slot: _Slot, events: int, found: list[Found]) -> None:
        """What rests is told once, so all of it is read, an end that came with the last bytes included."""
        for _ in range(_MOST_READS):
            length = self._read_once(number, slot, events, found)
            if not length or (length < _READ_BYTES and not events & EPOLLRDHUP):
                return
        if slot.known:
            self._resting.modify(number, _RESTING)  # the others have waited; what is left is told anew

    def _read_once(self, number: int, slot: _Slot, events: int, found: list[Found]) -> int:
        data: Data
        try:
            data = os.read(number, _READ_BYTES)
        except BlockingIOError:
            data = None
        except OSError as problem:
            data = problem
        if not isinstance(data, bytes):
            if data is not None or events & EPOLLOUT:
                self._tell(slot, events, data, found)
            return 0
        if data and slot.skims and events == EPOLLIN and plain(data):
            slot.passed_bytes += len(data)
        else:
            self._tell(slot, events, data, found)
        return len(data)

    def _tell(self, slot: _Slot, events: int, data: Data, found: list[Found]) -> None:
        found.append((slot.watched, events, data, slot.passed_bytes, time.monotonic_ns()))
        slot.skims, slot.passed_bytes = False, 0


def _compiled() -> Callable[[int], Pump] | None:
    """The compiled pump, where there is one and it is of the source beside it: a checkout may have moved on."""
    try:
        from dynamo_mlperf.load import _pump

        source = Path(__file__).with_name("_pump.c").read_bytes()
    except (ImportError, OSError):
        return None
    return _pump.Pump if f"{crc32(source):08x}" == _pump.SOURCE else None


COMPILED = _compiled()


def make_pump(rest_ms: int) -> Pump:
    """The compiled pump where there is one; `rest_ms` is the longest rest."""
    return PythonPump(rest_ms) if COMPILED is None or os.environ.get(PYTHON_ONLY) else COMPILED(rest_ms)

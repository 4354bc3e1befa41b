"""What a record costs between two processes, by channel: `python -m tests.performance.client_channel`.

Not a test: it asserts nothing. A sender paces 16-byte records; the receiver waits for them as a client process does.
CPU of both processes per record, and how late a record is, at p50 and p99. A shared-memory ring needs a bell to wake
the receiver (an eventfd here): its saving is the copy through the kernel, not the wake-up, and that is what costs.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import resource
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

_RECORD = struct.Struct("<qq")
_RING_BYTES = 1 << 20
_LOADS = ((200.0, 1000), (4000.0, 12_000), (None, 100_000))
_BATCH = 16
"""Records in one write where there is no rate: what piles up between two turns of a loop."""


@dataclass(frozen=True)
class Channel:
    """A channel: how to send bytes, and how to wait for and take what came."""

    send: Callable[[bytes], object]
    receive: Callable[[], bytes]


def _pipe() -> Channel:
    out, into = os.pipe()
    return Channel(lambda data: os.write(into, data), lambda: os.read(out, 65_536))


def _socketpair() -> Channel:
    one, other = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(other, selectors.EVENT_READ)

    def receive() -> bytes:
        selector.select()
        return other.recv(65_536)

    return Channel(one.sendall, receive)


def _shared_memory() -> Channel:
    ring = mmap.mmap(-1, _RING_BYTES + 8)
    bell = os.eventfd(0)
    counter = struct.Struct("<q")
    state = {"sent": 0, "read": 0}

    def send(data: bytes) -> None:
        at = state["sent"] % _RING_BYTES
        ring[at : at + len(data)] = data
        state["sent"] += len(data)
        counter.pack_into(ring, _RING_BYTES, state["sent"])
        os.eventfd_write(bell, 1)

    def receive() -> bytes:
        os.eventfd_read(bell)
        (sent,) = counter.unpack_from(ring, _RING_BYTES)
        pieces = b""
        while state["read"] < sent:
            at = state["read"] % _RING_BYTES
            size = min(sent - state["read"], _RING_BYTES - at)
            pieces += ring[at : at + size]
            state["read"] += size
        return pieces

    return Channel(send, receive)


def _zeromq() -> Channel:
    import zmq

    name = f"ipc:///tmp/bench-channel-{os.getpid()}-{time.monotonic_ns()}"
    ends: dict[str, zmq.Socket[bytes]] = {}

    def end(kind: int, *, binds: bool) -> zmq.Socket[bytes]:
        made = zmq.Context().socket(kind)  # after the fork: a context does not survive one
        made.bind(name) if binds else made.connect(name)
        return made

    def send(data: bytes) -> None:
        if "out" not in ends:
            ends["out"] = end(zmq.PUSH, binds=False)
        ends["out"].send(data)

    def receive() -> bytes:
        if "in" not in ends:
            ends["in"] = end(zmq.PULL, binds=True)
        return ends["in"].recv()

    return Channel(send, receive)


def _cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _receive_all(channel: Channel, count: int) -> None:
    late: list[int] = []
    rest = b""
    while len(late) < count:
        data = rest + channel.receive()
        now_ns = time.monotonic_ns()
        whole = len(data) - len(data) % _RECORD.size
        rest = data[whole:]
        late += [now_ns - sent_ns for _, sent_ns in _RECORD.iter_unpack(data[:whole])]
    late.sort()
    print(json.dumps({"p50_us": late[count // 2] / 1e3, "p99_us": late[count * 99 // 100] / 1e3}), flush=True)


def _send_all(channel: Channel, rate: float | None, count: int) -> None:
    begin = time.monotonic()
    if rate is None:
        for _ in range(count // _BATCH):
            channel.send(_RECORD.pack(0, time.monotonic_ns()) * _BATCH)
        return
    for number in range(count):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        channel.send(_RECORD.pack(number, time.monotonic_ns()))


def measure(name: str, make: Callable[[], Channel], rate: float | None, count: int) -> None:
    """Print one channel's figures at one load."""
    channel = make()
    count -= count % _BATCH
    before_s = _cpu_s(resource.RUSAGE_SELF) + _cpu_s(resource.RUSAGE_CHILDREN)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _receive_all(channel, count)
        os._exit(0)
    time.sleep(0.2)
    _send_all(channel, rate, count)
    os.waitpid(child, 0)
    used_s = _cpu_s(resource.RUSAGE_SELF) + _cpu_s(resource.RUSAGE_CHILDREN) - before_s
    figures = {"channel": name, "rate": rate, "cpu_us_per_record": round(used_s / count * 1e6, 2)}
    print(json.dumps(figures), flush=True)


def main() -> None:
    """All channels at all loads."""
    channels = {"pipe": _pipe, "socketpair": _socketpair, "shared memory + eventfd": _shared_memory}
    if importlib.util.find_spec("zmq"):
        channels["zeromq ipc"] = _zeromq
    for rate, count in _LOADS:
        for name, make in channels.items():
            measure(name, make, rate, count)


if __name__ == "__main__":
    main()

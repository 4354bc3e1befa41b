"""What waits, reads and passes over: the two forms of it keep one contract."""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from select import EPOLLIN, EPOLLOUT
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.load import pump as forms
from dynamo_mlperf.load.channel import Kind
from dynamo_mlperf.load.pump import PYTHON_ONLY, Pump, PythonPump, make_pump
from tests.fakes.oracle import Oracle, Script
from tests.load.both_forms import plain
from tests.load.client_in_thread import ClientInThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynamo_mlperf.load.pump import Data

FORMS: list[Callable[[int], Pump]] = [PythonPump, *([forms.COMPILED] if forms.COMPILED is not None else [])]
SECOND_NS = 1_000_000_000
END = b"e\r\ndata: [DONE]\n\n\r\n"

_EVENT = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
TOKEN = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


class Socket:
    """One end of a connection over TCP that a pump watches, and the other one."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.far = socket.create_connection(listener.getsockname())
            self.near, _ = listener.accept()
        self.near.settimeout(0)
        self.far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self.near.fileno()

    def ready(self, *found: object) -> None:
        raise AssertionError(f"nobody tells {found} here")

    def join(self, pump: Pump) -> None:
        """Have the pump watch and read it."""
        pump.watch(self.number, self, EPOLLIN)
        pump.read_from(self.number)

    def say(self, data: bytes) -> None:
        """Send, and wait until it is here."""
        before = self._waiting()
        self.far.sendall(data)
        while self._waiting() < before + len(data):
            time.sleep(0.0005)

    def _waiting(self) -> int:
        with suppress(BlockingIOError):
            return len(self.near.recv(1 << 20, socket.MSG_PEEK))
        return 0

    def near_has_ended(self) -> bool:
        """Whether the end that the far side has said is here, too, whatever waits before it."""
        asking = select.poll()
        asking.register(self.number, select.POLLRDHUP)
        return bool(asking.poll(0))

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture(params=FORMS, ids=lambda form: form.__module__.rpartition(".")[2])
def pump(request: pytest.FixtureRequest) -> Pump:
    made: Pump = request.param(1)
    return made


@pytest.fixture
def one(pump: Pump) -> Iterator[Socket]:
    made = Socket()
    made.join(pump)
    yield made
    made.close()


def test_what_came_is_read_and_stamped(pump: Pump, one: Socket) -> None:
    before_ns = time.monotonic_ns()
    one.say(b"hello")
    ((watched, events, data, passed_bytes, at_ns),) = pump.poll(60 * SECOND_NS)
    assert (watched, events, data, passed_bytes) == (one, EPOLLIN, b"hello", 0)
    assert before_ns < at_ns <= time.monotonic_ns()
    assert pump.seen == 1


def test_nothing_is_told_once_the_time_is_over(pump: Pump, one: Socket) -> None:
    begin_ns = time.monotonic_ns()
    assert pump.poll(20_000_000) == []
    assert time.monotonic_ns() - begin_ns >= 20_000_000
    assert pump.poll(0) == []
    assert pump.poll(-5) == []


def test_waits_of_any_length_are_taken(pump: Pump, one: Socket) -> None:
    assert pump.poll(-(2**63)) == []
    for number, wait_ns in enumerate((2**31 * 1_000_000, 2**62, 2**63 - 1), start=1):
        threading.Timer(0.03, one.far.send, (b"x",)).start()
        assert [data for _, _, data, *_ in pump.poll(wait_ns)] == [b"x"]
        assert pump.seen == number


def test_what_is_not_read_here_is_only_told(pump: Pump) -> None:
    near, far = socket.socketpair()
    with near, far:
        watched = Socket()
        pump.watch(near.fileno(), watched, EPOLLIN)
        far.send(b"x")
        ((_, events, data, *_),) = pump.poll(SECOND_NS)
        assert (events, data) == (EPOLLIN, None)
        assert near.recv(10) == b"x"
        watched.close()


def test_plain_reads_are_passed_over_until_one_is_not(pump: Pump, one: Socket) -> None:
    pump.skim(one.number)
    for _ in range(3):
        one.say(TOKEN * 2)
        assert pump.poll(0) == []
    one.say(TOKEN + END)
    ((_, _, data, passed_bytes, _),) = pump.poll(SECOND_NS)
    assert (data, passed_bytes) == (TOKEN + END, 6 * len(TOKEN))
    one.say(TOKEN)  # it was told: passing over has to be asked for anew
    ((_, _, data, passed_bytes, _),) = pump.poll(SECOND_NS)
    assert (data, passed_bytes) == (TOKEN, 0)


def test_an_end_is_told_as_no_bytes_and_with_what_was_passed_over(pump: Pump, one: Socket) -> None:
    pump.skim(one.number)
    one.say(TOKEN)
    assert pump.poll(0) == []
    one.far.close()
    ((_, _, data, passed_bytes, _),) = pump.poll(SECOND_NS)
    assert (data, passed_bytes) == (b"", len(TOKEN))


@pytest.mark.parametrize("rests", [False, True])
def test_a_broken_connection_is_told_as_its_error(pump: Pump, one: Socket, *, rests: bool) -> None:
    if rests:
        pump.rest(one.number)
    one.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.far.close()
    (_, _, data, *_), *again = pump.poll(SECOND_NS)
    assert len(again) <= rests  # a connection that is closed for it takes no notice
    assert isinstance(data, ConnectionResetError)
    assert (data.errno, str(data)) == (errno.ECONNRESET, str(OSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))))


def test_room_to_write_is_told_with_and_without_something_to_read(pump: Pump, one: Socket) -> None:
    pump.rewatch(one.number, EPOLLIN | EPOLLOUT)
    ((_, events, data, *_),) = pump.poll(SECOND_NS)
    assert (events, data) == (EPOLLOUT, None)
    one.say(b"x")
    ((_, events, data, *_),) = pump.poll(SECOND_NS)
    assert (events, data) == (EPOLLIN | EPOLLOUT, b"x")
    pump.rewatch(one.number, EPOLLIN)
    assert pump.poll(0) == []


def test_what_rests_is_found_in_passing_and_counted_once(pump: Pump, one: Socket) -> None:
    pump.rest(one.number)
    one.say(b"a")
    assert [data for _, _, data, *_ in pump.poll(SECOND_NS)] == [b"a"]
    pump.rouse(one.number)
    one.say(b"b")
    assert [data for _, _, data, *_ in pump.poll(SECOND_NS)] == [b"b"]
    pump.rest(one.number)
    pump.rouse(one.number)
    assert pump.poll(0) == []
    assert pump.seen == 2


def test_all_that_rests_is_found_however_much_it_is(pump: Pump) -> None:
    sockets = [Socket() for _ in range(150)]
    for each in sockets:
        each.join(pump)
        pump.rest(each.number)
        pump.skim(each.number)
    for each in sockets:
        each.say(END if each is sockets[-1] else TOKEN)
    told: list[Data] = []
    while not told:
        told += [data for _, _, data, *_ in pump.poll(60 * SECOND_NS)]
    assert told == [END]
    assert pump.poll(20_000_000) == []
    assert pump.seen == 150
    for each in sockets:
        each.close()


def test_what_is_urgent_is_told_first_and_what_rests_next(pump: Pump, one: Socket) -> None:
    resting = Socket()
    resting.join(pump)
    pump.rest(resting.number)
    resting.say(b"rested")
    for word in (b"first", b"second"):
        one.say(word)
        found = [data for _, _, data, *_ in pump.poll(SECOND_NS)]
        assert found[0] == word
        assert (b"rested" in found) == (word == b"second")
    resting.close()


@pytest.mark.parametrize("skims", [False, True])
def test_what_came_at_rest_is_read_to_its_end(pump: Pump, one: Socket, *, skims: bool) -> None:
    one.near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    pump.rest(one.number)
    if skims:
        pump.skim(one.number)
    much = TOKEN * 1500
    assert len(much) > 65_536
    one.say(much)
    one.say(END)
    wire, told, passed = much + END, b"", 0
    for _, _, data, passed_bytes, _ in pump.poll(SECOND_NS):
        assert isinstance(data, bytes)
        told += data
        passed += passed_bytes
    assert wire.endswith(told)
    assert passed + len(told) == len(wire)
    assert pump.poll(0) == []


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("skims", [False, True])
def test_an_end_that_came_with_the_last_bytes_is_told_at_rest_too(
    pump: Pump, one: Socket, before: int, *, skims: bool
) -> None:
    for _ in range(before):  # what has rested before is told of news alone
        pump.rest(one.number)
        one.say(TOKEN)
        assert [data for _, _, data, *_ in pump.poll(SECOND_NS)] == [TOKEN]
        pump.rouse(one.number)
    pump.rest(one.number)
    if skims:
        pump.skim(one.number)
    one.say(TOKEN * 3)
    one.far.shutdown(socket.SHUT_WR)
    while not one.near_has_ended():
        time.sleep(0.0005)
    told: list[Data] = []
    while not told or told[-1]:
        told += [data for _, _, data, *_ in pump.poll(SECOND_NS)]
    assert told == [TOKEN * 3, b""]


@pytest.mark.parametrize("rests", [False, True])
def test_a_socket_that_has_much_to_say_keeps_no_other_waiting_and_all_is_read(
    pump: Pump, one: Socket, *, rests: bool
) -> None:
    if rests:
        pump.rest(one.number)
    sending = threading.Thread(target=one.far.sendall, args=(bytes(20_000_000),))
    sending.start()
    total, largest = 0, 0
    while total < 20_000_000:
        came = sum(len(data) for _, _, data, *_ in pump.poll(60 * SECOND_NS) if isinstance(data, bytes))
        total, largest = total + came, max(largest, came)
        time.sleep(0.002)  # so that more than one turn's worth waits
    sending.join()
    assert (total, pump.poll(0)) == (20_000_000, [])
    assert largest <= 16 * 65_536


def test_what_is_forgotten_is_told_no_more_and_its_number_serves_another(pump: Pump, one: Socket) -> None:
    pump.rest(one.number)
    pump.rouse(one.number)
    pump.skim(one.number)
    one.say(TOKEN)
    assert pump.poll(0) == []
    pump.forget(one.number)
    one.say(b"late")
    assert pump.poll(0) == []
    one.join(pump)
    one.say(TOKEN)
    ((_, _, data, passed_bytes, _),) = pump.poll(SECOND_NS)
    assert (data, passed_bytes) == (b"late" + TOKEN, 0)


def test_a_number_that_nobody_watches_is_an_error(pump: Pump, one: Socket) -> None:
    unknown = max(one.number, one.far.fileno()) + 1000
    for method in (pump.forget, pump.skim, pump.rest, pump.rouse):
        for number in (unknown, -1, 2**32 + one.number):
            with pytest.raises(KeyError):
                method(number)
    with pytest.raises(OSError, match="Bad file descriptor"):
        pump.watch(unknown, one, EPOLLIN)
    with pytest.raises(FileExistsError):
        pump.watch(one.number, one, EPOLLIN)
    one.say(b"still there")
    assert [data for _, _, data, *_ in pump.poll(SECOND_NS)] == [b"still there"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__module__.rpartition(".")[2])
def test_a_pump_and_what_it_watches_go_together(form: Callable[[int], Pump]) -> None:
    class Holder(Socket):
        pump: Pump

    made = form(1)
    holder = Holder()
    holder.pump = made
    holder.join(made)
    holder.say(b"x")
    found = made.poll(SECOND_NS)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    gone = weakref.ref(holder)
    holder.close()
    del made, holder, found
    gc.collect()
    assert gone() is None
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 4  # two of the connection, two of the pump


@pytest.mark.compiler
def test_the_compiled_pump_is_set_up_once() -> None:
    assert forms.COMPILED is not None
    for rest_ms in (0, 1):
        made = forms.COMPILED(rest_ms)
        with pytest.raises(RuntimeError, match="once"):
            made.__init__(rest_ms)  # type: ignore[misc]


class _Forgetful:
    """Has a pump forget something when it is collected as garbage, never before."""

    def __init__(self, pump: Pump, number: int) -> None:
        self.pump = pump
        self.number = number
        self.itself = self

    def __del__(self) -> None:
        self.pump.forget(self.number)


def test_what_is_forgotten_while_it_is_told_is_told_no_more_or_whole(pump: Pump) -> None:
    """Whatever allocates may collect garbage, and that may run anything."""
    one = Socket()
    one.join(pump)
    one.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.far.close()
    gc.collect()
    _Forgetful(pump, one.number)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        found = pump.poll(0)
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert [type(data) for _, _, data, *_ in found] in ([], [ConnectionResetError])
    with pytest.raises(KeyError):
        pump.forget(one.number)
    one.near.close()


_WITHOUT_MEMORY = """
import fcntl, os, resource, socket
from dynamo_mlperf.load.pump import COMPILED

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
files = min(max(hard, 20_000), 400_000)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, max(files, hard)))  # above the hard limit for root alone
    files_enough = True
except ValueError:
    files, files_enough = hard, False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
number = files - 1
near, far = socket.socketpair()
high = fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, number)
pump = COMPILED(1)
far.send(b"x")
if not files_enough:
    pump.watch(high, pump, 1)
    print(len(pump.poll(0)), pump.seen)
    raise SystemExit(3)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 17), resource.RLIM_INFINITY))
try:
    pump.watch(high, pump, 1)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(pump.poll(0), pump.seen)
"""


@pytest.mark.compiler
def test_what_there_is_no_memory_for_is_not_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 3:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert (done.stdout, 0 <= hard < 20_000) == ("1 1\n", True), (hard, done.stderr)
        pytest.skip(f"the hard limit of open files is {hard}, below 20,000, and cannot be raised here")
    assert (done.returncode, done.stdout) == (0, "[] 0\n"), done.stderr


def test_the_environment_chooses_the_form_without_a_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_ONLY, "1")
    assert isinstance(make_pump(1), PythonPump)


PIECES = [
    *(b"[DONE]", b"completion_tokens", b'"error"', b"event:", b'finish_reason":"', b'finish_reason": "'),
    *(b'finish_reason":null', b'finish_reason": null', b'finish_reason" : "', b'finish_reason":\t"', b"finish_reason"),
    *(b"data: ", b"error", b"\n", b"\r\n", b"", b"\0", b"x" * 300, "schön".encode()),
]
CHUNKS = st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join)
SIZES = st.sampled_from([b"%x", b"%X", b"0%x", b" %x", b"%x;a", b"+%x"])


@st.composite
def reads(draw: st.DrawFn) -> bytes:
    """Chunks, mostly whole and well written."""
    whole = b""
    for _ in range(draw(st.integers(0, 4))):
        body = draw(CHUNKS) + draw(st.sampled_from([b"\n", b"\n\n", b""]))
        size = len(body) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        whole += draw(SIZES) % max(size, 0) + b"\r\n" + body + draw(st.sampled_from([b"\r\n", b"\r\n", b"\n", b""]))
    return whole[: len(whole) - draw(st.sampled_from([0, 0, 0, 1, 2, 5]))]


@given(read=reads())
def test_both_forms_pass_over_the_same(read: bytes) -> None:
    assert isinstance(plain(read), bool)


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        (b'{"finish_reason":null,"x":{"finish_reason": null}}', True),
        (b'{"finish_reason": null}{"finish_reason": null}', True),
        (b'{"finish_reason":null}{"finish_reason" : null}', False),
        (b'{"finish_reason" : "abort"}', False),
        (b'{"finish_reason":  "abort"}', False),
        (b'{"finish_reason":\t"abort"}', False),
        (b'{"finish_reason":\r"abort"}', False),
        (b'{"finish_reason":nul', False),
        (b'{"finish_reason', False),
    ],
)
def test_a_reason_to_finish_is_seen_however_it_is_spelled(line: bytes, *, passed: bool) -> None:
    body = b"data: " + line + b"\n"
    assert plain(b"%x\r\n%b\r\n" % (len(body), body)) is passed
    assert plain(TOKEN + b"%x\r\n%b\r\n" % (len(body), body) + TOKEN) is passed


@pytest.mark.parametrize(
    ("size", "passed"), [(1, True), (9, True), (10, True), (255, True), (2047, True), (2048, False), (0x10000, False)]
)
def test_chunks_of_usual_sizes_are_passed_over(size: int, *, passed: bool) -> None:
    body = b"x" * (size - 1) + b"\n"
    for spelled in (b"%x" % size, b"%X" % size):
        assert plain(spelled + b"\r\n" + body + b"\r\n") is passed


def test_a_size_in_two_cases_is_not_usual() -> None:
    body = b"x" * 0xAB + b"\n"
    assert plain(b"ac\r\n" + body + b"\r\n")
    assert not plain(b"aC\r\n" + body + b"\r\n")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__module__.rpartition(".")[2])
def test_a_client_tells_the_same_with_either(form: type[Pump], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form is PythonPump:
        monkeypatch.setenv(PYTHON_ONLY, "1")
    texts = ["fine", "fault=drop", "fault=error", "fault=error-event", "fault=500"]
    with (
        Oracle(Script(ttft_ms=2, tpot_ms=1, tokens=40)) as oracle,
        ClientInThread(tmp_path, oracle.port, texts) as client,
    ):
        client.issue(*((order, order % len(texts)) for order in range(50)))
        ended = {event.order: event for event in client.ended(50)}
        assert client.client.loop.compiled == (form is not PythonPump)
    for order, event in ended.items():
        assert event.kind == (Kind.FAILED if order % len(texts) else Kind.DONE), event
        assert event.output_tokens == (0 if order % len(texts) else 40)

"""Sockets that may wait a moment: what they say is told in full, an end not before it came, a first token at once."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.load import loop
from dynamo_mlperf.load.channel import Kind
from dynamo_mlperf.load.loop import Loop
from tests.fakes.oracle import Oracle, Script
from tests.load.client_in_thread import ClientInThread

if TYPE_CHECKING:
    from dynamo_mlperf.load.pump import Data


@pytest.fixture
def always_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first tick on, however little comes in."""
    monkeypatch.setattr(loop, "_DENSE_PER_S", -1)
    monkeypatch.setattr(loop, "_THIN_PER_S", -1)


def _until_dense(client: ClientInThread) -> None:
    count = len(client.of(Kind.DONE, Kind.FAILED))
    while not client.client.loop.dense:
        client.issue((count, 0))
        count += 1
        client.ended(count)


@pytest.mark.usefixtures("always_dense")
def test_answers_at_rest_are_told_in_full_and_no_end_before_it_came(tmp_path: Path) -> None:
    texts = [f"sample {number}" for number in range(100)]
    with Oracle(Script(ttft_ms=5, tpot_ms=1, tokens=30)) as oracle:
        with ClientInThread(tmp_path, oracle.port, texts, qps=50) as client:
            _until_dense(client)
            first = len(client.of(Kind.DONE))
            client.issue(*((first + number, number) for number in range(100)))
            ended = client.ended(first + 100)[first:]
            firsts = {event.order: event.first_ns for event in client.of(Kind.FIRST)}
            account = json.loads(client.account())
        truth = oracle.truth()
        while len(truth.sample) < first + 100:  # it notes an answer after it has sent it
            time.sleep(0.01)
        sent = {sample: place for place, sample in enumerate(truth.sample) if place >= first}
    assert {(event.kind, event.output_tokens) for event in ended} == {(Kind.DONE, 30)}
    assert account["rested"] > 0  # all but those that came in whole at once
    for event in ended:
        place = sent[event.order - first]
        assert firsts[event.order] == event.first_ns >= truth.first_ns[place]
        assert event.done_ns >= truth.last_ns[place]


@pytest.mark.usefixtures("always_dense")
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("drop", b"connection lost after"),
        ("error", b"error in the stream"),
        ("error-event", b"error in the stream"),
    ],
)
def test_what_goes_wrong_at_rest_is_a_failure(tmp_path: Path, fault: str, cause: bytes) -> None:
    texts = ["fine", f"fault={fault}"]
    with Oracle(Script(tpot_ms=20)) as oracle, ClientInThread(tmp_path, oracle.port, texts) as client:
        _until_dense(client)
        before, rested = len(client.of(Kind.DONE)), client.client.loop.rested
        client.issue((before, 1), (before + 1, 0))
        ended = {event.order: event for event in client.ended(before + 2)}
        assert client.client.loop.rested > rested
    assert ended[before].kind == Kind.FAILED
    assert ended[before].tail.startswith(cause)
    assert ended[before + 1].kind == Kind.DONE


@pytest.mark.usefixtures("always_dense")
def test_an_answer_that_is_cut_off_with_its_last_bytes_at_rest_has_failed(tmp_path: Path) -> None:
    event = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    token = b"%x\r\n%b\r\n" % (len(event), event)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ClientInThread(tmp_path, listener.getsockname()[1], ["one"]) as client,
    ):
        far = [listener.accept()[0] for _ in range(2)]
        while not client.client.loop.dense:
            time.sleep(0.01)
        client.issue((0, 0))
        (asked,), _, _ = select.select(far, [], [], 60)
        asked.recv(65_536)
        asked.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + token)
        while not client.client.loop.rested:
            time.sleep(0.01)
        asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the bytes and the end in one segment
        asked.sendall(token)
        asked.shutdown(socket.SHUT_WR)
        (ended,) = client.ended(1)
        for each in far:
            each.close()
    assert ended.kind == Kind.FAILED
    assert ended.tail.startswith(b"connection lost after")


def test_where_tokens_come_thinly_nothing_rests(tmp_path: Path) -> None:
    with Oracle(Script(tokens=3)) as oracle, ClientInThread(tmp_path, oracle.port, ["one"]) as client:
        for order in range(3):
            client.issue((order, 0))
            client.ended(order + 1)
        assert json.loads(client.account())["rested"] == 0


class _Reader:
    """Reads what comes in on one end of a pair, and stops the loop after `most` bytes."""

    def __init__(self, running: Loop, most: int) -> None:
        self.near, self.far = socket.socketpair()
        self.near.settimeout(0)
        self.read = b""
        self._loop = running
        self._most = most

    def ready(self, events: int, data: Data, passed_bytes: int, at_ns: int) -> None:  # noqa: ARG002 - as watched
        assert isinstance(data, bytes)
        self.read += data
        self._loop.running = len(self.read) < self._most


def test_what_rests_is_read_by_itself_and_what_is_roused_too() -> None:
    running = Loop(lambda: None, lambda: None, 600_000_000_000)
    reader = _Reader(running, 3)
    running.watch(reader.near.fileno(), reader, reads=True)
    running.rest(reader.near.fileno())
    threading.Timer(0.05, reader.far.send, (b"abc",)).start()
    running.run()
    assert reader.read == b"abc"
    running.rouse(reader.near.fileno())
    running.running = True
    threading.Timer(0.05, reader.far.send, (b"def",)).start()
    running.run()
    assert reader.read == b"abcdef"
    running.rest(reader.near.fileno())
    running.rouse(reader.near.fileno())
    running.forget(reader.near.fileno())
    for end in (reader.near, reader.far):
        end.close()

"""Whether a server waits for acknowledgements is seen, and a server that does is never taken for one that does not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from dynamo_mlperf.load import opening
from dynamo_mlperf.load.channel import Kind
from dynamo_mlperf.load.connection import Connection, Exchange, Owner
from dynamo_mlperf.load.loop import Loop
from dynamo_mlperf.load.opening import Frontend
from dynamo_mlperf.load.response import Response
from tests.fakes.oracle import Oracle, Script
from tests.load.client_in_thread import ClientInThread

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":20}}\n\n'
TOKENS = 20


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _answer(client: socket.socket) -> None:
    """Answer each request, a token every 2 ms, one write each."""
    with contextlib.suppress(OSError):
        while client.recv(65_536):
            client.sendall(HEAD)
            for _ in range(TOKENS):
                time.sleep(0.002)
                client.sendall(_chunk(TOKEN))
            client.sendall(_chunk(USAGE))
            client.sendall(_chunk(b"data: [DONE]\n\n"))
            client.sendall(b"0\r\n\r\n")


def _accept(listener: socket.socket, *, nodelay: bool) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, nodelay)
            threading.Thread(target=_answer, args=(client,), daemon=True).start()


@pytest.fixture
def frontends(monkeypatch: pytest.MonkeyPatch) -> list[Frontend]:
    """All that are made, with trials without end."""
    monkeypatch.setattr(opening, "TRIALS", 10_000)
    made: list[Frontend] = []
    make = Frontend.__init__

    def keep(frontend: Frontend, *arguments: Any) -> None:
        make(frontend, *arguments)
        made.append(frontend)

    monkeypatch.setattr(Frontend, "__init__", keep)
    return made


def test_a_server_that_waits_is_not_taken_for_one_that_does_not(tmp_path: Path, frontends: list[Frontend]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener,), kwargs={"nodelay": False}, daemon=True).start()
        with ClientInThread(tmp_path, listener.getsockname()[1], ["one"]) as client:
            for order in range(10):
                client.issue((2 * order, 0), (2 * order + 1, 0))
                client.ended(2 * order + 2)
        listener.shutdown(socket.SHUT_RDWR)
    assert {event.kind for event in client.events[1:]} == {Kind.FIRST, Kind.DONE}
    assert frontends[0].trials == 10_000 - 20
    assert frontends[0].waits


def test_a_server_that_does_not_wait_is_found_out(tmp_path: Path, frontends: list[Frontend]) -> None:
    script = Script(tokens=50, tpot_ms=2)
    with Oracle(script) as oracle, ClientInThread(tmp_path, oracle.port, ["one"]) as client:
        end, order = time.monotonic() + 120, 0
        while frontends[0].waits and time.monotonic() < end:
            client.issue((order, 0))
            order += 1
            client.ended(order)
        assert not frontends[0].waits
        before = frontends[0].trials
        client.issue((order, 0))
        client.ended(order + 1)
    assert {event.output_tokens for event in client.of(Kind.DONE)} == {50}
    assert frontends[0].trials == before


def test_trials_end(tmp_path: Path, frontends: list[Frontend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TRIALS", 2)
    with Oracle(Script(tokens=2)) as oracle, ClientInThread(tmp_path, oracle.port, ["one"]) as client:
        for order in range(4):  # too short to tell
            client.issue((order, 0))
            client.ended(order + 1)
    assert (frontends[0].waits, frontends[0].trials) == (True, 0)


@pytest.mark.parametrize("waits", [True, False])
def test_a_connection_that_is_used_again_acknowledges_at_once_where_the_server_may_wait(*, waits: bool) -> None:
    frontend = Frontend("127.0.0.1", 1, "/")
    frontend.waits = waits
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, not waits)
        connection = Connection(cast("Owner", None), Loop(lambda: None, lambda: None, 1), frontend, sock)
        connection.send(Exchange(0, 0, 0, frontend, memoryview(b"{}"), Response()), fresh=False)
        assert bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)) == waits

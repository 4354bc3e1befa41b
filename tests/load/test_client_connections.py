"""What the client process does with its connections, and which process gets a query."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.load import http_worker
from dynamo_mlperf.load.channel import Kind
from dynamo_mlperf.load.connection import Connection, Exchange, Owner
from dynamo_mlperf.load.loop import Loop
from dynamo_mlperf.load.opening import Frontend
from dynamo_mlperf.load.response import Response
from dynamo_mlperf.load.workers import least_loaded
from tests.fakes.oracle import Oracle
from tests.load.client_in_thread import ClientInThread


@given(in_flight=st.lists(st.integers(0, 5), min_size=1, max_size=6), turn=st.integers(0, 50))
def test_a_query_goes_where_least_is_in_flight(in_flight: list[int], turn: int) -> None:
    chosen = least_loaded(in_flight, turn)
    assert in_flight[chosen] == min(in_flight)
    count = len(in_flight)
    before = [(turn + step) % count for step in range((chosen - turn) % count)]
    assert all(in_flight[position] > in_flight[chosen] for position in before)


def test_a_connection_is_used_again_after_its_message_has_ended(tmp_path: Path) -> None:
    with Oracle() as oracle, ClientInThread(tmp_path, oracle.port, ["hello"]) as client:
        for order in range(3):
            client.issue((order, 0))
            client.ended(order + 1)
        assert [event.order for event in client.of(Kind.DONE)] == [0, 1, 2]
        assert b'"connections_opened": 2' in client.account()
        assert oracle.stats().connections == 2  # the two that were opened before the clock


def test_more_requests_than_connections_open_their_own(tmp_path: Path) -> None:
    with Oracle() as oracle, ClientInThread(tmp_path, oracle.port, ["hello"]) as client:
        client.issue(*((order, 0) for order in range(40)))
        ended = client.ended(40)
        assert {event.kind for event in ended} == {Kind.DONE}
        assert b'"connections_opened": 40' in client.account()
        assert oracle.stats().connections == 40


def test_a_message_that_never_ends_costs_the_connection_and_not_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_worker, "_DRAIN_NS", 1)
    with Oracle() as oracle, ClientInThread(tmp_path, oracle.port, ["fault=no-end"]) as client:
        client.issue((0, 0))
        ended = client.ended(1)
        deadline = time.monotonic() + 120
        while oracle.stats().closed < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert oracle.stats().closed == 1
    assert [(event.kind, event.output_tokens) for event in ended] == [(Kind.DONE, 8)]


def test_a_body_that_no_socket_takes_at_once_arrives_whole(tmp_path: Path) -> None:
    with Oracle() as oracle, ClientInThread(tmp_path, oracle.port, ["x" * 30_000_000, "short"]) as client:
        for order in range(3):
            client.issue((order, order % 2))
            client.ended(order + 1)
        assert oracle.stats().requests == 3
    assert [(event.kind, event.output_tokens) for event in client.ended(3)] == [(Kind.DONE, 8)] * 3


def _closes_each(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_a_fresh_connection_that_is_closed_at_once_is_a_failure(tmp_path: Path) -> None:
    """Neither sent again nor waited for: only a connection that was used before may have been closed meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closing = threading.Thread(target=_closes_each, args=(listener,))
        closing.start()
        with ClientInThread(tmp_path, listener.getsockname()[1], ["hello"]) as client:
            time.sleep(0.1)  # the warm connections are closed by now, or found so when they are used
            for order in range(4):
                client.issue((order, 0))
                client.ended(order + 1)
        listener.shutdown(socket.SHUT_RDWR)
        closing.join(60)
    assert [event.kind for event in client.events if event.kind != Kind.READY] == [Kind.FAILED] * 4
    assert client.events[-1].tail.startswith(b"connection lost after 0 bytes of the answer")


def test_what_comes_in_on_a_connection_that_is_used_again_is_acknowledged_at_once() -> None:
    frontend = Frontend("127.0.0.1", 1, "/")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sock,
    ):
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        connection = Connection(cast("Owner", None), Loop(lambda: None, lambda: None, 1), frontend, sock)
        connection.send(Exchange(0, 0, 0, frontend, memoryview(b"{}"), Response()), fresh=False)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1

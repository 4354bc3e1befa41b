"""The controller's HTTP client against a real socket: answers in pieces, errors, silence."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.serving.http import Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def serve() -> Iterator[Callable[[list[bytes]], tuple[str, int]]]:
    """Starts a server that reads one request and sends the given pieces, each in a segment of its own."""
    threads: list[threading.Thread] = []
    sockets: list[socket.socket] = []

    def start(pieces: list[bytes]) -> tuple[str, int]:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                received = connection.recv(65536)
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536)
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.01)

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        address: tuple[str, int] = listener.getsockname()
        return address

    yield start
    for thread in threads:
        thread.join(60)
    for listener in sockets:
        listener.close()


def finish(request: Request) -> Response:
    while (response := request.poll(0.05)) is None:
        pass
    return response


def test_a_plain_answer(serve: Callable[[list[bytes]], tuple[str, int]]) -> None:
    response = finish(Request(serve([b"HTTP/1.1 200 OK\r\nContent-Le", b'ngth: 9\r\n\r\n{"a"', b": 1}\n"]), "/x"))
    assert response.ok
    assert response.json() == {"a": 1}


def test_chunks_are_put_together(serve: Callable[[list[bytes]], tuple[str, int]]) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\nabc\r", b"\n2;x=y\r\nde\r\n0\r\n\r\n"]
    assert finish(Request(serve(pieces), "/x", body=b"{}")).body == b"abcde"


def test_an_error_status_is_an_answer(serve: Callable[[list[bytes]], tuple[str, int]]) -> None:
    response = finish(Request(serve([b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy"]), "/x"))
    assert (response.ok, response.status, response.body) == (False, 503, b"busy")


def test_a_closed_connection_says_so(serve: Callable[[list[bytes]], tuple[str, int]]) -> None:
    response = finish(Request(serve([]), "/x"))
    assert response.status == 0
    assert "closed before an answer" in response.problem


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        response = finish(Request(held.getsockname(), "/x"))
    assert response.problem == "Connection refused"


def test_silence_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        response = finish(Request(silent.getsockname(), "/x", timeout_s=0.2))
    assert response.problem == "no answer in 0.2 s"
    assert response.status == 0

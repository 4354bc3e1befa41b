"""Tokens that the kernel gathers: fewer reads, and every end is seen, with whatever bytes it comes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynamo_mlperf.load.channel import Event, Kind
from dynamo_mlperf.load.opening import FINISH, Frontend
from tests.load.client_in_thread import ClientInThread

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},' + FINISH + b'stop"}]}\n\n'
LONG = b'data: {"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":20},"more":"' + b"x" * 400 + b'"}\n\n'
SHORT = LONG.replace(b"x" * 400, b"")
DONE = b"data: [DONE]\n\n"
TOKENS = 20


def _wire(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


class Server:
    """Answers with a token every 2 ms and then the ends that it is given, one piece after the other."""

    def __init__(self) -> None:
        self.ends: list[tuple[bytes, ...]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve meanwhile."""
        threading.Thread(target=self._accept, daemon=True).start()
        yield
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while client.recv(65_536):
                client.sendall(HEAD)
                for _ in range(TOKENS):
                    time.sleep(0.002)
                    client.sendall(_wire(TOKEN))
                for piece in self.ends.pop(0):
                    client.sendall(piece)
                    time.sleep(0.05)


@pytest.fixture
def frontends(monkeypatch: pytest.MonkeyPatch) -> list[Frontend]:
    """All that are made; each is known not to wait for acknowledgements."""
    made: list[Frontend] = []
    make = Frontend.__init__

    def keep(frontend: Frontend, host: str, port: int, path: str) -> None:
        make(frontend, host, port, path)
        frontend.waits = False
        made.append(frontend)

    monkeypatch.setattr(Frontend, "__init__", keep)
    return made


def _answers(server: Server, directory: Path, *ends: tuple[bytes, ...]) -> list[Event]:
    server.ends += ends
    with server.serving(), ClientInThread(directory, server.port, ["one"]) as client:
        for order in range(len(ends)):
            client.issue((order, 0))
            client.ended(order + 1)
        assert [event.order for event in client.of(Kind.FIRST)] == list(range(len(ends)))
    return client.of(Kind.DONE)


WHOLE = (_wire(LAST, LONG, DONE) + b"0\r\n\r\n",)


def test_an_answer_ends_with_the_bytes_that_others_ended_with(tmp_path: Path, frontends: list[Frontend]) -> None:
    ended = _answers(Server(), tmp_path, *[WHOLE] * 6)
    assert [event.output_tokens for event in ended] == [TOKENS] * 6
    assert frontends[0].tail_bytes == len(WHOLE[0]) - WHOLE[0].index(FINISH)


@pytest.mark.parametrize(
    "end",
    [
        (_wire(LAST), _wire(SHORT), _wire(DONE), b"0\r\n\r\n"),
        (_wire(LAST, SHORT), _wire(DONE) + b"0\r\n\r\n"),
        (_wire(SHORT, DONE) + b"0\r\n\r\n",),  # it does not say why it ends
    ],
    ids=["in pieces", "in two", "without a word"],
)
def test_an_end_in_other_pieces_is_seen_too(tmp_path: Path, frontends: list[Frontend], end: tuple[bytes, ...]) -> None:
    ended = _answers(Server(), tmp_path, WHOLE, WHOLE, end, WHOLE, end)
    assert [event.output_tokens for event in ended] == [TOKENS] * 5
    assert not frontends[0].waits


def test_an_end_that_is_shorter_than_any_before_ends_the_gathering(tmp_path: Path, frontends: list[Frontend]) -> None:
    short = (b"%b0\r\n\r\n" % _wire(SHORT, DONE),)
    long = (_wire(LAST, LONG.replace(b"x" * 400, b"x" * 60_000), DONE) + b"0\r\n\r\n",)
    ended = _answers(Server(), tmp_path, long, short, WHOLE)
    assert [event.output_tokens for event in ended] == [TOKENS] * 3
    assert frontends[0].tail_bytes == 0

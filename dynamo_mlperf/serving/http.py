"""A small HTTP client for the controller's one thread: requests are started, then looked at until they have ended."""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK_BYTES = 65536
_BLANK_LINE = b"\r\n\r\n"


@dataclass(frozen=True)
class Response:
    """An answer, or why there is none.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        body: The body, chunked transfer coding undone.
        problem: Why there is no answer; empty otherwise.
        seconds: From start to end.
    """

    status: int
    body: bytes
    problem: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it is an HTTP 200."""
        return self.status == HTTPStatus.OK

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body as JSON.

        Raises:
            ValueError: It is none.
        """
        return json.loads(self.body)


class Request:
    """One request on a connection of its own, driven by `poll`; it never blocks longer than a poll may."""

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        self._started = time.monotonic()
        self._deadline = self._started + timeout_s
        self._timeout_s = timeout_s
        self._received = bytearray()
        self._to_send = _encode(address, path, body, headers or {})
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(False)  # noqa: FBT003 - the socket module's signature
        self._result: Response | None = None
        self._socket.connect_ex(address)

    def poll(self, wait_s: float = 0.0) -> Response | None:
        """The response once there is one; waits at most `wait_s` for something to happen."""
        if self._result is None:
            try:
                self._advance(wait_s)
            except OSError as problem:
                self._end(0, b"", problem.strerror or str(problem))
        if self._result is None and time.monotonic() > self._deadline:
            self._end(0, b"", f"no answer in {self._timeout_s:g} s")
        return self._result

    def cancel(self) -> None:
        """Give up; the server sees the connection close."""
        self._socket.close()

    def _advance(self, wait_s: float) -> None:
        happened = self._wait(wait_s)
        if happened & select.POLLOUT and self._to_send:
            sent = self._socket.send(self._to_send)
            self._to_send = self._to_send[sent:]
        while happened & (select.POLLIN | select.POLLHUP | select.POLLERR):
            block = self._socket.recv(_BLOCK_BYTES)
            if not block:
                self._finish()
                return
            self._received += block
            happened = self._wait(0.0)

    def _wait(self, wait_s: float) -> int:
        """What can be done on the socket; by poll(2), as select(2) takes no descriptor above 1023."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._to_send else 0))
        return sum(events for _, events in poller.poll(wait_s * 1000))

    def _finish(self) -> None:
        head, blank, body = bytes(self._received).partition(_BLANK_LINE)
        words = head.split(b"\r\n", 1)[0].split()
        if not blank or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004 - version and status
            self._end(0, b"", "the connection closed before an answer")
            return
        if b"transfer-encoding: chunked" in head.lower():
            body = _dechunk(body)
        self._end(int(words[1]), body, "")

    def _end(self, status: int, body: bytes, problem: str) -> None:
        self._socket.close()
        self._result = Response(status, body, problem, time.monotonic() - self._started)


def _encode(address: tuple[str, int], path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        "Connection: close",
    ]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + _BLANK_LINE + (body or b"")


def _dechunk(body: bytes) -> bytes:
    """Undo chunked transfer coding; a cut body gives what arrived."""
    out = bytearray()
    while body:
        size, newline, rest = body.partition(b"\r\n")
        if not newline:
            break
        length = int(size.split(b";")[0] or b"0", 16)
        if length == 0:
            break
        out += rest[:length]
        body = rest[length + 2 :]
    return bytes(out)

"""One HTTP/1.1 connection to a frontend, and the exchange that it carries.

What comes in is acknowledged at once. A server that leaves Nagle's algorithm on (Dynamo's frontend 1.6.1 does) keeps a
small piece until the one before is acknowledged, and a kernel that takes its time with that holds first tokens back by
up to 40 ms on a connection that is used again.
"""

from __future__ import annotations

import os
import time
from select import EPOLLIN, EPOLLOUT
from socket import IPPROTO_TCP, TCP_QUICKACK
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from socket import socket

    from dynamo_mlperf.load.loop import Loop
    from dynamo_mlperf.load.opening import Frontend
    from dynamo_mlperf.load.pump import Data
    from dynamo_mlperf.load.response import Response

STALE_WINDOW_NS = 250_000_000
"""A reused connection that closes this soon after a request, without a byte, had been closed by the server before.

Later than that the server has had the request: sending it again would hide a failure.
"""


class Exchange:
    """One request and its response."""

    __slots__ = ("body", "connection", "first_told", "frontend", "issued_ns", "order", "response", "sample", "sent_ns")

    def __init__(  # noqa: PLR0917 - one argument per part of it, and it is made for each request
        self, order: int, sample: int, issued_ns: int, frontend: Frontend, body: memoryview, response: Response
    ) -> None:
        self.order = order
        self.sample = sample
        self.issued_ns = issued_ns
        self.frontend = frontend
        self.body = body
        self.response = response
        self.sent_ns = 0
        self.connection: Connection | None = None
        self.first_told = False


class Owner(Protocol):
    """Who is told what happens to an exchange."""

    def first_token(self, exchange: Exchange) -> None:
        """The first token is there."""

    def finished(self, exchange: Exchange) -> None:
        """The outcome is known."""

    def stale(self, exchange: Exchange) -> None:
        """The connection had been closed before the request came: send it on a fresh one."""

    def idle(self, connection: Connection) -> None:
        """The connection can carry another request."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""


class Connection:
    """A keep-alive connection that carries one exchange at a time.

    After the outcome is known the rest of the message (the last chunk) is read before the connection is idle again.

    Args:
        owner: Who is told.
        loop: Where it waits.
        frontend: Where it leads.
        sock: Connected, without a timeout, and this connection's own from now on.
    """

    def __init__(self, owner: Owner, loop: Loop, frontend: Frontend, sock: socket) -> None:
        self.frontend = frontend
        self.exchange: Exchange | None = None
        self.draining_since_ns = 0
        self.open = True
        self._owner = owner
        self._loop = loop
        self._socket = sock
        self._number = sock.fileno()
        self._reading: Response | None = None
        self._unsent: list[memoryview] = []
        self._rests = False
        self._reused = True
        loop.watch(self._number, self, reads=True)

    def send(self, exchange: Exchange, *, fresh: bool) -> None:
        """Send the request; `fresh` when this connection was opened for it just now."""
        body = exchange.body
        head = exchange.frontend.head + b"%d\r\n\r\n" % body.nbytes
        self._reused = not fresh
        self.exchange = exchange
        self._reading = exchange.response
        exchange.connection = self
        try:
            taken = os.writev(self._number, (head, body))
        except BlockingIOError:
            taken = 0
        except OSError as problem:
            exchange.sent_ns = time.monotonic_ns()
            self._end(str(problem))
            return
        exchange.sent_ns = time.monotonic_ns()
        self._socket.setsockopt(IPPROTO_TCP, TCP_QUICKACK, 1)
        if taken < len(head) + body.nbytes:
            self._unsent = _after([memoryview(head), body], taken)
            self._loop.rewatch(self._number, EPOLLIN | EPOLLOUT)

    def ready(self, events: int, data: Data, passed_bytes: int, at_ns: int) -> None:
        """Take what came, and tell the owner of the first token and the outcome; send what waited for its turn."""
        if not self.open:
            return  # closed since it was read
        if self._unsent and events & EPOLLOUT:
            self._send_rest()
        response = self._reading
        if passed_bytes and response is not None:
            response.received_bytes += passed_bytes
        if isinstance(data, bytes):
            if data:
                self._take(response, data, at_ns)
            else:
                self._end("")
        elif data is not None:
            self._end(str(data))

    def _take(self, response: Response | None, data: bytes, at_ns: int) -> None:
        if response is None:
            self.close()  # a byte that nobody asked for: the connection is out of step
            return
        exchange = self.exchange
        response.feed(data, at_ns)
        if exchange is not None:
            if response.first_ns and not exchange.first_told:
                exchange.first_told = True
                self._owner.first_token(exchange)
                if not response.done and self._loop.dense and not self._unsent:
                    self._rests = True
                    self._loop.rest(self._number)
            if response.done:
                self.exchange = None
                self.draining_since_ns = at_ns
                self._owner.finished(exchange)
        if response.done:
            self._settle(response)
        elif response.skims:
            self._loop.skim(self._number)

    def _send_rest(self) -> None:
        try:
            taken = os.writev(self._number, self._unsent)
        except OSError:
            return  # full again; or broken, which is what the next read says
        self._unsent = _after(self._unsent, taken)
        if not self._unsent:
            self._loop.rewatch(self._number, EPOLLIN)

    def _settle(self, response: Response) -> None:
        if not response.keep_alive or (response.error and not response.ended) or self._unsent:
            self.close()
        elif response.ended:
            self._reading = None
            self._rouse()
            self._owner.idle(self)

    def _rouse(self) -> None:
        if self._rests:
            self._rests = False
            self._loop.rouse(self._number)

    def _end(self, why: str) -> None:
        """The connection has ended, and with it the exchange: properly, as stale, or as a failure."""
        exchange, self.exchange = self.exchange, None
        self.close()
        if exchange is None:
            return
        now_ns = time.monotonic_ns()
        unanswered = not exchange.response.received_bytes and now_ns - exchange.sent_ns < STALE_WINDOW_NS
        if self._reused and unanswered:
            self._owner.stale(exchange)  # goes out on a fresh connection, which is never stale: once at most
            return
        exchange.response.connection_closed(now_ns, why)
        self._owner.finished(exchange)

    def close(self) -> None:
        """Close at once, without waiting for unsent bytes."""
        if self.open:
            self.open = False
            self._reading, self._unsent = None, []
            self._rouse()
            self._loop.forget(self._number)
            self._socket.close()
            self._owner.lost(self)


def _after(pieces: list[memoryview], taken: int) -> list[memoryview]:
    """What is left of `pieces` after the first `taken` bytes."""
    left = []
    for piece in pieces:
        if taken < piece.nbytes:
            left.append(piece[taken:])
        taken = max(0, taken - piece.nbytes)
    return left

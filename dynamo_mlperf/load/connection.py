"""One HTTP/1.1 connection to a frontend, and the exchange that it carries."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Protocol, cast

from dynamo_mlperf.load.response import Response

STALE_WINDOW_NS = 250_000_000
"""A reused connection that closes this soon after a request, without a byte, had been closed by the server before.

Later than that the server has had the request: sending it again would hide a failure.
"""


class Frontend:
    """One frontend: where it is, the constant part of its request heads, and its idle connections."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.host = host
        self.port = port
        shown = f"[{host}]" if ":" in host else host
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: {shown}:{port}\r\nContent-Type: application/json\r\n"
            "Accept: text/event-stream\r\nContent-Length: "
        ).encode()
        self.idle: list[Connection] = []


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


class Connection(asyncio.Protocol):
    """A keep-alive connection that carries one exchange at a time.

    After the outcome is known the rest of the message (the last chunk) is read before the connection is idle again.
    """

    def __init__(self, owner: Owner, frontend: Frontend) -> None:
        self.frontend = frontend
        self.exchange: Exchange | None = None
        self.draining_since_ns = 0
        self._owner = owner
        self._reading: Response | None = None
        self._transport: asyncio.Transport | None = None
        self._number = -1
        self._reused = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and the number of its socket."""
        self._transport = cast("asyncio.Transport", transport)
        self._number = transport.get_extra_info("socket").fileno()

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._transport is not None and not self._transport.is_closing() and self._reading is None

    def send(self, exchange: Exchange, *, fresh: bool) -> None:
        """Send the request; `fresh` when this connection was opened for it just now.

        It goes to the socket at once: the transport would keep it until the loop's turn ends. What the socket does
        not take is the transport's, as everything is while it still has something of the request before.
        """
        body = exchange.body
        head = exchange.frontend.head + b"%d\r\n\r\n" % body.nbytes
        self._reused = not fresh
        self.exchange = exchange
        self._reading = exchange.response
        exchange.connection = self
        transport = self._transport
        if transport is not None and not transport.is_closing():
            taken = 0
            if not transport.get_write_buffer_size():
                with contextlib.suppress(OSError):  # full, or broken: the transport waits, or finds out
                    taken = os.writev(self._number, (head, body))
            if taken < len(head) + body.nbytes:
                transport.writelines((head[taken:], body[max(0, taken - len(head)) :]))
        exchange.sent_ns = time.monotonic_ns()

    def data_received(self, data: bytes) -> None:
        """Feed the response, and tell the owner of its first token and its outcome."""
        response = self._reading
        if response is not None and response.skims and response.skim(data):
            return
        now_ns = time.monotonic_ns()
        exchange = self.exchange
        if response is None:
            self.close()  # a byte that nobody asked for: the connection is out of step
            return
        response.feed(data, now_ns)
        if exchange is not None:
            if response.first_ns and not exchange.first_told:
                exchange.first_told = True
                self._owner.first_token(exchange)
            if response.done:
                self.exchange = None
                self.draining_since_ns = now_ns
                self._owner.finished(exchange)
        if response.done:
            self._settle(response)

    def _settle(self, response: Response) -> None:
        if not response.keep_alive or (response.error and not response.ended):
            self.close()
        elif response.ended:
            self._reading = None
            self._owner.idle(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: by the proper end of a message, as stale, or as a failure."""
        exchange, self.exchange, self._reading = self.exchange, None, None
        self._owner.lost(self)
        if exchange is None:
            return
        now_ns = time.monotonic_ns()
        unanswered = not exchange.response.received_bytes and now_ns - exchange.sent_ns < STALE_WINDOW_NS
        if self._reused and unanswered:
            self._owner.stale(exchange)  # goes out on a fresh connection, which is never stale: once at most
            return
        exchange.response.connection_closed(now_ns, str(exc) if exc else "")
        self._owner.finished(exchange)

    def close(self) -> None:
        """Close at once, without waiting for unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

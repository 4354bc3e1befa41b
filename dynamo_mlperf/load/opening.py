"""Frontends, and how connections to them are opened without waiting."""

from __future__ import annotations

import errno
import os
import socket
from select import EPOLLOUT
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynamo_mlperf.load.connection import Connection
    from dynamo_mlperf.load.loop import Loop
    from dynamo_mlperf.load.pump import Data

OPENED_AT_ONCE = 128
"""Fewer than any listening socket lets wait (somaxconn is 4096 today, and was 128)."""


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
        self._addresses: list[tuple[int, Any]] = []

    def addresses(self) -> list[tuple[int, Any]]:
        """Family and address of each way there; looked up once.

        Raises:
            OSError: The name is not known.
        """
        if not self._addresses:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            self._addresses = [(family, address) for family, _, _, _, address in found]
        return self._addresses


class Opening:
    """A connection that is being opened: each address of the frontend in turn until one answers.

    Args:
        loop: Where it waits.
        frontend: Where it leads.
        opened: Called with the connected socket.
        failed: Called with the last address's problem, also before the constructor returns.
    """

    def __init__(
        self,
        loop: Loop,
        frontend: Frontend,
        opened: Callable[[socket.socket], None],
        failed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._opened = opened
        self._failed = failed
        self._socket: socket.socket | None = None
        self._left: Iterator[tuple[int, Any]] = iter(())
        try:
            self._left = iter(frontend.addresses())
        except OSError as problem:
            failed(str(problem))
            return
        self._next("")

    def ready(self, events: int, data: Data, passed_bytes: int, at_ns: int) -> None:  # noqa: ARG002 - as watched
        """The attempt has ended, one way or the other."""
        if self._socket is None:
            return
        sock, self._socket = self._socket, None
        self._loop.forget(sock.fileno())
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            sock.close()
            self._next(_said(code))
        else:
            self._opened(sock)

    def give_up(self) -> None:
        """Stop trying; nobody is told."""
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _next(self, problem: str) -> None:
        for family, address in self._left:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                problem = str(error)
                continue
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                self._socket = sock
                self._loop.watch(sock.fileno(), self, EPOLLOUT)
                return
            sock.close()
            problem = _said(code)
        self._failed(problem)


def _said(code: int) -> str:
    return str(OSError(code, os.strerror(code)))


class Warming:
    """Opens connections before the clock starts, a bounded number at once; those that fail are no error yet.

    Args:
        open_one: Starts to open one and returns it; calls the first function when that is open, the second with the
            problem when it has failed.
        picks: The frontend of each connection.
        done: Called once, with the last problem there was, when no more are under way.
    """

    def __init__(
        self,
        open_one: Callable[[Frontend, Callable[[], None], Callable[[str], None]], Opening],
        picks: list[Frontend],
        done: Callable[[str], None],
    ) -> None:
        self._open_one = open_one
        self._picks = picks
        self._done = done
        self._problem = ""
        self._under_way = 0
        self._openings: list[Opening] = []
        self._filling = False
        self._over = False

    def fill(self) -> None:
        """Start as many as may be under way."""
        if self._filling:
            return
        self._filling = True
        while self._picks and self._under_way < OPENED_AT_ONCE:
            self._under_way += 1
            self._openings.append(self._open_one(self._picks.pop(), self._opened, self._failed))
        self._filling = False
        if not self._under_way:
            self._finish()

    def _opened(self) -> None:
        self._failed("")

    def _failed(self, problem: str) -> None:
        self._problem = problem or self._problem
        self._under_way -= 1
        self.fill()

    def stop(self, problem: str) -> None:
        """Leave it at what is open by now."""
        if not self._over:
            for opening in self._openings:
                opening.give_up()
            self._problem = problem
            self._finish()

    def _finish(self) -> None:
        if not self._over:
            self._over = True
            self._openings.clear()
            self._done(self._problem)

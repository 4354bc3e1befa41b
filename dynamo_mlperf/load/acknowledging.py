"""Whether a server waits for acknowledgements (Nagle's algorithm), and so how ours are to be sent.

Such a server (Dynamo's frontend 1.6.1 is one) keeps a small piece until the one before is acknowledged. A client's
kernel that takes its time then holds back first tokens by 40 ms: 46 instead of 19 ms were seen on a connection that was
used again at once. So each read is acknowledged at once. That costs more than the read itself, and nothing where the
server does not wait; whether it does shows when two small pieces come in while nothing of ours went out.
"""

from __future__ import annotations

import struct
from socket import IPPROTO_TCP, MSG_PEEK, TCP_INFO, TCP_QUICKACK, socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamo_mlperf.load.connection import Connection
    from dynamo_mlperf.load.loop import Loop
    from dynamo_mlperf.load.opening import Frontend

TRIALS = 4
"""Answers of each frontend on which it is tried; one that does wait loses time there, after its first token."""

_TRIAL_READS = 8
_SMALL_BYTES = 500
"""Less than any segment can hold, so that Nagle's algorithm applies."""

_SEGMENTS_OUT = struct.Struct("136xI")
"""`tcpi_segs_out` in `struct tcp_info` of linux/tcp.h (Linux 4.2 and later): every segment that this side has sent."""


def acknowledge_at_once(sock: socket, *, at_once: bool) -> None:
    """Acknowledge each read at once, or every second one; until the next request."""
    sock.setsockopt(IPPROTO_TCP, TCP_QUICKACK, at_once)


class Trial:
    """Stands in for a connection in the loop for a few reads after the first token.

    The proof: a small piece comes in, then another one, and between the time before the first and the time after the
    second this side sent no segment. So the first was not acknowledged when the second was sent.
    """

    def __init__(self, loop: Loop, connection: Connection, sock: socket) -> None:
        self._loop = loop
        self._connection = connection
        self._socket = sock
        self._number = sock.fileno()
        self._reads = 0
        self._marks: tuple[int | None, int | None] = (None, self._mark())
        acknowledge_at_once(sock, at_once=False)
        loop.hand_over(self._number, self)

    def ready(self, events: int) -> None:
        """Have the connection read, and look."""
        connection, exchange = self._connection, self._connection.exchange
        if exchange is None:
            self._end(connection.frontend)
            connection.ready(events)
            return
        response = exchange.response
        before = self._marks[0]
        if before is not None and before == self._sent():
            connection.frontend.waits = False
        read_bytes = response.received_bytes
        connection.ready(events)
        read_bytes = response.received_bytes - read_bytes
        self._reads += 1
        if not connection.open:
            return
        if not connection.frontend.waits or self._reads >= _TRIAL_READS or connection.exchange is not exchange:
            self._end(connection.frontend)
            return
        self._marks = (self._marks[1] if 0 < read_bytes < _SMALL_BYTES else None, self._mark())

    def _end(self, frontend: Frontend) -> None:
        self._loop.hand_over(self._number, self._connection)
        acknowledge_at_once(self._socket, at_once=frontend.waits)

    def _mark(self) -> int | None:
        """Segments sent up to a time when nothing waits to be read; None where something does."""
        sent = self._sent()
        try:
            self._socket.recv(1, MSG_PEEK)
        except OSError:
            return sent
        return None

    def _sent(self) -> int | None:
        info = self._socket.getsockopt(IPPROTO_TCP, TCP_INFO, _SEGMENTS_OUT.size)
        return _SEGMENTS_OUT.unpack(info)[0] if len(info) == _SEGMENTS_OUT.size else None

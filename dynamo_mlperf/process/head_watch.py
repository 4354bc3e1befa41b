"""Whether the node where the controller runs still has power, as seen from the others.

A node that loses its power says nothing. Slurm notices after SlurmdTimeout, 300 s unless a site changes it
(slurm.conf(5)), and so long the engines on the other nodes would hold their GPUs. So each of those keeps an idle
connection to the first node, and the kernels ask each other for a sign of life (tcp(7), SO_KEEPALIVE): how busy a
program is does not matter.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time

IDLE_S, EVERY_S, UNANSWERED = 5, 5, 3
"""After 20 s without an answer the node counts as lost: etcd's lease of a worker is over by then, too (10 s)."""
CALL_S = 4.0
"""How long a node may take to an answer, be it a refusal, once its agent has said good-bye; it is called as often."""
CALLS = 3
"""Calls in a row without an answer after which such a node is lost."""


class HeadWatch:
    """Both ends: the first node's agent opens the place, those of the other nodes watch it."""

    def __init__(self) -> None:
        self._place: socket.socket | None = None
        self._guests: list[socket.socket] = []
        self._way: socket.socket | None = None
        self._there = ("", 0)
        self._call: socket.socket | None = None
        self._called_t = 0.0
        self._unanswered: int | None = None

    def open(self, address: str) -> int:
        """Take connections at this address; the port, of the system's choice.

        Raises:
            OSError: There is no such address here.
        """
        self._place = socket.create_server((address, 0), backlog=1024)
        return int(self._place.getsockname()[1])

    def watch(self, address: str, port: int, timeout_s: float) -> bool:
        """Watch that node from now on; False where there is no way to it."""
        try:
            way = socket.create_connection((address, port), timeout_s)
        except OSError:
            return False
        way.setblocking(False)  # noqa: FBT003 - the socket module's signature
        way.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, EVERY_S)
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, UNANSWERED)
        self._way, self._there = way, (address, port)
        return True

    def sources(self) -> list[socket.socket]:
        """What to wait for beside other input; `turn` when one of them is ready."""
        return [one for one in (self._place, self._way) if one is not None]

    def close(self) -> None:
        """Say good-bye to all."""
        for one in (self._place, self._way, self._call, *self._guests):
            if one is not None:
                one.close()

    @property
    def calling(self) -> bool:
        """Whether `turn` has something to do once a second, even where no source is ready."""
        return self._unanswered is not None

    def turn(self) -> bool:
        """Take in who connects; whether the watched node is lost.

        An agent says good-bye when it ends, and when its node is shut down in good order: from then on the node is
        called, and one that lives refuses.
        """
        if self._place is not None:
            self._place.settimeout(0)
            with contextlib.suppress(OSError):
                self._guests.append(self._place.accept()[0])
        if self._way is not None:
            try:
                said = self._way.recv(1)
            except BlockingIOError:
                return False
            except OSError:  # no sign of life, no route, or a reset by a kernel that was booted since
                return True
            if not said:
                self._way.close()
                self._way, self._unanswered = None, 0
        if self._unanswered is not None:
            self._unanswered = self._calls_unanswered(self._unanswered)
        return self._unanswered == CALLS

    def _calls_unanswered(self, before: int) -> int:
        """How many calls in a row the node has left unanswered; nobody waits for it."""
        if self._call is not None:
            _, ready, _ = select.select([], [self._call], [], 0)
            if not ready and time.monotonic() - self._called_t < CALL_S:
                return before
            said = self._call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if ready else errno.ETIMEDOUT
            self._call.close()
            self._call = None
            return 0 if said in {0, errno.ECONNREFUSED} else before + 1
        if time.monotonic() - self._called_t >= CALL_S:
            self._call, self._called_t = socket.socket(), time.monotonic()
            self._call.setblocking(False)  # noqa: FBT003 - the socket module's signature
            self._call.connect_ex(self._there)
        return before

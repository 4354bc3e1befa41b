"""Whether the node where the controller runs still has power, as seen from the others.

A node that loses its power says nothing. Slurm notices after SlurmdTimeout, 300 s unless a site changes it
(slurm.conf(5)), and so long the engines on the other nodes would hold their GPUs. So each of those keeps an idle
connection to the first node, and the kernels ask each other for a sign of life (tcp(7), SO_KEEPALIVE): how busy a
program is does not matter. Anyone may connect; who says something or hangs up is let go.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time

IDLE_S, EVERY_S, UNANSWERED = 5, 5, 3
"""After 20 s without an answer the node counts as lost: etcd's lease of a worker is over by then, too (10 s)."""
CALL_S = 4.0
"""How long a node may take to an answer, be it a refusal, once its agent has said good-bye; it is called as often."""
CALLS = 3
"""Calls in a row without an answer after which such a node is lost."""
GUESTS = 8192
"""Connections that the first node holds at most; each is one of its descriptors."""
PAUSE_S = 1.0
"""How long nobody is let in after the system would not give a descriptor."""
_SPARE = 128
"""Descriptors that are left to the rest of the agent."""
_AT_ONCE = 256
_HUNG_UP = select.EPOLLIN | select.EPOLLRDHUP
_ANSWERED = frozenset({0, errno.ECONNREFUSED, errno.ECONNRESET})
_OF_HERE = frozenset({errno.EAGAIN, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""What a call fails with for want of something on this node: that says nothing of the other."""


class HeadWatch:
    """Both ends: the first node's agent opens the place, those of the other nodes watch it."""

    def __init__(self) -> None:
        self._ready = select.epoll()  # select(2) takes no descriptor above 1023
        self._place: socket.socket | None = None
        self._guests: dict[int, socket.socket] = {}
        self._most = GUESTS
        self._again_t: float | None = None
        self._way: socket.socket | None = None
        self._there = ("", 0)
        self._calls: Calls | None = None

    def open(self, address: str) -> int:
        """Take connections at this address; the port, of the system's choice.

        Raises:
            OSError: There is no such address here.
        """
        self._most = _room_for_guests()
        self._place = socket.create_server((address, 0), backlog=1024)
        self._place.setblocking(False)  # noqa: FBT003 - the socket module's signature
        self._ready.register(self._place, select.EPOLLIN)
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
        self._ready.register(way, select.EPOLLIN)
        return True

    def sources(self) -> list[select.epoll]:
        """What to wait for beside other input; `turn` when it is ready."""
        return [self._ready]

    def close(self) -> None:
        """Say good-bye to all."""
        for one in (self._place, self._way, self._calls, *self._guests.values()):
            if one is not None:
                one.close()
        self._ready.close()

    @property
    def calling(self) -> bool:
        """Whether `turn` has something to do once a second, even where no source is ready."""
        return self._calls is not None

    def turn(self) -> bool:
        """Take in who connects, let go who hangs up; whether the watched node is lost.

        An agent says good-bye when it ends, and when its node is shut down in good order; a reset comes instead where
        it was killed before it took the connection. From then on the node is called, and one that lives refuses.
        So does one that was booted within IDLE_S + UNANSWERED * EVERY_S: Slurm sees that, and ends its jobs.
        """
        self._receive()
        if self._way is not None:
            try:
                said = self._way.recv(1)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                said = b""
            except OSError:  # no sign of life, or no route
                return True
            if not said:
                self._way.close()
                self._way, self._calls = None, Calls(self._there)
        return self._calls is not None and self._calls.unanswered() >= CALLS

    def _receive(self) -> None:
        """Let go who has hung up or said something, then take in who waits."""
        for number, _ in self._ready.poll(0, _AT_ONCE):
            guest = self._guests.pop(number, None)
            if guest is not None:
                guest.close()
        if self._place is None:
            return
        if self._again_t is not None and time.monotonic() >= self._again_t:
            self._ready.register(self._place, select.EPOLLIN)
            self._again_t = None
        if self._again_t is None:
            self._take_in(self._place)

    def _take_in(self, place: socket.socket) -> None:
        """Who is too many is taken and let go: one of the other nodes then calls, so the watch goes on."""
        for _ in range(_AT_ONCE):
            try:
                guest, _address = place.accept()
                if len(self._guests) >= self._most:
                    guest.close()
                    continue
                self._ready.register(guest, _HUNG_UP)
            except BlockingIOError:
                return
            except OSError:  # no descriptor left, for one: who waits would wake the agent at once, over and over
                self._ready.unregister(place)
                self._again_t = time.monotonic() + PAUSE_S
                return
            self._guests[guest.fileno()] = guest


class Calls:
    """Calls to a node whose agent has said good-bye: nobody waits for them, each turn looks how they stand."""

    def __init__(self, there: tuple[str, int]) -> None:
        self._there = there
        self._call: socket.socket | None = None
        self._called_t = -CALL_S
        self._unanswered = 0

    def close(self) -> None:
        """Give up the call that is under way."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def unanswered(self) -> int:
        """Call where it is time, take in an answer; how many calls in a row have had none."""
        if self._call is not None:
            asked = select.poll()
            asked.register(self._call, select.POLLOUT)
            if asked.poll(0):
                self._note(self._call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            elif time.monotonic() - self._called_t >= CALL_S:
                self._note(errno.ETIMEDOUT)
        elif time.monotonic() - self._called_t >= CALL_S:
            self._called_t = time.monotonic()
            try:
                self._call = socket.socket()
            except OSError:
                return self._unanswered
            self._call.setblocking(False)  # noqa: FBT003 - the socket module's signature
            number = self._call.connect_ex(self._there)
            if number != errno.EINPROGRESS:  # it is over at once, and SO_ERROR would say 0
                self._note(number)
        return self._unanswered

    def _note(self, number: int) -> None:
        """How a call went: 0, or the number of its error; a lost route is no answer."""
        self.close()
        if number not in _OF_HERE:
            self._unanswered = 0 if number in _ANSWERED else self._unanswered + 1


def _room_for_guests() -> int:
    """How many guests this process's descriptors allow, once it may have as many as the system lets it have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = GUESTS + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return GUESTS if soft == resource.RLIM_INFINITY else min(GUESTS, max(soft - _SPARE, soft // 2))

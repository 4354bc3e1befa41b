"""The event loop of a client process: what is urgent wakes it, what can wait a moment is looked at in passing.

An answer has one urgent moment, its first token; nothing that follows is told before its end. Where tokens come so
densely that each would wake the process, the sockets of answers under way rest: their bytes wait in the kernel until
the process is awake for something else, `REST_MS` at most, and one look finds those of all. Where tokens come thinly
every socket wakes the process by itself. So an end may be seen `REST_MS` late, and never early; a first token never
rests.
"""

from __future__ import annotations

import time
from select import EPOLLIN, epoll
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

REST_MS = 1
"""Longest rest of what came in: in the mean an end is seen late by half of it."""

_DENSE_PER_S, _THIN_PER_S = 2000, 1000
"""Rests begin where more descriptors than this are ready in a second, and end below: the looks are as many."""

_MOST_READY = 4096
_MOST_RESTED = 32
"""As many of those that could wait are served before the loop looks for what cannot."""


class Watched(Protocol):
    """What has a descriptor in the loop."""

    def ready(self, events: int) -> None:
        """There is something to read, or what else it was watched for (a mask as epoll has it)."""


class Loop:
    """Waits for descriptors and for one timer.

    Attributes:
        running: Until it is set to false.
        dense: Whether what can wait should: see `rest`.
        rested: How often something was left to rest.

    Args:
        tick: Called every `tick_ns`.
        told: Called after each round of events.
        tick_ns: Nanoseconds.
    """

    def __init__(self, tick: Callable[[], None], told: Callable[[], None], tick_ns: int) -> None:
        self.running = True
        self.dense = False
        self.rested = 0
        self._tick = tick
        self._told = told
        self._tick_ns = tick_ns
        self._urgent = epoll()
        self._resting = epoll()
        self._watched: dict[int, Watched] = {}
        self._known: set[int] = set()  # those that `_resting` has; they stay there for good
        self._at_rest = 0
        self._seen = 0

    def watch(self, number: int, watched: Watched, events: int = EPOLLIN) -> None:
        """Call `watched` whenever the descriptor `number` is ready for any of `events`."""
        self._watched[number] = watched
        self._urgent.register(number, events)

    def rewatch(self, number: int, events: int = EPOLLIN) -> None:
        """Watch a descriptor for other events."""
        self._urgent.modify(number, events)

    def forget(self, number: int) -> None:
        """Watch a descriptor no more; before it is closed, and not while it rests."""
        del self._watched[number]
        self._urgent.unregister(number)
        if number in self._known:
            self._resting.unregister(number)
            self._known.discard(number)

    def rest(self, number: int) -> None:
        """What comes in here can wait a moment, until `rouse`."""
        self._urgent.modify(number, 0)
        if number not in self._known:
            self._resting.register(number, EPOLLIN)
            self._known.add(number)
        self._at_rest += 1
        self.rested += 1

    def rouse(self, number: int) -> None:
        """What comes in here is urgent again."""
        self._urgent.modify(number, EPOLLIN)
        self._at_rest -= 1

    def run(self) -> None:
        """Serve until `running` is false."""
        clock_ns = time.monotonic_ns
        due_ns, wait_s = clock_ns() + self._tick_ns, 0.0
        while self.running:
            self._serve(self._urgent.poll(wait_s, _MOST_READY))
            rested = self._resting.poll(0, _MOST_RESTED) if self._at_rest else []
            self._serve(rested)
            now_ns = clock_ns()
            if now_ns >= due_ns:
                self._tick()
                self._told()
                self._weigh(now_ns - due_ns + self._tick_ns)
                due_ns = now_ns + self._tick_ns
            if len(rested) == _MOST_RESTED:
                wait_s = 0.0
            else:
                wait_s = REST_MS / 1000 if self._at_rest else (due_ns - now_ns) / 1e9

    def _serve(self, found: list[tuple[int, int]]) -> None:
        if not found:
            return
        watched = self._watched
        for number, events in found:
            if (each := watched.get(number)) is not None:
                each.ready(events)
        self._seen += len(found)
        self._told()

    def _weigh(self, past_ns: int) -> None:
        """Decide whether tokens come densely, by what was ready in the time since the last tick."""
        self.dense = self._seen * 1e9 / past_ns > (_THIN_PER_S if self.dense else _DENSE_PER_S)
        self._seen = 0

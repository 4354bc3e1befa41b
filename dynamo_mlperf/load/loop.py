"""The event loop of a client process: what is urgent wakes it, what can wait a moment is looked at in passing.

An answer has one urgent moment, its first token; nothing that follows is told before its end. Where tokens come so
densely that each would wake the process, the sockets of answers under way rest: their bytes wait in the kernel until
the process is awake for something else, `REST_MS` at most, and one look finds those of all. Where tokens come thinly
every socket wakes the process by itself. So an end may be seen `REST_MS` late, and never early; a first token never
rests.
"""

from __future__ import annotations

import time
from select import EPOLLIN
from typing import TYPE_CHECKING

from dynamo_mlperf.load.pump import PythonPump, make_pump

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.load.pump import Watched

REST_MS = 4
"""Longest rest of what came in: in the mean an end is seen late by half of it."""

_DENSE_PER_S, _THIN_PER_S = 2000, 1000
"""Rests begin where more descriptors than this are ready in a second, and end below: the looks are as many."""


class Loop:
    """Waits for descriptors and for one timer.

    Attributes:
        running: Until it is set to false.
        dense: Whether what can wait should: see `rest`.
        rested: How often something was left to rest.
        compiled: Whether the compiled pump is in use.

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
        self._pump = make_pump(REST_MS)
        self.compiled = not isinstance(self._pump, PythonPump)
        self._weighed = 0
        self.rewatch = self._pump.rewatch
        self.forget = self._pump.forget
        self.skim = self._pump.skim
        self.rouse = self._pump.rouse

    def watch(self, number: int, watched: Watched, events: int = EPOLLIN, *, reads: bool = False) -> None:
        """Call `watched` whenever the descriptor `number` is ready for any of `events`; `reads`: with what came."""
        self._pump.watch(number, watched, events)
        if reads:
            self._pump.read_from(number)

    def rest(self, number: int) -> None:
        """What comes in here can wait a moment, until `rouse`."""
        self._pump.rest(number)
        self.rested += 1

    def run(self) -> None:
        """Serve until `running` is false."""
        clock_ns, poll = time.monotonic_ns, self._pump.poll
        now_ns = clock_ns()
        due_ns = now_ns + self._tick_ns
        while self.running:
            found = poll(due_ns - now_ns)
            for watched, events, data, passed_bytes, at_ns in found:
                watched.ready(events, data, passed_bytes, at_ns)
            if found:
                self._told()
            now_ns = clock_ns()
            if now_ns >= due_ns:
                self._tick()
                self._told()
                self._weigh(now_ns - due_ns + self._tick_ns)
                due_ns = now_ns + self._tick_ns

    def _weigh(self, past_ns: int) -> None:
        """Decide whether tokens come densely, by what was ready in the time since the last tick."""
        seen = self._pump.seen
        self.dense = (seen - self._weighed) * 1e9 / past_ns > (_THIN_PER_S if self.dense else _DENSE_PER_S)
        self._weighed = seen

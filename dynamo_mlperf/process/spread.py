"""Spread work that needs no word between its parts over processes, in order and with bounded room."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Generic, TypeVar

from dynamo_mlperf.errors import SetupError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_PR_SET_PDEATHSIG = 1
_WAITING_EACH = 2
"""Tasks that wait for each process, so that none is idle."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _begin(parent: int) -> None:
    """In each process: Ctrl-C is the parent's business, and without a parent there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before this one asked to be told
        os._exit(1)


class Spread(Generic[_Task, _Result]):
    """Applies one function to many tasks; results come in the order of the tasks.

    Args:
        function: Of a module, so that a new process finds it.
        workers: Processes; 1 = this one.
    """

    def __init__(self, function: Callable[[_Task], _Result], workers: int) -> None:
        self._function = function
        self._most_waiting = _WAITING_EACH * workers
        self._waiting: deque[Future[_Result]] = deque()
        context = multiprocessing.get_context("spawn")
        self._pool = (
            ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(os.getpid(),)) if workers > 1 else None
        )

    def put(self, task: _Task) -> list[_Result]:
        """Hand on a task; gives the results that had to be waited for first, because enough is under way."""
        if self._pool is None:
            future: Future[_Result] = Future()
            future.set_result(self._function(task))
        else:
            future = self._pool.submit(partial(self._function, task))
        self._waiting.append(future)
        return [self._taken() for _ in range(len(self._waiting) - self._most_waiting)]

    def rest(self) -> Iterator[_Result]:
        """The results of all tasks that are left."""
        while self._waiting:
            yield self._taken()

    def _taken(self) -> _Result:
        try:
            return self._waiting.popleft().result()
        except BrokenProcessPool as problem:
            raise SetupError(
                "a process that scored answers was ended from outside", "see whether memory ran out: dmesg | tail"
            ) from problem

    def close(self) -> None:
        """End the processes; what has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

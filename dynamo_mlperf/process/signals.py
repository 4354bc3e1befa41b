"""Stop requests: a signal handler sets a flag, and the poll loop looks at it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ExitCode, Stopped

if TYPE_CHECKING:
    from types import FrameType

_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
    signal.SIGQUIT: ExitCode.TERMINATED,
}


def stopped_by(number: signal.Signals) -> Stopped:
    """The end that such a signal asks for, with the exit code that it stands for."""
    return Stopped(_CODES[number], f"stopped by {number.name}")


class StopFlag:
    """Counts stop requests; the first one says how the job ends, a second one asks for haste."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.times = 0

    def install(self) -> None:
        """Take over SIGINT, SIGTERM, SIGHUP and SIGQUIT."""
        for number in _CODES:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.times += 1
        if self.first is None:
            self.first = signal.Signals(number)

    def check(self) -> None:
        """Raise once a stop was asked for.

        Raises:
            Stopped: With the exit code that the signal stands for.
        """
        if self.first is not None:
            raise stopped_by(self.first)

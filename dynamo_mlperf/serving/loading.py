"""What people are shown while workers load: who is missing, and where to look once none has come for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.serving.log_tail import last_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.serving.readiness import Gate

QUIET_S = 20.0
"""After so long without a new worker people begin to wonder."""
READ_EVERY_S = 1.0
SHOWN_NAMES = 4


def shortened(names: Sequence[str]) -> str:
    """The first few names, for a line that changes often."""
    return ", ".join(names[:SHOWN_NAMES]) + (" ..." if len(names) > SHOWN_NAMES else "")


class Loading:
    """Remembers when the last worker came.

    Args:
        gate: Knows where each worker logs.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._missing = -1
        self._since_s = self._read_s = float("-inf")
        self._seen = ""

    def hint(self, missing: Sequence[str], now_s: float) -> str:
        """What stands behind the number of workers that have come, at this time of the monotonic clock.

        The end of the log comes first: a terminal's one line has no room for many names before it.
        """
        if not missing:
            return ""
        if len(missing) != self._missing:
            self._missing, self._since_s, self._read_s = len(missing), now_s, float("-inf")
        waiting = f", waiting for {shortened(missing)}"
        if now_s - self._since_s < QUIET_S:
            return waiting
        if now_s - self._read_s >= READ_EVERY_S:
            self._read_s, self._seen = now_s, self._end_of_log(missing[0])
        return f"; {self._seen}{waiting}"

    def _end_of_log(self, name: str) -> str:
        log = self._gate.supervisor.log_of(self._gate.endpoints.process_of(name))
        line = last_line(log)
        return f"{name}: {line} (log {log})" if line else f"{name} has written nothing to {log} yet"

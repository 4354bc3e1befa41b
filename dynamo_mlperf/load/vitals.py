"""What a client process notices of itself while it runs: CPU, memory, and how late its loop is.

Bytes that arrive while the loop is busy wait until it is done, so the lateness of a timer is the lateness with which
a first token may have been seen.
"""

from __future__ import annotations

import math
import resource
import time
from array import array
from pathlib import Path
from typing import Any

TICK_S = 0.05
"""How often the loop's lateness is sampled, and late requests are looked for; its timers are whole milliseconds."""

_WINDOW_NS = 1_000_000_000
_BUSY_SHARE = 0.9
_STATUS = Path("/proc/self/status")


def cpu_s() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def private_mb(status: Path = _STATUS) -> float:
    """Resident memory that no other process shares, in MB; 0 where the kernel does not say.

    The mapped request bodies are shared between all client processes and are not in it.
    """
    try:
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        return 0.0
    return 0.0


class Vitals:
    """Sampled by the loop's timer every `TICK_S`; `start` when the clock is about to start."""

    def __init__(self) -> None:
        self._lags_ns = array("q")
        self._due_ns = 0
        self._window_began_ns = 0
        self._window_cpu_s = 0.0
        self._cpu_before_s = 0.0
        self._busiest = 0.0
        self._busy_windows = 0
        self._windows = 0
        self._peak_mb = 0.0

    def start(self) -> None:
        """Count from here."""
        now_ns = time.monotonic_ns()
        self._cpu_before_s = self._window_cpu_s = cpu_s()
        self._window_began_ns = now_ns
        self._due_ns = now_ns + int(TICK_S * 1e9)
        self._peak_mb = private_mb()

    def tick(self) -> None:
        """One sample; the next is due `TICK_S` from now."""
        now_ns = time.monotonic_ns()
        self._lags_ns.append(max(0, now_ns - self._due_ns))
        self._due_ns = now_ns + int(TICK_S * 1e9)
        if now_ns - self._window_began_ns >= _WINDOW_NS:
            self._close_window(now_ns)

    def _close_window(self, now_ns: int) -> None:
        used_s = cpu_s()
        share = (used_s - self._window_cpu_s) / ((now_ns - self._window_began_ns) / 1e9)
        self._busiest = max(self._busiest, share)
        self._busy_windows += share > _BUSY_SHARE
        self._windows += 1
        self._window_cpu_s, self._window_began_ns = used_s, now_ns
        self._peak_mb = max(self._peak_mb, private_mb())

    def account(self) -> dict[str, Any]:
        """`cpu_s`, `busiest_share` and `busy_share` (of seconds), `private_mb` at its peak, `loop_lag_ms`."""
        lags = sorted(self._lags_ns)  # without numpy, which is most of a client process's memory where it is loaded
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        lag = {
            name: round(lags[max(0, math.ceil(len(lags) * share) - 1)] / 1e6, 3) if lags else None
            for name, share in shares.items()
        }
        return {
            "cpu_s": round(cpu_s() - self._cpu_before_s, 3),
            "busiest_share": round(self._busiest, 3),
            "busy_share": round(self._busy_windows / self._windows, 3) if self._windows else 0.0,
            "private_mb": round(max(self._peak_mb, private_mb()), 1),
            "loop_lag_ms": lag,
        }

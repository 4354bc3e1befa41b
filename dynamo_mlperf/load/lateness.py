"""How late a client was: with the issue of its queries by the schedule, and with telling LoadGen of their ends.

The rules' latencies begin with the schedule. What is late here is neither the system's nor its network's: a client that
was held up measured its own machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.load.over_limit import LOGGED_SHARES
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.load.logs import LoadgenLog
    from dynamo_mlperf.load.queries import Times
    from dynamo_mlperf.load.settings import LoadSettings

LATE_SHARE = 0.01
LATE_LEAST_MS = 5.0
"""How late a client may be, of the limit and at least: below this two clocks are one."""

LOADGEN_HELD_UP = "LoadGen's process was held up: give it cores of its own (head: dedicated), look for swapping"
"""What to do about LoadGen being late."""

_SHOWN = {"p50": 50, "p99": 99, "max": 100}


def tolerance_ms(limit_ms: float) -> float:
    """How late is in time where this is the limit."""
    return max(LATE_SHARE * limit_ms, LATE_LEAST_MS)


def from_least(late_ms: Times) -> Times:
    """The same where the start of the schedule is not on record: the query that was least late counts as in time."""
    found: Times = late_ms - late_ms.min()
    return found


def issued_in_time(late_ms: Times | None, settings: LoadSettings, action: str) -> list[Reason]:
    """The client did not fall behind its schedule.

    Args:
        late_ms: How late each query was issued; None where that is not known, or there is no schedule.
        settings: The settings of the test.
        action: What to do about it.
    """
    limits = [limit for name, limit in settings.limits_ms.items() if name != "tpot"]
    if late_ms is None or not limits:
        return []
    most_ms = tolerance_ms(min(limits))
    p99_ms = float(np.percentile(late_ms, 99))
    if p99_ms <= most_ms:
        return []
    wanted = f"samples issued within {most_ms:g} ms of their schedule (p99)"
    return [Reason("client-limited", wanted, f"{p99_ms:.1f} ms", action)]


def as_account(late_ms: Times | None) -> dict[str, float]:
    """The same for people: milliseconds at p50, p99 and at most; empty where it is not known."""
    if late_ms is None:
        return {}
    return {name: round(float(np.percentile(late_ms, share)), 3) for name, share in _SHOWN.items()}


def logged_percentile_ms(log: LoadgenLog, share: float) -> float | None:
    """An end-to-end percentile as LoadGen logs it, in milliseconds from the scheduled time; None where it does not."""
    value = log.values.get(f"result_{share * 100:.2f}_percentile_latency_ns")
    return None if value is None else float(value) / 1e6


def told_in_time(log: LoadgenLog, own_ms: Mapping[float, float], settings: LoadSettings) -> list[Reason]:
    """LoadGen was told of ends as they came: its latencies and the client's own agree, where the former are judged.

    Args:
        log: What LoadGen logged.
        own_ms: End-to-end percentiles by the client's clock, by share, from the schedule or (unknown) from the issue.
        settings: The settings of the test.
    """
    limit_ms = settings.limits_ms.get("end_to_end")
    if limit_ms is None or settings.scenario == "Offline":
        return []
    logged = {share: logged_percentile_ms(log, share) for share in LOGGED_SHARES}
    later = {share: ms - own_ms[share] for share, ms in logged.items() if ms is not None and share in own_ms}
    share = max(later, key=lambda share: later[share], default=0.0)
    if later.get(share, 0.0) <= tolerance_ms(limit_ms):
        return []
    wanted = f"latencies of LoadGen within {tolerance_ms(limit_ms):g} ms of the client's"
    got = f"p{share * 100:g} {own_ms[share] + later[share]:.1f} ms by LoadGen, {own_ms[share]:.1f} ms by the client"
    return [Reason("client-limited", wanted, got, LOADGEN_HELD_UP)]

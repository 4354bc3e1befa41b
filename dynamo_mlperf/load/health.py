"""Whether the client itself was fast enough for its measurement to count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.load.settings import LoadSettings

DELAY_SHARE = 0.01
"""Largest p99 issue delay, as a share of the latency limit."""

LAG_SHARE = 0.05
"""Largest p99 lateness of a client process's loop, as a share of the latency limit: it bounds how late a first token
may have been seen, and makes a result worse, never better."""

BUSY_SHARE = 0.9
"""A client process that used this share of a core or more was saturated."""

BUSY_SECONDS_SHARE = 0.05
"""Largest share of the seconds of a run in which a client process may be saturated, where latencies are judged."""

_SHORT_S = 1.0
"""Below this duration a CPU share says nothing."""

_REMEDY = "raise client_workers, or give the client cores of its own (head: dedicated)"


def client_limit(client: Mapping[str, Any], settings: LoadSettings) -> str | None:
    """Why the client limited the run, with a remedy; None when it did not.

    Args:
        client: The client's account (`client.json`).
        settings: The settings of the test.
    """
    limits = [limit for name, limit in settings.limits_ms.items() if name != "tpot"]
    limit_ms = min(limits, default=None)
    delay_ms = client["issue_delay_ms"]["p99"]
    if limit_ms is not None and delay_ms is not None and delay_ms > DELAY_SHARE * limit_ms:
        return f"issue delay p99 {delay_ms:.1f} ms is over {DELAY_SHARE:.0%} of the {limit_ms:g} ms limit: {_REMEDY}"
    if client["wall_s"] < _SHORT_S:
        return None
    for process in client["processes"]:
        if process["role"] == "http" and (text := _process_limit(process, client["wall_s"], limit_ms)):
            return text
    return None


def _process_limit(process: Mapping[str, Any], wall_s: float, limit_ms: float | None) -> str | None:
    if process["cpu_s"] > BUSY_SHARE * wall_s:
        return f"{process['name']} used {process['cpu_s'] / wall_s:.0%} of a core: raise client_workers"
    if limit_ms is None:
        return None
    busy = process.get("busy_share", 0)
    if busy > BUSY_SECONDS_SHARE:
        return f"{process['name']} used over {BUSY_SHARE:.0%} of a core in {busy:.0%} of the run: raise client_workers"
    lag_ms = (process.get("loop_lag_ms") or {}).get("p99")
    if lag_ms is not None and lag_ms > LAG_SHARE * limit_ms:
        return (
            f"{process['name']} saw bytes up to {lag_ms:.1f} ms late (p99), over {LAG_SHARE:.0%} of the "
            f"{limit_ms:g} ms limit: {_REMEDY}"
        )
    return None

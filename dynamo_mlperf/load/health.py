"""Whether the client itself was fast enough for its measurement to count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.load.settings import LoadSettings

DELAY_SHARE = 0.01
"""Largest p99 issue delay, as a share of the latency limit."""

BUSY_SHARE = 0.9
"""A client process that used this share of a core or more was saturated."""

_SHORT_S = 1.0
"""Below this duration a CPU share says nothing."""


def client_limit(client: Mapping[str, Any], settings: LoadSettings) -> str | None:
    """Why the client limited the run, with a remedy; None when it did not.

    Args:
        client: The client's account (`client.json`).
        settings: The settings of the test.
    """
    limits = [limit for name, limit in settings.limits_ms.items() if name != "tpot"]
    delay_ms = client["issue_delay_ms"]["p99"]
    if limits and delay_ms is not None and delay_ms > DELAY_SHARE * min(limits):
        return (
            f"issue delay p99 {delay_ms:.1f} ms is over {DELAY_SHARE:.0%} of the {min(limits):g} ms limit: "
            "raise client_workers, or give the client cores of its own (head: dedicated)"
        )
    wall_s = client["wall_s"]
    for process in client["processes"]:
        if process["role"] == "http" and wall_s >= _SHORT_S and process["cpu_s"] > BUSY_SHARE * wall_s:
            return f"{process['name']} used {process['cpu_s'] / wall_s:.0%} of a core: raise client_workers"
    return None

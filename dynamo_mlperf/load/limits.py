"""What the operating system lets this client open, against what the run is planned to have in flight.

Checked before the clock starts: a limit that is met in the middle of a run looks like a failing server.
"""

from __future__ import annotations

import math
import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError

if TYPE_CHECKING:
    from dynamo_mlperf.load.spec import MeasureSpec

SPARE_DESCRIPTORS = 64
"""Of a client process: its files, its socket to LoadGen's process, the loop's own."""

_KERNEL = Path("/proc/sys/net")


@dataclass(frozen=True)
class Limits:
    """Planned and allowed.

    Attributes:
        planned_in_flight: Requests at a time, over all client processes.
        descriptors: Open files that one process may have, at most (the hard limit).
        ports: Local ports for connections to one frontend; None where the kernel does not say.
        somaxconn: Connections that a listening socket of this machine lets wait; None where the kernel does not say.
    """

    planned_in_flight: int
    descriptors: int
    ports: int | None
    somaxconn: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def planned_in_flight(spec: MeasureSpec) -> int:
    """Requests in flight when the run just meets its limits, from Little's law; in Offline the bound itself.

    Where TTFT and TPOT are judged an answer may take longer than its first token's limit; how long depends on its
    tokens, which only the run tells. So this counts one second of further tokens: what is refused for it would not
    have begun.
    """
    settings = spec.settings
    if settings.loadgen_scenario == "Offline":
        return min(settings.max_in_flight * spec.client_workers, settings.dataset_samples)
    limit_ms = settings.target_latency_ms or (settings.ttft_ms or 0) + 1000
    return min(max(1, math.ceil(settings.target_qps * limit_ms / 1000)), _queries(spec))


def _queries(spec: MeasureSpec) -> int:
    settings = spec.settings
    expected = math.ceil(settings.target_qps * settings.min_duration_ms / 1000)
    return max(expected, settings.min_query_count, settings.performance_sample_count)


def read_limits(spec: MeasureSpec, kernel: Path = _KERNEL) -> Limits:
    """The limits in force here."""
    ports = _numbers(kernel / "ipv4" / "ip_local_port_range")
    waiting = _numbers(kernel / "core" / "somaxconn")
    return Limits(
        planned_in_flight(spec),
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        ports[1] - ports[0] + 1 if len(ports) > 1 else None,
        waiting[0] if waiting else None,
    )


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def check_limits(spec: MeasureSpec, limits: Limits) -> None:
    """Refuse a run that the operating system would cut short.

    Raises:
        MeasureError: Too few descriptors per client process, or too few local ports per frontend.
    """
    planned = limits.planned_in_flight
    each = math.ceil(planned / spec.client_workers) + SPARE_DESCRIPTORS
    if limits.descriptors not in (resource.RLIM_INFINITY, -1) and each > limits.descriptors:
        workers = math.ceil(planned / max(1, limits.descriptors - SPARE_DESCRIPTORS))
        raise MeasureError(
            f"{planned} requests in flight over {spec.client_workers} client processes need {each} open files each, "
            f"and the limit is {limits.descriptors}",
            f"raise the hard limit (ulimit -Hn {each}), or use {workers} client processes",
        )
    per_frontend = math.ceil(planned / len(spec.frontends))
    if limits.ports is not None and per_frontend > limits.ports:
        needed = math.ceil(planned / limits.ports)
        raise MeasureError(
            f"{planned} requests in flight need {per_frontend} local ports for each of {len(spec.frontends)} "
            f"frontends, and there are {limits.ports}",
            f"use {needed} frontends, or widen net.ipv4.ip_local_port_range",
        )

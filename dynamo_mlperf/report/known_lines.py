"""Lines in logs that look like faults and are none: what Dynamo and etcd say at every stop, and why.

Dynamo 1.6.1 and etcd 3.6 have no switch for them that would not hide real faults of the same parts too, so the lines
stay, and readers are told which they are. Most count as harmless only once the process had been asked to end.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_UTC = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z")
_LOCAL = re.compile(r"\b(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d)\b")
_WHOLE_S = 1.0
"""A time without a fraction may lie this long after what it says."""


@dataclass(frozen=True)
class KnownLine:
    """One kind of line.

    Attributes:
        mark: What such a line holds.
        why: Why it is harmless.
        at_stop: Whether it is so only once its process had been asked to end.
    """

    mark: str
    why: str
    at_stop: bool = True


_FRONTEND = "a frontend that stops closes its own lists of models and workers"
_WORKER = "a worker that stops ends its own endpoints"
_STORE_FIRST = "a worker that stops finds the job's store gone, as where Slurm ends all steps at once"
KNOWN: tuple[KnownLine, ...] = (
    KnownLine("monitor_instance_source: The Sender is dropped: channel closed", _FRONTEND),
    KnownLine("Model discovery stream ended; retaining committed serving state", _FRONTEND),
    KnownLine("worker_monitor: runtime-config watch closed", _FRONTEND),
    KnownLine("Instance removal watcher stream ended; reconnecting", _FRONTEND),
    KnownLine("Failed to start instance removal watcher (will retry)", _FRONTEND),
    KnownLine("Endpoint service completed unexpectedly for endpoint", _WORKER),
    KnownLine("Unable to unregister endpoint instance from discovery", _STORE_FIRST),
    KnownLine("Failed to unregister endpoint from discovery", _STORE_FIRST),
    KnownLine("grpc: addrConn.createTransport failed to connect", "etcd that stops loses its connection to itself"),
    KnownLine(
        "simple token is not cryptographically signed",
        "etcd says so at every start; no user logs in to the job's own store",
        at_stop=False,
    ),
    KnownLine(
        "backend_instance_id provided but no token_data; tokenizing prompt",
        "readiness asks each worker by name, and the frontend tokenizes its prompts as all others",
        at_stop=False,
    ),
)


def looks_known(line: str) -> bool:
    """Whether a line may be harmless, by its words alone."""
    return any(known.mark in line for known in KNOWN)


def stop_time(events: Iterable[Mapping[str, Any]], process: str) -> float | None:
    """When the process was asked to end, in seconds since the epoch; None where it was not."""
    for event in events:
        kind, when = event.get("event"), event.get("t")
        own = kind == "process_stopped" and event.get("process") == process
        if isinstance(when, int | float) and (own or (kind == "phase_begin" and event.get("phase") == "stop")):
            return float(when)
    return None


def harmless_lines(lines: Iterable[str], stopped_t: float | None) -> dict[str, int]:
    """How many of the lines of a log are harmless, by why.

    Args:
        lines: All of it, or some.
        stopped_t: When its process was asked to end; None where it was not.
    """
    found: dict[str, int] = {}
    for line in lines:
        known = next((one for one in KNOWN if one.mark in line), None)
        if known is not None and (not known.at_stop or _is_after(line, stopped_t)):
            found[known.why] = found.get(known.why, 0) + 1
    return found


def _is_after(line: str, stopped_t: float | None) -> bool:
    """Whether a line was written after that time; False where either is not known."""
    if stopped_t is None:
        return False
    if (utc := _UTC.search(line)) is not None:
        return timegm(time.strptime(utc[1], "%Y-%m-%dT%H:%M:%S")) + float(utc[2] or 0) >= stopped_t
    if (local := _LOCAL.search(line)) is not None:
        return time.mktime(time.strptime(local[1], "%Y/%m/%d %H:%M:%S")) + _WHOLE_S >= stopped_t
    return False

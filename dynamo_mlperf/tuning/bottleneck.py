"""Which role limits a split, from what the engines counted while it was loaded. Frozen values; no clock, no files.

Time per request in each role, in calm and in busy stretches: the role whose time grows is the one where requests pile
up. A role that waits for its partner does not slow down: it starves. Source of the counters: `serving/counters.py` and
`serving/gauges.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_SERVED = 3
"""Requests that end in a stretch before its mean says something."""
LEAST_STRETCHES = 4
ENDS = 0.2
"""Share of the stretches, by time per request, that are taken for the calm ones, and for the busy ones."""
LEAST_GROWTH = 0.1
"""Growth below this share of a request's whole calm time is noise: nothing limits yet."""
CLEAR = 0.7
"""From this share of the growth on, at the rate that holds, a role bounds other splits."""


@dataclass(frozen=True)
class RolePressure:
    """What the workers of one role held and had served at one moment, summed over them.

    Attributes:
        workers: Workers that told.
        served: Requests that ended since their start.
        served_ms: Time that those took, in ms.
        in_flight: Requests at them.
        waiting: Of those, requests that wait in the engine.
        kv_share: Mean share of KV cache in use, of 1.
    """

    workers: int
    served: int
    served_ms: float
    in_flight: float = 0.0
    waiting: float = 0.0
    kv_share: float = 0.0


@dataclass(frozen=True)
class Pressure:
    """One reading: seconds since the epoch, and each role's."""

    t: float
    roles: Mapping[str, RolePressure]


@dataclass(frozen=True)
class RoleLoad:
    """How one role bore the load.

    Attributes:
        calm_ms: Time per request in calm stretches, in ms.
        busy_ms: The same in busy ones.
        waiting: Most requests that waited in its engines at once.
        in_flight: Most requests that were at its workers at once.
        kv_share: Largest mean share of KV cache in use.
    """

    calm_ms: float
    busy_ms: float
    waiting: float
    in_flight: float
    kv_share: float


@dataclass(frozen=True)
class Bottleneck:
    """The limiting role and what says so.

    Attributes:
        role: The role; None where the readings do not tell.
        share: Its part of the growth of the time per request, 0 to 1.
        loads: By role.
        held_share: The same in the run at the rate that holds: beyond that rate the limiting role's time grows without
            end, and its share with it. 0 where the readings do not tell.
    """

    role: str | None
    share: float = 0.0
    loads: Mapping[str, RoleLoad] = field(default_factory=dict)
    held_share: float = 0.0

    def text(self) -> str:
        """For people."""
        if self.role is None:
            return "no role slowed down clearly" if self.loads else "too few requests to tell"
        told = []
        for name in sorted(self.loads, key=lambda name: name != self.role):
            load = self.loads[name]
            queue = f", up to {load.waiting:.0f} waiting" if load.waiting >= 1 else ""
            told.append(f"{name} {load.calm_ms:.0f} to {load.busy_ms:.0f} ms a request{queue}")
        return "; ".join(told)

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "role": self.role,
            "share": round(self.share, 3),
            "held_share": round(self.held_share, 3),
            "text": self.text(),
            "roles": {
                name: {
                    "calm_ms": round(load.calm_ms, 1),
                    "busy_ms": round(load.busy_ms, 1),
                    "waiting_max": load.waiting,
                    "in_flight_max": load.in_flight,
                    "kv_share_max": round(load.kv_share, 4),
                }
                for name, load in self.loads.items()
            },
        }


def find_bottleneck(readings: Sequence[Pressure], held: tuple[float, float] | None = None) -> Bottleneck:
    """The role that limits, from readings over the whole search of a split; the order is that of time.

    Args:
        readings: All of them.
        held: Begin and end of the run at the rate that holds, in seconds since the epoch; None without one.
    """
    names = sorted({name for reading in readings for name in reading.roles})
    loads = {name: load for name in names if (load := _load(name, readings)) is not None}
    if len(loads) < len(names) or not names:
        return Bottleneck(None)
    if len(names) == 1:
        return Bottleneck(names[0], 1.0, loads, 1.0)
    role, share = _grown({name: load.busy_ms for name, load in loads.items()}, loads)
    if role is None or held is None:
        return Bottleneck(role, share, loads)
    within = [reading for reading in readings if held[0] <= reading.t <= held[1]]
    busy = {name: load.busy_ms for name in names if (load := _load(name, within)) is not None}
    limiting, held_share = _grown(busy, loads) if len(busy) == len(names) else (None, 0.0)
    return Bottleneck(role, share, loads, held_share if limiting == role else 0.0)


def _grown(busy_ms: Mapping[str, float], loads: Mapping[str, RoleLoad]) -> tuple[str | None, float]:
    """The role whose time per request has grown most since calm, and its share of all growth; None for noise."""
    grown = {name: max(0.0, each - loads[name].calm_ms) for name, each in busy_ms.items()}
    total = sum(grown.values())
    if total <= LEAST_GROWTH * sum(load.calm_ms for load in loads.values()):
        return None, 0.0
    role = max(grown, key=lambda name: grown[name])
    return role, grown[role] / total


def _load(name: str, readings: Sequence[Pressure]) -> RoleLoad | None:
    told = [reading.roles[name] for reading in readings if name in reading.roles]
    times = sorted(_times(told))
    if len(times) < LEAST_STRETCHES:
        return None
    cut = max(1, int(ENDS * len(times)))
    return RoleLoad(
        calm_ms=mean(times[:cut]),
        busy_ms=mean(times[-cut:]),
        waiting=max(one.waiting for one in told),
        in_flight=max(one.in_flight for one in told),
        kv_share=max(one.kv_share for one in told),
    )


def _times(told: Sequence[RolePressure]) -> list[float]:
    """Time per request in ms of each stretch in which enough of them ended; counters that began anew end one."""
    times: list[float] = []
    served, served_ms = 0, 0.0
    for before, after in pairwise(told):
        if after.served < before.served or after.workers != before.workers:
            served, served_ms = 0, 0.0
            continue
        served, served_ms = served + after.served - before.served, served_ms + after.served_ms - before.served_ms
        if served >= LEAST_SERVED:
            times.append(served_ms / served)
            served, served_ms = 0, 0.0
    return times

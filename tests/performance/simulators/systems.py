"""Simulated systems: a prefill pool and a decode pool with limits, noise, drift and warm-up, as data.

Four sets: `TUNING` (the search's constants were chosen on them), `HELD_OUT` (kept from that), `OTHER` (of kinds that
neither of them has) and `PADDED` (runs that go on to whole data sets). Each is drawn from its own seed, so none is a copy
of another. `fresh(seed)` draws as many new ones as wanted, which nothing was chosen on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class System:
    """One simulated system.

    Attributes:
        name: Unique; says what kind it is.
        exact: Simulated request by request; else in time steps (for rates where requests are too many).
        servers: Prefill servers.
        prefill_s: Mean prefill time in seconds.
        prefill_spread: Sigma of the lognormal prefill time.
        slots: Decode slots of all decode workers together.
        tokens: Mean output tokens.
        tpot_s: Time per output token of an empty decode pool, in seconds.
        tpot_slope: How much slower a full pool decodes: tpot x (1 + slope x occupancy / slots).
        tail: Sigma of the lognormal factor on a request's latency.
        limits: Constraint -> limit in seconds; `ttft`, `tpot` or `latency`.
        run_sigma: Sigma of the factor on the speed of a whole run.
        drift_per_h: Share of the speed lost per hour.
        warm_s: Time constant of the warm-up at the start of each run, in seconds; 0 = none.
        warm_loss: Share of the speed that is missing at the very start.
        stalls_per_h: Short stalls (5 s at 60 % of the speed) per hour.
        burst: Sigma of the slowly varying factor on the arrival rate.
        data_set: A full run is padded to whole multiples of this many queries, as LoadGen's is; 1 = it is not.
    """

    name: str
    exact: bool
    servers: int
    prefill_s: float
    prefill_spread: float
    slots: int
    tokens: float
    tpot_s: float
    tpot_slope: float
    tail: float
    limits: dict[str, float] = field(hash=False)
    run_sigma: float = 0.005
    drift_per_h: float = 0.0
    warm_s: float = 0.0
    warm_loss: float = 0.0
    stalls_per_h: float = 0.0
    burst: float = 0.0
    data_set: int = 1

    @property
    def capacity(self) -> float:
        """Requests per second that neither pool can exceed."""
        full_tpot = self.tpot_s * (1.0 + self.tpot_slope)
        return min(self.servers / self.prefill_s, self.slots / (self.tokens * full_tpot))

    @property
    def base_latency_s(self) -> float:
        """Latency of a lone request in seconds."""
        return self.prefill_s + self.tokens * self.tpot_s


_EXACT_BELOW = 24.0
"""Queries per second below which a padded system is simulated request by request."""
KINDS = ("latency", "ttft", "tpot", "both", "noisy", "drifting", "cold", "stalling", "heavy", "bursty")


def _draw(rng: np.random.Generator, kind: str, rate: float, *, exact: bool, name: str) -> System:
    """One system of a kind whose capacity is near `rate`."""
    servers = max(1, round(rate * rng.uniform(0.1, 0.5))) if exact else max(2, round(rate * rng.uniform(0.05, 0.3)))
    prefill_s = servers / rate
    tokens, slope = float(rng.integers(40, 200)), float(rng.uniform(0.5, 3.0))
    slots = max(4, round(rate * rng.uniform(0.6, 2.0)))
    tpot_s = slots * rng.uniform(0.7, 1.0) / (rate * rng.uniform(1.0, 1.3) * tokens * (1.0 + slope))
    base = prefill_s + tokens * tpot_s
    limits = {"latency": base * float(rng.uniform(3.0, 10.0))}
    if kind in {"ttft", "heavy"}:
        room = 3.0 if kind == "heavy" else 1.0  # lone requests of a heavy tail must keep the limit
        limits = {"ttft": prefill_s * room * float(rng.uniform(4.0, 12.0))}
    if kind == "tpot":
        limits = {"tpot": tpot_s * (1.0 + slope * float(rng.uniform(0.5, 0.9)))}
    if kind == "both":
        limits = {"ttft": prefill_s * float(rng.uniform(4.0, 10.0)), "tpot": tpot_s * (1.0 + slope * 0.9)}
    return System(
        name,
        exact,
        servers,
        prefill_s,
        float(rng.uniform(0.7, 1.0)) if kind == "heavy" else float(rng.uniform(0.1, 0.5)),
        slots,
        tokens,
        tpot_s,
        slope,
        0.05 if kind in {"tpot", "both"} else float(rng.uniform(0.1, 0.3)),
        limits,
        run_sigma=float(rng.uniform(0.01, 0.02)) if kind == "noisy" else float(rng.uniform(0.002, 0.006)),
        drift_per_h=float(rng.uniform(0.01, 0.03)) if kind == "drifting" else 0.0,
        warm_s=float(rng.uniform(5.0, 20.0)) if kind == "cold" else 0.0,
        warm_loss=float(rng.uniform(0.05, 0.15)) if kind == "cold" else 0.0,
        stalls_per_h=float(rng.uniform(6.0, 30.0)) if kind == "stalling" else 0.0,
        burst=float(rng.uniform(0.02, 0.06)) if kind == "bursty" else 0.0,
    )


def _set(label: str, seed: int) -> tuple[System, ...]:
    """Twenty-two systems with an answer (2 to 2,000 QPS, every kind twice, two tiny) and two without."""
    rng = np.random.default_rng(seed)
    systems = []
    for turn, exact in enumerate((True, False)):
        for kind in KINDS:
            rate = float(np.exp(rng.uniform(np.log(4), np.log(24)) if exact else rng.uniform(np.log(30), np.log(2000))))
            systems.append(_draw(rng, kind, rate, exact=exact, name=f"{label}-{kind}-{turn}"))
    systems.extend(_draw(rng, kind, 2.5, exact=True, name=f"{label}-tiny-{kind}") for kind in ("latency", "ttft"))
    return tuple(systems)


def _without_answer(label: str, seed: int) -> tuple[System, ...]:
    """A limit below the time of a lone request; and a system too slow for enough queries in a full run."""
    rng = np.random.default_rng(seed)
    lone = _draw(rng, "latency", 50.0, exact=False, name=f"{label}-impossible")
    slow = _draw(rng, "latency", 0.6, exact=True, name=f"{label}-too-slow")
    return (System(**{**vars(lone), "limits": {"latency": lone.base_latency_s * 0.6}}), slow)


OTHER_KINDS = ("tight", "loose", "long", "alone", "mixed", "three", "noisy-drift", "cold-bursts", "stalls-tail", "flat")


def _draw_other(rng: np.random.Generator, kind: str, rate: float, *, exact: bool, name: str) -> System:
    """One system of a kind that the other sets do not have.

    Limits close to a lone request's time or far from it, requests of many seconds, very few servers, two and three
    limits at once, two disturbances at once, and shares over a limit that hardly rise with the rate.
    """
    servers = max(1, round(rate * rng.uniform(0.02, 0.6)))
    if kind == "alone":
        servers = 1 if exact else 2
    prefill_s = servers / rate
    tokens, slope = float(rng.integers(20, 400)), float(rng.uniform(0.3, 4.0))
    slots = max(4, round(rate * (rng.uniform(4.0, 10.0) if kind == "long" else rng.uniform(0.4, 3.0))))
    tpot_s = slots / (rate * rng.uniform(0.95, 1.5) * tokens * (1.0 + slope))
    tail = float(rng.uniform(0.12, 0.35))
    base = (prefill_s + tokens * tpot_s) * float(np.exp(2.5 * tail))
    limits = {"latency": base * float(rng.uniform(2.0, 6.0))}
    if kind == "tight":
        limits = {"latency": base * float(rng.uniform(1.3, 1.9))}
    if kind in {"loose", "alone"}:
        limits = {"latency": base * float(rng.uniform(8.0, 25.0))}
    if kind in {"mixed", "three", "stalls-tail"}:
        limits = {"ttft": prefill_s * float(rng.uniform(8.0, 25.0)), **limits}
    if kind in {"three", "flat"}:
        tail = 0.05 if kind == "three" else float(rng.uniform(0.1, 0.2))
        loaded = 1.0 + slope * float(rng.uniform(0.5, 0.95))
        limits["tpot"] = tpot_s * loaded * float(np.exp(2.5 * tail))
    if kind == "flat":
        limits.pop("latency")
    return System(
        name,
        exact,
        servers,
        prefill_s,
        float(rng.uniform(0.6, 0.9)) if kind == "stalls-tail" else float(rng.uniform(0.1, 0.6)),
        slots,
        tokens,
        tpot_s,
        slope,
        tail,
        limits,
        run_sigma=float(rng.uniform(0.008, 0.016)) if kind == "noisy-drift" else float(rng.uniform(0.001, 0.007)),
        drift_per_h=float(rng.uniform(-0.015, 0.025)) if kind == "noisy-drift" else 0.0,
        warm_s=float(rng.uniform(8.0, 30.0)) if kind == "cold-bursts" else 0.0,
        warm_loss=float(rng.uniform(0.03, 0.12)) if kind == "cold-bursts" else 0.0,
        stalls_per_h=float(rng.uniform(4.0, 20.0)) if kind == "stalls-tail" else 0.0,
        burst=float(rng.uniform(0.01, 0.05)) if kind == "cold-bursts" else 0.0,
    )


def _other_set(label: str, seed: int) -> tuple[System, ...]:
    """Twenty-four systems: every kind by requests and by time steps, two small ones, two of thousands per second."""
    rng = np.random.default_rng(seed)
    systems = []
    for turn, (low, high) in enumerate(((5.0, 30.0), (25.0, 1500.0))):
        for kind in OTHER_KINDS:
            rate = float(np.exp(rng.uniform(np.log(low), np.log(high))))
            systems.append(_draw_other(rng, kind, rate, exact=not turn, name=f"{label}-{kind}-{turn}"))
    systems.extend(_draw_other(rng, kind, 3.5, exact=True, name=f"{label}-tiny-{kind}") for kind in ("loose", "mixed"))
    systems.extend(
        _draw_other(rng, kind, 4000.0, exact=False, name=f"{label}-huge-{kind}") for kind in ("tight", "three")
    )
    return tuple(systems)


PADDED_RATES = (
    *((48_289, rate) for rate in (45.0, 62.0, 90.0, 130.0, 210.0, 480.0, 1_150.0)),
    *((8_000, rate) for rate in (4.4, 17.0, 31.0, 44.0, 105.0, 360.0)),
    *((24_576, rate) for rate in (33.0, 250.0, 2_200.0)),
)
"""Data set and capacity in queries per second: Qwen3-VL's two, 4 to 72 GPUs, and Llama-2-70B's; runs of 1 to 54 data
sets, of 600 to 2,900 s."""


def _padded_set(label: str, seed: int) -> tuple[System, ...]:
    """Sixteen systems whose runs are padded; the kinds of the first sets by turns, each with a limit that binds."""
    systems = []
    for turn, (data_set, rate) in enumerate(PADDED_RATES):
        rng, kind = np.random.default_rng([seed, turn]), KINDS[turn % len(KINDS)]
        name, exact = f"{label}-{data_set}-{rate:g}-{kind}", rate < _EXACT_BELOW
        drawn = _draw(rng, kind, rate, exact=exact, name=name)
        while not _binds(drawn):
            drawn = _draw(rng, kind, rate, exact=exact, name=name)
        systems.append(replace(drawn, data_set=data_set))
    return tuple(systems)


def _binds(system: System) -> bool:
    """Whether a limit is reached when the prefill pool passes on all that it can: one on TPOT alone may never be."""
    if system.limits.keys() != {"tpot"}:
        return True
    empty = system.servers / system.prefill_s * system.tokens * system.tpot_s / system.slots
    crowding = empty * system.tpot_slope
    full = 1.0 if crowding >= 1.0 else min(empty / (1.0 - crowding), 1.0)
    return system.limits["tpot"] < 0.95 * system.tpot_s * (1.0 + system.tpot_slope * full)


def fresh(seed: int) -> tuple[System, ...]:
    """Sixty-two new systems of all the kinds: 22 as in the first sets, 24 as in the third, 16 padded."""
    label = f"fresh-{seed}"
    return (*_set(label, seed), *_other_set(f"{label}-other", seed), *_padded_set(f"{label}-padded", seed))


TUNING = _set("tuning", 20261)
HELD_OUT = _set("held-out", 914)
OTHER = _other_set("other", 77041)
PADDED = _padded_set("padded", 48_289)
TUNING_WITHOUT = _without_answer("tuning", 20262)
HELD_OUT_WITHOUT = _without_answer("held-out", 915)

"""Rehearsals: the rate of each split, the constraint that binds and the role that runs out, all by simulation.

Simulated runs are cheap and repeat themselves, so the search is plain: a saturated run bounds the rate from above, and
the highest rate that passes by the benchmark's limits and early-stopping rule is located between. The bottleneck is
the role of which one more worker would help most just above that rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.tuning.prediction import SplitPrediction
from dynamo_mlperf.tuning.simulation import MIN_ARRIVALS_S, MIN_REQUESTS, Cast

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.rehearsal_engines import EngineModel, Factors
    from dynamo_mlperf.tuning.simulation import Bar, Simulated, Simulator

_BRACKET = 0.04
"""A rate is interpolated once one that passes and one that fails are so close."""
_ROUGH, _LARGE = 0.15, 2.0
_FIRST, _FAR, _NEAR = 0.6, 1.6, 1.03
_LOWEST = 0.02
_INSIDE = 0.15
_MOST_RUNS = 18
_HELPS = 0.002
"""One more worker that changes the judged latency, or the capacity, by a smaller share does not help."""
_UNKNOWN_EXCESS, _MOST_EXCESS = 0.7, 1.0
THROUGHPUT = "throughput"
"""The binding constraint where the system ends as many as it can, within every limit."""


@dataclass(frozen=True, eq=False)
class System:
    """What all splits of a rehearsal share.

    Attributes:
        engines: By role.
        factors: Of the calibration; one everywhere without.
        bar: What a run is held to.
        router_mode: How requests find workers: `kv_router` or `round_robin`.
    """

    engines: Mapping[str, EngineModel]
    factors: Factors
    bar: Bar
    router_mode: str


@dataclass(frozen=True, eq=False)
class Scene:
    """A system ready to be simulated, with its engines as the replay takes them."""

    simulator: Simulator
    system: System
    configured: Mapping[str, Any]

    def run(self, workers: Mapping[str, int], rate: float, *, coarse: bool = False) -> Simulated:
        """A run at a rate."""
        overhead_ms = self.system.factors.overhead_ms
        return self.simulator.run(self.cast(workers), rate, self.system.bar, overhead_ms, coarse=coarse)

    def capacity(self, workers: Mapping[str, int]) -> float:
        """What these workers end per second when they never wait."""
        return self.simulator.capacity(self.cast(workers))

    def cast(self, workers: Mapping[str, int]) -> Cast:
        """So many workers of each role."""
        return Cast(self.configured, workers, self.system.router_mode)


def scene_of(simulator: Simulator, system: System) -> Scene:
    """The scene of a system; its calibrated profiles are written."""
    return Scene(simulator, system, simulator.configured(system.engines, system.factors))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A split to rehearse: its name, the topology with its workers, and its scene."""

    name: str
    topology: Topology
    scene: Scene


def rehearse_splits(candidates: list[Candidate], programs: int, tell: Callable[[str], None]) -> list[SplitPrediction]:
    """The prediction of each split, in no order; `programs` of them are simulated at a time.

    Raises:
        SetupError: The replay cannot simulate one.
    """
    found: list[SplitPrediction] = []
    with ThreadPoolExecutor(programs) as pool:
        running = [pool.submit(rehearse_split, each) for each in candidates]
        try:
            for done in as_completed(running):
                found.append(done.result())
                tell(f"rehearsed {len(found)} of {len(candidates)}: {_said(found[-1])}")
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            raise
    return found


def workers_by_role(split: Topology) -> dict[str, int]:
    """Its workers of each role."""
    return {name: role.workers for name, role in split.roles.present()}


def rehearse_split(candidate: Candidate) -> SplitPrediction:
    """The prediction of one split."""
    began_s = time.monotonic()
    split, scene = candidate.topology, candidate.scene
    workers = workers_by_role(split)
    top = scene.capacity(workers)
    limits = scene.system.bar.limits_ms
    knee = _highest(scene, workers, top) if limits else Knee(top, THROUGHPUT, None)
    return SplitPrediction(
        split=candidate.name,
        workers=workers,
        tensor_parallel={name: role.tensor_parallel for name, role in split.roles.present()},
        gpus=sum(role.workers * role.gpus for _name, role in split.roles.present()),
        rate_qps=knee.rate,
        binding=knee.binding,
        bottleneck=None if knee.rate is None else _bottleneck(scene, workers, knee, top),
        seconds=time.monotonic() - began_s,
    )


@dataclass(frozen=True, eq=False)
class Knee:
    """Where a split stops passing.

    Attributes:
        rate: The highest rate that passes; None where none does.
        binding: What fails first above it.
        failed: The run next above it; None where the system ends all that it can within every limit.
    """

    rate: float | None
    binding: str
    failed: Simulated | None


def _highest(scene: Scene, workers: Mapping[str, int], top: float) -> Knee:
    """The highest rate that passes, and what fails first above it.

    A system that never waits ends `top` a second; in a run of finite length a little more can arrive without the last
    ones being late, but such a run is not stable, so `top` is the end of the range.
    """
    start, near = _FIRST * top, False
    if start * MIN_ARRIVALS_S > _LARGE * MIN_REQUESTS:  # a look with few requests is much cheaper, and tells where
        rough = _bracket(lambda rate: scene.run(workers, rate, coarse=True), start, top, _ROUGH)
        start, near = rough.crossing(top), rough.passed is not None
    found = _bracket(lambda rate: scene.run(workers, rate), start, top, _BRACKET, near=near)
    if found.passed is None:
        return Knee(None, found.failed.binding if found.failed else "", found.failed)
    if found.failed is None:
        return Knee(top, THROUGHPUT, None)
    return Knee(found.crossing(top), found.failed.binding, found.failed)


@dataclass(frozen=True, eq=False)
class _Bracket:
    """The highest run that passed and the lowest that failed; None where there is none."""

    passed: Simulated | None
    failed: Simulated | None

    def crossing(self, top: float) -> float:
        """Where the rates cross the limit between them; the lowest rate looked at where none passed."""
        if self.passed is None:
            return self.failed.rate if self.failed else top
        return _between(self.passed, self.failed, top, 0.0)


def _bracket(
    look: Callable[[float], Simulated], rate: float, top: float, width: float, *, near: bool = False
) -> _Bracket:
    """Runs until one that passes and one that fails are `width` apart; `near`: the first rate is a good guess."""
    passed: Simulated | None = None
    failed: Simulated | None = None
    step = _NEAR if near else _FAR
    for _ in range(_MOST_RUNS):
        here = look(rate)
        passed, failed = (here, failed) if here.excess <= 0.0 else (passed, here)
        if passed is None:
            if rate < _LOWEST * top:
                break
            rate /= step
        elif (failed.rate if failed else top) / passed.rate < 1.0 + width:
            break
        elif failed is None and near:
            rate = min(rate * step, top)
        else:
            rate = _between(passed, failed, top, _INSIDE)
        step = step if not near else step * step
    return _Bracket(passed, failed)


def _between(passed: Simulated, failed: Simulated | None, top: float, inside: float) -> float:
    """Where the excess crosses zero on a straight line in the logarithm of the rate, kept so far inside."""
    low, high = math.log(passed.rate), math.log(failed.rate if failed else top)
    above = min(failed.excess, _MOST_EXCESS) if failed else _UNKNOWN_EXCESS
    below = max(passed.excess, -_MOST_EXCESS)
    share = -below / (above - below)
    return math.exp(low + min(max(share, inside), 1.0 - inside) * (high - low))


def _bottleneck(scene: Scene, workers: Mapping[str, int], knee: Knee, top: float) -> str | None:
    """The role of which one more worker helps most just above the knee; None where neither does."""
    if len(workers) == 1:
        return next(iter(workers))
    gains: dict[str, float] = {}
    for role in workers:
        more = {**workers, role: workers[role] + 1}
        if knee.failed is None:
            gains[role] = math.log(scene.capacity(more) / top)
        else:
            gains[role] = knee.failed.excess - scene.run(more, knee.failed.rate).excess
    helping = {role: gain for role, gain in gains.items() if gain > _HELPS}  # two runs without an end tell nothing
    return max(helping, key=lambda role: helping[role]) if helping else None


def _said(split: SplitPrediction) -> str:
    if split.rate_qps is None:
        return f"{split.split} passes at no rate ({split.binding})"
    return f"{split.split} {split.rate_qps:.4g} queries/s, rehearsed"

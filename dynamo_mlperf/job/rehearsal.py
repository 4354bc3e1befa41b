"""Offline rehearsals put together: a topology file in, a prediction out; points in, fitted factors out."""

from __future__ import annotations

import math
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.request_lengths import request_lengths
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.topology.role_splits import RoleSplit, own_split, parse_split, with_split
from dynamo_mlperf.topology.spec import load_topology
from dynamo_mlperf.tuning.calibration import MOST_TRIES, Calibration, Point, Points, fit_factors, read_calibration
from dynamo_mlperf.tuning.own_lengths import OwnLengths
from dynamo_mlperf.tuning.prediction import Prediction, SplitPrediction, ranked
from dynamo_mlperf.tuning.profiles import shipped_benchmarks
from dynamo_mlperf.tuning.rehearsal import (
    Candidate,
    Scene,
    System,
    rehearse_split,
    rehearse_splits,
    scene_of,
    workers_by_role,
)
from dynamo_mlperf.tuning.rehearsal_engines import Factors, engines_of
from dynamo_mlperf.tuning.simulation import Bar, Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.rehearsal_engines import EngineModel
    from dynamo_mlperf.tuning.rehearsal_requests import Lengths

_ROUTERS = {"kv": "kv_router", "round-robin": "round_robin"}


@dataclass(frozen=True)
class Stage:
    """Where and with what a rehearsal runs.

    Attributes:
        base: What paths of topology files are relative to.
        python: The engines' Python.
        programs: Replays that run side by side.
        tell: Shows people what is done.
        chosen: Profile by role; see `engines_of`.
        check: Called before each simulated run; raises when people want to stop.
        seed: Which requests are drawn.
        own: Lengths that people give.
    """

    base: Path
    python: str
    programs: int
    tell: Callable[[str], None]
    chosen: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None
    seed: int = 0
    own: OwnLengths = field(default_factory=OwnLengths)


@dataclass(frozen=True)
class Compared:
    """A known point beside what the fitted factors predict.

    Attributes:
        point: The point.
        predicted: What is predicted of its split.
        latency: Predicted judged latency at the known rate, over its limit; None without limits, or where requests
            do not end. Where latency hardly rises with the rate, a small error of it is a large one of the rate.
    """

    point: Point
    predicted: SplitPrediction
    latency: float | None

    @property
    def error(self) -> float | None:
        """Predicted over known, less one; None where nothing is predicted, or a floor is kept."""
        rate = self.predicted.rate_qps
        if rate is None or (self.point.at_least and rate >= self.point.qps):
            return None
        return rate / self.point.qps - 1.0


def bar_of(topology: Topology) -> Bar:
    """What a full run of the topology's measurement is held to.

    Raises:
        ConfigError: Its reduction lowers nothing.
    """
    measure, reduced = topology.measure, topology.reduced
    rules = benchmark(measure.benchmark, measure.round)
    settings = build_settings(
        rules,
        measure.scenario,
        1.0,
        max(rules.performance_sample_count[measure.scenario], rules.offline_min_samples),
        reduction=reduced.reduction() if reduced else None,
        round_name=measure.round,
    )
    return Bar(
        settings.limits_ms,
        settings.percentile,
        settings.min_duration_ms / 1e3,
        settings.min_query_count,
        strict=measure.client == "endpoints",
    )


def default_calibration(topology: Topology, engines: Mapping[str, EngineModel]) -> Calibration | None:
    """The shipped factors of a benchmark; they belong to profiles of aiconfigurator's alone."""
    origins = {engine.profile.facts.get("origin") for engine in engines.values()}
    if origins != {"aiconfigurator"}:
        return None
    for path in sorted((shipped_benchmarks() / topology.measure.benchmark).glob("*.fitted.json")):
        return read_calibration(path)
    return None


def rehearse(
    topology: Topology, splits: list[RoleSplit], stage: Stage, calibration: Calibration | None, *, calibrated: bool
) -> Prediction:
    """Rehearse splits of a topology.

    Args:
        topology: The file.
        splits: Splits of it; TP per role may differ from the file's.
        stage: Where and with what.
        calibration: Factors to use; None = the shipped ones where they belong.
        calibrated: False to use no factors at all.

    Raises:
        ConfigError: No profile, or no lengths.
        SetupError: The replay does not run.
    """
    engines, notes = engines_of(topology, stage.base, stage.chosen)
    found = (calibration or default_calibration(topology, engines)) if calibrated else None
    lengths = replace(request_lengths(topology, stage.base, stage.own), seed=stage.seed)
    factors = found.factors if found else Factors()
    topologies = {split.name: with_split(topology, split) for split in splits}
    own_degrees = tuple(role.tensor_parallel for _role, role in topology.roles.present())
    with _simulator(stage, lengths, len(splits)) as simulator:
        scenes: dict[tuple[int, ...], Scene] = {}
        candidates = []
        for name, split in topologies.items():
            degrees = tuple(role.tensor_parallel for _role, role in split.roles.present())
            if degrees not in scenes:
                own, _notes = engines_of(split, stage.base, stage.chosen)
                scenes[degrees] = scene_of(simulator, _system(split, own, factors))
                if degrees != own_degrees:
                    used = ", ".join(f"{role} {each.profile.name}" for role, each in own.items())
                    notes += (f"{name}: with the profiles {used}",)
            candidates.append(Candidate(name, split, scenes[degrees]))
        predictions = rehearse_splits(candidates, stage.programs, stage.tell)
    drawn = f"; drawn with seed {stage.seed}" if stage.seed else ""
    notes += (f"router: {topology.frontends.router}", f"requests: {lengths.text()}{drawn}")
    if found is None:
        notes += ("not calibrated: the profiles were never compared with a measurement",)
    return Prediction(
        name=topology.name,
        benchmark=topology.measure.benchmark,
        scenario=topology.measure.scenario,
        granted_gpus=topology.worker_nodes * topology.nodes.gpus,
        splits=ranked(predictions),
        profiles={role: engine.as_json() for role, engine in engines.items()},
        calibration=found.as_json() if found else {},
        notes=notes,
    )


def calibrate(points: Points, stage: Stage) -> tuple[Calibration, list[Compared]]:
    """Fit the factors to a file's points, then predict all of them.

    Raises:
        ConfigError: A point's topology cannot be read, or has no profile.
        SetupError: The replay does not run.
    """
    systems = [_system_of(point, points, stage) for point in points.points]
    lengths = request_lengths(systems[0][0], stage.base, stage.own)
    with _simulator(stage, lengths, len(systems)) as simulator, ThreadPoolExecutor(stage.programs) as pool:
        tries, begun_s = 0, time.monotonic()

        def residuals(factors: Factors) -> list[float]:
            nonlocal tries
            took = f" ({(time.monotonic() - begun_s) / tries:.1f} s each so far)" if tries else ""
            tries += 1
            stage.tell(f"fitting, try {tries} of at most {MOST_TRIES}{took}: prefill x {factors.prefill:.3f}, "
                       f"ITL x {factors.itl:.3f}, overhead {factors.overhead_ms:.0f} ms")  # fmt: skip
            scenes = {at: scene_of(simulator, replace(systems[at][1], factors=factors)) for at in range(len(systems))}
            asked = [
                pool.submit(_residual, scenes[at], systems[at][0], known)
                for at, point in enumerate(points.points)
                if point.fit
                for known in known_of(point)
            ]
            return [each.result() for each in asked]

        factors, rms = fit_factors(residuals)
        names = tuple(point.name for point in points.fitted)
        found = Calibration(factors, points.benchmark, names, rms, points.origin)
        scenes = [scene_of(simulator, replace(system, factors=factors)) for _topology, system in systems]
        stage.tell(f"fitted after {tries} tries; now each of {len(systems)} points is predicted")
        running = [
            pool.submit(_compared, point, topology, scene)
            for point, (topology, _), scene in zip(points.points, systems, scenes, strict=True)
        ]
        for done, each in enumerate(as_completed(running), 1):
            stage.tell(f"predicted {done} of {len(running)}: {each.result().point.name}")
        return found, [each.result() for each in running]


def _compared(point: Point, topology: Topology, scene: Scene) -> Compared:
    predicted = rehearse_split(Candidate(own_split(topology).name, topology, scene))
    if not scene.system.bar.limits_ms:
        return Compared(point, predicted, None)
    excess = scene.run(workers_by_role(topology), point.qps).excess
    return Compared(point, predicted, math.exp(excess) if math.isfinite(excess) else None)


@dataclass(frozen=True)
class Known:
    """One known figure: the latency at a rate, judged by early stopping or (`plain`) the plain p99; None: the limit."""

    rate: float
    latency_ms: float | None
    plain: bool = False


def known_of(point: Point) -> list[Known]:
    """What of a point is fitted to: its latencies, else that its rate just passes."""
    found = [Known(each.target_qps, each.judged_ms) for each in point.latencies if each.judged_ms is not None]
    found += [
        Known(each.target_qps, each.plain_p99_ms, plain=True)
        for each in point.latencies
        if each.plain_p99_ms is not None
    ]
    return found or [Known(point.qps, None)]


def _residual(scene: Scene, topology: Topology, known: Known) -> float:
    workers, limits = workers_by_role(topology), scene.system.bar.limits_ms
    if not limits:
        return math.log(scene.capacity(workers) / known.rate)
    run = scene.run(workers, known.rate)
    if known.latency_ms is None:
        return run.excess
    name = next(iter(limits))
    latencies = run.latencies_ms[name]
    share = scene.system.bar.percentile if known.plain else scene.system.bar.judged_share(known.rate)
    simulated = float(latencies[min(len(latencies) - 1, math.ceil(share * len(latencies)) - 1)])
    return math.log(simulated / known.latency_ms)


def _system(topology: Topology, engines: Mapping[str, EngineModel], factors: Factors) -> System:
    return System(engines, factors, bar_of(topology), _ROUTERS[topology.frontends.router])


def _system_of(point: Point, points: Points, stage: Stage) -> tuple[Topology, System]:
    """A point's topology with its split and scenario, and its system without factors."""
    places = [root / point.topology for root in (stage.base, points.path.parent, shipped_benchmarks().parent)]
    path = next((place for place in places if place.is_file()), places[0])
    topology = load_topology(path)
    if topology.measure.benchmark != points.benchmark:
        raise ConfigError(
            f"{points.path}: {point.name}: {path} measures {topology.measure.benchmark}, the points are of "
            f"{points.benchmark}",
            "one file of points per benchmark",
        )
    if point.scenario is not None:
        measure = topology.measure.model_copy(update={"scenario": point.scenario})
        topology = topology.model_copy(update={"measure": measure})
    split = topology if point.split is None else with_split(topology, parse_split(point.split, topology))
    engines, _notes = engines_of(split, stage.base, stage.chosen)
    return split, _system(split, engines, Factors())


@contextmanager
def _simulator(stage: Stage, lengths: Lengths, most: int) -> Iterator[Simulator]:
    """A simulator with a directory of its own, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="dynamo-mlperf-rehearsal-") as directory:
        programs = min(stage.programs, most)
        with Simulator(stage.python, Path(directory), lengths, programs, stage.check) as simulator:
            yield simulator

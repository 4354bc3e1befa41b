"""Calibration: a profile's few free factors, fitted to points that are known, so that others can be predicted.

A points file (YAML) names systems and what is known of them: a rate, or latencies at rates. Three factors are fitted:
of prefill times, of decode steps, and a time that the rest of the system adds to each request. What was fitted is
kept as JSON beside the points, with the residuals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.rules import SCENARIOS
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_json, write_json
from dynamo_mlperf.topology.document import read_document
from dynamo_mlperf.tuning.rehearsal_engines import Factors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Residuals = Callable[[Factors], list[float]]

_SCHEMA = 1
_TRY = "benchmarks/qwen3-vl-235b-a22b/calibration-v6.1.yaml is an example"
_POINT_KEYS = {"name", "topology", "split", "scenario", "qps", "at_least", "latencies", "fit", "note"}
_LATENCY_KEYS = {"target_qps", "judged_ms", "plain_p99_ms"}
_STARTS = ((0.6, 1.3, 150.0), (0.45, 1.2, 600.0))
"""Prefill, ITL and overhead (ms) that the fit begins at: a slow prompt and a slow frontend look alike at first."""
_EXPECTED = ((0.0, 0.7), (0.0, 0.5), (math.log(200.0), 1.0))
"""Mean and deviation of the logarithm of each factor before any point is seen: what keeps two points from being fitted
by an absurd third factor."""
_POINT_SIGMA = 0.01
"""How closely a point is expected to be met, as a share of its latency."""
_STEP, _LARGEST_STEP = 0.08, 0.6
_ROUNDS, _TRIES = 5, 3
MOST_TRIES = len(_STARTS) * (1 + _ROUNDS * (len(_EXPECTED) + _TRIES))
"""No fit asks for more residuals than this; as a rule it ends much earlier."""
_GOOD_ENOUGH = 0.02


@dataclass(frozen=True)
class Latency:
    """A latency that is known at a rate: what was judged by early stopping, or the plain p99."""

    target_qps: float
    judged_ms: float | None
    plain_p99_ms: float | None


@dataclass(frozen=True)
class Point:
    """One system and what is known of it.

    Attributes:
        name: For people.
        topology: Its topology file, relative to the current directory, the points file, or the shipped ones.
        split: As in `4P8D`; None = the file's.
        scenario: None = the file's.
        qps: The rate that is known.
        at_least: Whether it is a floor only: higher ones were never tried.
        latencies: Latencies that are known at rates.
        fit: Whether it is fitted to; else it is only compared with.
    """

    name: str
    topology: str
    split: str | None
    scenario: str | None
    qps: float
    at_least: bool = False
    latencies: tuple[Latency, ...] = ()
    fit: bool = False


@dataclass(frozen=True)
class Calibration:
    """Fitted factors and where they come from.

    Attributes:
        factors: What the profiles are multiplied by.
        benchmark: They hold for its profiles.
        points: Names of the points that were fitted to.
        rms: Root mean square of what is left, as a share of the latency.
        origin: The points file's own words.
    """

    factors: Factors
    benchmark: str = ""
    points: tuple[str, ...] = ()
    rms: float = 0.0
    origin: str = ""

    def as_json(self) -> dict[str, Any]:
        """Its file, and its part of `prediction.json`."""
        return {
            "schema": _SCHEMA,
            "benchmark": self.benchmark,
            "factors": self.factors.as_json(),
            "fitted_to": list(self.points),
            "rms_percent": round(100.0 * self.rms, 3),
            "origin": self.origin,
        }


@dataclass(frozen=True)
class Points:
    """A points file."""

    benchmark: str
    origin: str
    points: tuple[Point, ...]
    path: Path = field(default=Path())

    @property
    def fitted(self) -> tuple[Point, ...]:
        """Those that are fitted to."""
        return tuple(point for point in self.points if point.fit)


def read_points(path: Path) -> Points:
    """Read a points file.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    value = read_document(path).value
    try:
        found = _points(value, path)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        said = f"{problem.args[0]} is missing" if isinstance(problem, KeyError) else f"{problem!s:.100}"
        raise ConfigError(f"{path} is no file of calibration points: {said}", _TRY) from problem
    if not found.fitted:
        raise ConfigError(f"{path}: none of its {len(found.points)} points has fit: true", "mark two or more")
    return found


def _points(value: Mapping[str, Any], path: Path) -> Points:
    if value["schema"] != _SCHEMA:
        raise ValueError(f"schema {value['schema']!r:.20}, wanted {_SCHEMA}")
    points = tuple(_point(each) for each in value["points"])
    return Points(str(value["benchmark"]), str(value.get("origin", "")), points, path)


def _point(value: Mapping[str, Any]) -> Point:
    unknown = set(value) - _POINT_KEYS
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}")
    scenario = value.get("scenario")
    if scenario is not None and scenario not in SCENARIOS:
        raise ValueError(f"scenario {scenario!r:.40}")
    return Point(
        name=str(value["name"]),
        topology=str(value["topology"]),
        split=None if value.get("split") is None else str(value["split"]),
        scenario=scenario,
        qps=_positive(value["qps"]),
        at_least=value.get("at_least", False) is True,
        latencies=tuple(_latency(each) for each in value.get("latencies", ())),
        fit=value.get("fit", False) is True,
    )


def _latency(value: Mapping[str, Any]) -> Latency:
    unknown = set(value) - _LATENCY_KEYS
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r} of a latency")
    judged, plain = (value.get(key) for key in ("judged_ms", "plain_p99_ms"))
    if judged is None and plain is None:
        raise ValueError("a latency without judged_ms and plain_p99_ms")
    return Latency(
        _positive(value["target_qps"]),
        None if judged is None else _positive(judged),
        None if plain is None else _positive(plain),
    )


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise ValueError(f"{value!r:.20} where a number above 0 was expected")
    return float(value)


def fit_factors(residuals: Residuals) -> tuple[Factors, float]:
    """The factors that leave the least, and the root mean square of what they leave (Levenberg and Marquardt).

    Args:
        residuals: Logarithms of simulated over known, one per known figure, for given factors.
    """

    def error(logs: Array) -> Array:
        prior = [(each - mean) / sigma for each, (mean, sigma) in zip(logs, _EXPECTED, strict=True)]
        return np.array([*(each / _POINT_SIGMA for each in residuals(_factors(logs))), *prior])

    ends = [_descend(error, np.log(np.array(start))) for start in _STARTS]
    at, here = min(ends, key=lambda end: float(end[1] @ end[1]))
    left = here[: len(here) - len(_EXPECTED)] * _POINT_SIGMA
    return _factors(at), float(np.sqrt(np.mean(left**2)))


def _descend(error: Callable[[Array], Array], at: Array) -> tuple[Array, Array]:
    """Where the error is least near `at`, and what it is there."""
    here, damping = error(at), 1.0
    for _ in range(_ROUNDS):
        slopes = np.array([(error(at + _STEP * unit) - here) / _STEP for unit in np.eye(len(at))]).T
        square = slopes.T @ slopes
        before = float(here @ here)
        for _ in range(_TRIES):
            step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slopes.T @ here)
            step = np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
            there = error(at + step)
            if there @ there < before:
                at, here, damping = at + step, there, damping / 5.0
                break
            damping *= 5.0
        if float(here @ here) > (1.0 - _GOOD_ENOUGH) * before:
            break
    return at, here


def _factors(logs: Array) -> Factors:
    prefill, itl, overhead = np.exp(logs)
    return Factors(round(float(prefill), 4), round(float(itl), 4), round(float(overhead), 1))


def fitted_path(points: Path) -> Path:
    """Where the factors fitted to a points file lie: beside it."""
    return points.with_suffix(".fitted.json")


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write fitted factors, atomically.

    Raises:
        OSError: They cannot be written.
    """
    write_json(path, calibration.as_json())


def read_calibration(path: Path) -> Calibration:
    """Read fitted factors.

    Raises:
        ConfigError: They cannot be read, or are none.
    """
    try:
        value = read_json(path)
        factors = value["factors"]
        return Calibration(
            Factors(*(_positive(factors[name]) for name in ("prefill", "itl", "overhead_ms"))),
            str(value["benchmark"]),
            tuple(str(name) for name in value["fitted_to"]),
            float(value["rms_percent"]) / 100.0,
            str(value["origin"]),
        )
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}", "name a file that exists and can be read") from problem
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise ConfigError(
            f"{path} holds no fitted factors: {problem!r:.100}", "make it: dynamo-mlperf rehearse --calibrate POINTS"
        ) from problem

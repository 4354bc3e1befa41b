"""What a rehearsal predicts of a topology's splits: `prediction.json`, one file for all who read it.

A sweep takes its order from it, a search its first rate, and a report shows it beside what was measured. Every figure
in it is rehearsed: it comes from simulated engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Method = Literal["offline replay", "live mocker"]

FILE_NAME = "prediction.json"
"""Its name in a run directory, and in a sweep's."""
_SCHEMA = 1
_MAX_BYTES = 4_000_000
_MAX_QPS = 1e6
"""As in a topology file; a search would begin at it."""
_METHODS = ("offline replay", "live mocker")
_TRY = "make it anew: dynamo-mlperf rehearse FILE --out prediction.json"


@dataclass(frozen=True)
class SplitPrediction:
    """What is predicted of one split.

    Attributes:
        split: As in `4P8D`.
        workers: Workers by role.
        tensor_parallel: By role.
        gpus: GPUs that its workers take.
        rate_qps: Highest rate that passes by the rules, in queries (Offline: samples) per second; None where none was
            found to pass.
        binding: The constraint that fails first above that rate: `end_to_end`, `ttft`, `tpot` or `throughput`.
        bottleneck: The role that runs out first above that rate.
        seconds: What the simulation of this split took, in seconds.
    """

    split: str
    workers: Mapping[str, int]
    tensor_parallel: Mapping[str, int]
    gpus: int
    rate_qps: float | None
    binding: str | None = None
    bottleneck: str | None = None
    seconds: float = 0.0

    @property
    def per_gpu_qps(self) -> float | None:
        """The rate for each GPU that the split's workers take."""
        return None if self.rate_qps is None else self.rate_qps / self.gpus


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a topology's splits, the best first.

    Attributes:
        name: Name of the topology.
        benchmark: MLPerf benchmark.
        scenario: MLPerf scenario.
        granted_gpus: GPUs of the allocation.
        splits: By rate, the best first; those without a rate last.
        profiles: By role: name, origin and degree of the timing profile.
        calibration: The factors that the profiles were multiplied by, and the points they come from; empty = none.
        method: How it was simulated.
        notes: What a reader should know: what was left out, what the profiles do not cover.
    """

    name: str
    benchmark: str
    scenario: str
    granted_gpus: int
    splits: tuple[SplitPrediction, ...]
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "offline replay"
    notes: tuple[str, ...] = ()

    def rate_of(self, split: str) -> float | None:
        """The predicted rate of a split such as `4P8D`; None where it was not rehearsed, or nothing passes."""
        return next((each.rate_qps for each in self.splits if each.split == split), None)

    @property
    def best(self) -> SplitPrediction | None:
        """The split with the highest rate; None where none passes at any rate."""
        return next((each for each in self.splits if each.rate_qps is not None), None)

    @property
    def order(self) -> tuple[str, ...]:
        """The splits, the most promising first."""
        return tuple(each.split for each in self.splits)

    def as_json(self) -> dict[str, Any]:
        """The keys of `prediction.json` and of `rehearse --json`."""
        return {
            "schema": _SCHEMA,
            "class": "rehearsal",
            "label": "rehearsed: simulated engines, no measurement",
            "method": self.method,
            "name": self.name,
            "benchmark": self.benchmark,
            "scenario": self.scenario,
            "granted_gpus": self.granted_gpus,
            "splits": [_split_json(each) for each in self.splits],
            "profiles": {role: dict(facts) for role, facts in self.profiles.items()},
            "calibration": dict(self.calibration),
            "notes": list(self.notes),
        }


def ranked(splits: list[SplitPrediction]) -> tuple[SplitPrediction, ...]:
    """By rate, the best first; among equals the one that leaves more GPUs idle."""
    return tuple(sorted(splits, key=lambda each: (-(each.rate_qps or 0.0), each.gpus, each.split)))


def write_prediction(path: Path, prediction: Prediction) -> None:
    """Write `prediction.json`, atomically.

    Raises:
        OSError: It cannot be written.
    """
    write_json(path, prediction.as_json())


def read_prediction(path: Path) -> Prediction:
    """Read a `prediction.json`.

    Raises:
        ConfigError: It cannot be read, or is no prediction.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes, over {_MAX_BYTES}: no prediction", _TRY)
        value = read_json(path)
        return _prediction(value)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}", "name a file that exists and can be read") from problem
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as problem:
        raise ConfigError(f"{path} is no prediction: {problem!r:.120}", _TRY) from problem


def _split_json(split: SplitPrediction) -> dict[str, Any]:
    return {
        "split": split.split,
        "workers": dict(split.workers),
        "tensor_parallel": dict(split.tensor_parallel),
        "gpus": split.gpus,
        "rehearsed_qps": split.rate_qps,
        "rehearsed_qps_per_gpu": split.per_gpu_qps,
        "binding": split.binding,
        "bottleneck": split.bottleneck,
        "seconds": round(split.seconds, 3),
    }


def _prediction(value: dict[str, Any]) -> Prediction:
    if value["schema"] != _SCHEMA:
        raise ValueError(f"schema {value['schema']!r:.20}, wanted {_SCHEMA}")
    if value["method"] not in _METHODS:
        raise ValueError(f"method {value['method']!r:.40}")
    return Prediction(
        name=str(value["name"]),
        benchmark=str(value["benchmark"]),
        scenario=str(value["scenario"]),
        granted_gpus=_count(value["granted_gpus"]),
        splits=ranked([_split(each) for each in value["splits"]]),
        profiles={str(role): dict(facts) for role, facts in value["profiles"].items()},
        calibration=dict(value["calibration"]),
        method=value["method"],
        notes=tuple(str(each) for each in value["notes"]),
    )


def _split(value: dict[str, Any]) -> SplitPrediction:
    rate = value["rehearsed_qps"]
    if rate is not None and (isinstance(rate, bool) or not 0.0 < rate <= _MAX_QPS):
        raise ValueError(f"a rate of {rate}")
    return SplitPrediction(
        split=str(value["split"]),
        workers={str(role): _count(count) for role, count in value["workers"].items()},
        tensor_parallel={str(role): _count(count) for role, count in value["tensor_parallel"].items()},
        gpus=_count(value["gpus"]),
        rate_qps=None if rate is None else float(rate),
        binding=_text(value["binding"]),
        bottleneck=_text(value["bottleneck"]),
        seconds=float(value["seconds"]),
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r:.20} where a count was expected")
    return value


def _text(value: object) -> str | None:
    return None if value is None else str(value)

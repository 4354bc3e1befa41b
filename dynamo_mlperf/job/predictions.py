"""What a file's predictions say of its splits: where a search starts, and the order of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.role_splits import own_split
from dynamo_mlperf.topology.sweeping import splits_of
from dynamo_mlperf.tuning.prediction import read_prediction

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.prediction import Prediction


def predicted_qps(topology: Topology, base_dir: Path) -> float | None:
    """What the file's `search.prediction` says of the file's own split; None where it names none, or says nothing.

    Raises:
        ConfigError: It cannot be read, or is of another test.
    """
    block = topology.search
    if block is None or block.prediction is None:
        return None
    return _prediction_of(topology, base_dir / block.prediction).rate_of(own_split(topology).name)


def predictions_of(topology: Topology, base_dir: Path) -> dict[str, float]:
    """Predicted rates by split name, of the file that `sweep.prediction` names; none without one.

    Raises:
        ConfigError: It cannot be read, or is of another test.
    """
    block = topology.sweep
    if block is None or block.prediction is None:
        return {}
    prediction = _prediction_of(topology, base_dir / block.prediction)
    return {split.name: rate for split in splits_of(topology) if (rate := prediction.rate_of(split.name)) is not None}


def starts_of(topology: Topology, base_dir: Path) -> dict[str, float]:
    """Where each split's search begins, by split name: by `search.prediction`, where it is given, else by the sweep's.

    Raises:
        ConfigError: One of them cannot be read, or is of another test.
    """
    found = predictions_of(topology, base_dir)
    if topology.search is None or topology.search.prediction is None:
        return found
    prediction = _prediction_of(topology, base_dir / topology.search.prediction)
    own = {split.name: prediction.rate_of(split.name) for split in splits_of(topology)}
    return found | {name: rate for name, rate in own.items() if rate is not None}


def _prediction_of(topology: Topology, path: Path) -> Prediction:
    """A prediction of what the file measures: a rate under other limits, or of other requests, says nothing of it."""
    found, measure = read_prediction(path.absolute()), topology.measure
    if (found.benchmark, found.scenario) != (measure.benchmark, measure.scenario):
        raise ConfigError(
            f"{path} predicts {found.benchmark} {found.scenario}, the file measures {measure.benchmark} "
            f"{measure.scenario}",
            "rehearse this file: dynamo-mlperf rehearse FILE --all --out prediction.json",
        )
    return found


def prediction_file(topology: Topology) -> str | None:
    """The rehearsal that the report shows beside what was measured: the sweep's, else the search's; None = neither."""
    of_sweep = None if topology.sweep is None else topology.sweep.prediction
    return of_sweep or (None if topology.search is None else topology.search.prediction)

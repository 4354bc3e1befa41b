"""What a file's predictions say of its splits: where a search starts, and the order of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.topology.spec import ROLE_LETTERS
from dynamo_mlperf.topology.sweeping import splits_of
from dynamo_mlperf.tuning.prediction import read_prediction

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology


def predicted_qps(topology: Topology, base_dir: Path) -> float | None:
    """What the file's `search.prediction` says of the file's own split; None where it names none, or says nothing.

    Raises:
        ConfigError: It cannot be read.
    """
    block = topology.search
    if block is None or block.prediction is None:
        return None
    split = "".join(f"{role.workers}{ROLE_LETTERS[name]}" for name, role in topology.roles.present())
    return read_prediction((base_dir / block.prediction).absolute()).rate_of(split)


def predictions_of(topology: Topology, base_dir: Path) -> dict[str, float]:
    """Predicted rates by split name, of the file that `sweep.prediction` names; none without one.

    Raises:
        ConfigError: It cannot be read.
    """
    block = topology.sweep
    if block is None or block.prediction is None:
        return {}
    prediction = read_prediction((base_dir / block.prediction).absolute())
    return {split.name: rate for split in splits_of(topology) if (rate := prediction.rate_of(split.name)) is not None}


def starts_of(topology: Topology, base_dir: Path) -> dict[str, float]:
    """Where each split's search begins, by split name: by `search.prediction`, where it is given, else by the sweep's.

    Raises:
        ConfigError: One of them cannot be read.
    """
    found = predictions_of(topology, base_dir)
    if topology.search is None or topology.search.prediction is None:
        return found
    prediction = read_prediction((base_dir / topology.search.prediction).absolute())
    own = {split.name: prediction.rate_of(split.name) for split in splits_of(topology)}
    return found | {name: rate for name, rate in own.items() if rate is not None}


def prediction_file(topology: Topology) -> str | None:
    """The rehearsal that the report shows beside what was measured: the sweep's, else the search's; None = neither."""
    of_sweep = None if topology.sweep is None else topology.sweep.prediction
    return of_sweep or (None if topology.search is None else topology.search.prediction)

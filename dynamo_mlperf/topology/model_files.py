"""The model that a topology serves: its shape and size from its files where they can be seen, else as published."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED, ModelShape, shape_of
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.topology.document import read_document

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology

_WEIGHT_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ServedModel:
    """What is served.

    Attributes:
        shape: Its sizes.
        precision: Of its weights, one of `PRECISION_BYTES`.
        scale: Bytes of its files over those that shape and precision come to; 1 where they are not seen.
    """

    shape: ModelShape
    precision: str
    scale: float


def served_model(topology: Topology, base: Path) -> ServedModel | None:
    """The model from its files where they can be seen from here, else as published under its name.

    Args:
        topology: The topology.
        base: What its paths are relative to.

    Returns:
        None where neither says what shape it has.
    """
    paths = topology.resolve(base)
    directory, there = paths.weights, 0
    if paths.manifest is not None:
        directory, there = _staged(paths.manifest, base)
    shape = _read_shape(directory) or shape_of(PUBLISHED.get(topology.model.name, {}))
    if shape is None:
        return None
    precision = topology.model.precision or shape.precision
    if directory is not None and not there:
        there = sum(file.stat().st_size for file in directory.glob(f"*{_WEIGHT_SUFFIX}") if file.is_file())
    scale = there / shape.weight_bytes(precision, 1, 1) if there else 1.0
    return ServedModel(shape, precision, scale)


def _read_shape(directory: Path | None) -> ModelShape | None:
    try:
        value = json.loads(read_bounded(directory / "config.json")) if directory else None
    except (OSError, ValueError, RecursionError):
        return None
    return shape_of(value) if isinstance(value, dict) else None


def _staged(manifest: Path, base: Path) -> tuple[Path | None, int]:
    """The source of a staging manifest, and the bytes of the weights that it lists."""
    try:
        value = read_document(manifest).value if manifest.is_file() else {}
        files = [(str(file["path"]), int(file["bytes"])) for file in value.get("files", ())]
        source = value.get("source")
    except (ConfigError, KeyError, TypeError, ValueError):
        return None, 0
    there = sum(count for path, count in files if path.endswith(_WEIGHT_SUFFIX))
    return (base / source if isinstance(source, str) else None), there

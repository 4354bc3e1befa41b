"""Reads a pickled pandas data frame without pandas, and without running what the pickle asks for.

Some data sets are published as pickles only, and a pickle is a program: loading one the usual way runs whatever it
names. Here every name of pandas stands for an inert record of what it was given, arrays are NumPy's own, and any other
name is refused. What pandas 1.3 to 2.3 write is understood: the frame's block manager with its blocks of values
(`pandas/_libs/internals.pyx`, `BlockManager.__reduce__` and `NumpyBlock.__reduce__`); gzip around it too.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import open_regular

_GZIP = b"\x1f\x8b"
_NUMPY_MODULES = (
    "numpy",
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.core.numeric",
    "numpy._core.numeric",
)
_BLOCK_PARTS = 3
_WAY_OUT = (
    "write it as Parquet with the pandas that made it: python -c 'import pandas, sys; "
    "pandas.read_pickle(sys.argv[1]).to_parquet(sys.argv[2])' FILE FILE.parquet, in a container of its own if "
    "you do not trust the file"
)


class _Inert:
    """Stands for an object of pandas: keeps what it was given, and does nothing."""

    origin = ""

    def __new__(cls, *given: object, **_named: object) -> _Inert:  # noqa: PYI034 - subclasses are made by name
        made = object.__new__(cls)
        made.given = given
        made.state = None
        return made

    def __init__(self, *_given: object, **_named: object) -> None:
        self.given: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: object) -> None:
        self.state = state


def _empty_array(_kind: object, _shape: object, _letter: object) -> np.ndarray[Any, Any]:
    """What NumPy's `_reconstruct` makes: an array that its state fills."""
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _array_from(buffer: bytes, kind: np.dtype[Any], shape: tuple[int, ...], order: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401
    return np.frombuffer(buffer, kind).reshape(shape, order=order)


class _Reader(pickle.Unpickler):
    """An unpickler that knows no names but those of a data frame."""

    def __init__(self, source: BinaryIO, path: Path) -> None:
        super().__init__(source)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - what the name stands for
        if module == "pandas" or module.startswith("pandas."):
            return type(name, (_Inert,), {"origin": f"{module}.{name}"})
        if module in _NUMPY_MODULES:
            known = {
                "ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": _empty_array, "_frombuffer": _array_from,
            }  # fmt: skip
            if name in known:
                return known[name]
        if (module, name) == ("builtins", "slice"):
            return slice
        raise ConfigError(f"{self._path}: the pickle asks for {module}.{name}, which no data frame needs", _WAY_OUT)


def read_frame(path: Path, wanted: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of a pickled data frame that are there of those `wanted`, as plain Python values.

    Raises:
        ConfigError: It is no pickle, no data frame, of another version of pandas, or names what it has no need of.
    """
    try:
        with open_regular(path) as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            with gzip.open(raw) if packed else raw as source:
                frame = _Reader(source, path).load()  # type: ignore[arg-type]
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", "name a file that can be read") from error
    except Exception as error:  # whatever a broken pickle runs into
        raise ConfigError(f"{path}: no pickle that can be read: {type(error).__name__} {error}", _WAY_OUT) from error
    if not isinstance(frame, _Inert) or not frame.origin.endswith(".DataFrame"):
        raise ConfigError(f"{path}: a pickle, but of no pandas data frame", "name the published data set")
    try:
        return _columns(frame, wanted)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"{path}: a data frame of a pandas that is not known here: {error}", _WAY_OUT) from error


def _columns(frame: _Inert, wanted: Sequence[str]) -> dict[str, list[Any]]:
    blocks, axes = frame.state["_mgr"].given[:2]
    names = axes[0].given[1]["data"].tolist()
    found: dict[str, list[Any]] = {}
    for block in blocks:
        values, places, *_ = block.given[:_BLOCK_PARTS]
        positions = range(len(names))[places] if isinstance(places, slice) else places.tolist()
        for row, position in enumerate(positions):
            if names[position] in wanted:
                found[names[position]] = _values(values, row, names[position])
    return found


def _values(values: Any, row: int, name: str) -> list[Any]:  # noqa: ANN401 - an array, or what pandas made of one
    if not isinstance(values, np.ndarray):
        raise TypeError(f"column {name} is a {getattr(values, 'origin', type(values).__name__)}")
    column: list[Any] = values[row].tolist()
    return column

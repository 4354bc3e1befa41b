"""The installed LoadGen wheel: which round it is of, read from its file and without importing it.

LoadGen's shared library carries `mlperf.conf` as text (`loadgen/setup.py` of mlcommons/inference makes a header of
it), the round's seeds among its lines. They are the same for every benchmark and cannot be set in `user.conf`.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
from pathlib import Path

from dynamo_mlperf.benchmark.rounds import ROUNDS, round_with_seeds
from dynamo_mlperf.benchmark.shapes import Seeds
from dynamo_mlperf.errors import SetupError

MODULE = "mlperf_loadgen"
_INSTALL = "install the wheel of the round, for example pip install mlcommons-loadgen=={release}"


def _library() -> Path:
    found = importlib.util.find_spec(MODULE)
    if found is None or found.origin is None:
        raise SetupError("LoadGen is not installed", _INSTALL.format(release=next(iter(ROUNDS.values())).loadgen))
    return Path(found.origin)


def embedded_seeds(library: Path | None = None) -> Seeds:
    """The seeds in the wheel's `mlperf.conf`.

    Args:
        library: LoadGen's shared library; None = the installed one.

    Raises:
        SetupError: LoadGen is not installed, or its file shows no seeds.
    """
    path = library or _library()
    values = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name in ("qsl", "sample_index", "schedule"):
            found = re.search(rb"\*\.\*\.%b_rng_seed = (\d+)" % name.encode(), content)
            if found is None:
                raise SetupError(
                    f"{path} shows no {name} seed: not a LoadGen that embeds its rules", "reinstall mlcommons-loadgen"
                )
            values[name] = int(found.group(1))
    return Seeds(**values)


def check_wheel(round_name: str, library: Path | None = None) -> None:
    """The wheel's seeds are those of the round that a run is made for.

    Raises:
        SetupError: They are others; the error shows both.
    """
    wanted, got = ROUNDS[round_name], embedded_seeds(library)
    if got == wanted.seeds:
        return
    theirs = round_with_seeds(got)
    raise SetupError(
        f"the LoadGen wheel has the seeds of {f'round {theirs.name}' if theirs else 'an unknown round'} "
        f"({_shown(got)}), and the run is of round {wanted.name} ({_shown(wanted.seeds)})",
        _INSTALL.format(release=wanted.loadgen) + (f", or run for round {theirs.name}" if theirs else ""),
    )


def _shown(seeds: Seeds) -> str:
    return f"qsl {seeds.qsl}, sample_index {seeds.sample_index}, schedule {seeds.schedule}"

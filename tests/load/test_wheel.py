"""The LoadGen wheel is of the round that a run is made for, or the run is refused with both seeds shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rounds import ROUNDS
from dynamo_mlperf.benchmark.shapes import Seeds
from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.load.wheel import check_wheel, embedded_seeds


def _library(directory: Path, seeds: Seeds) -> Path:
    """A shared library, as far as its text goes."""
    lines = "".join(f"*.*.{name}_rng_seed = {seed}\n" for name, seed in dataclasses.asdict(seeds).items())
    path = directory / "mlperf_loadgen.so"
    path.write_bytes(b"\x7fELF\0requested_qsl_rng_seed\0" + lines.encode() + b"*.*.test05_qsl_rng_seed = 7\n\0\0")
    return path


@pytest.mark.parametrize("name", ROUNDS)
def test_a_wheel_of_the_round_is_good(tmp_path: Path, name: str) -> None:
    library = _library(tmp_path, ROUNDS[name].seeds)
    assert embedded_seeds(library) == ROUNDS[name].seeds
    check_wheel(name, library)


def test_last_rounds_wheel_is_refused_with_both_seeds(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as caught:
        check_wheel("v6.1", _library(tmp_path, ROUNDS["v6.0"].seeds))
    assert caught.value.what == (
        "the LoadGen wheel has the seeds of round v6.0 (qsl 2465351861681999779, sample_index 14276810075590677512, "
        "schedule 3936089224930324775), and the run is of round v6.1 (qsl 2085463073848966840, sample_index "
        "2747215439041700203, schedule 16159082839903944936)"
    )
    assert "mlcommons-loadgen==6.0.17" in caught.value.action
    with pytest.raises(SetupError, match="an unknown round"):
        check_wheel("v6.1", _library(tmp_path, Seeds(1, 2, 3)))


def test_a_library_without_rules_is_no_loadgen(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(SetupError, match="shows no qsl seed"):
        embedded_seeds(path)


@pytest.mark.loadgen
def test_the_installed_wheel_is_of_v6_1() -> None:
    check_wheel("v6.1")
    with pytest.raises(SetupError, match=r"the seeds of round v6\.1"):
        check_wheel("v6.0")

"""How long the requests of a rehearsal are: as people say, as the data set at hand has them, or as published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED, shape_of
from dynamo_mlperf.benchmark.prompt_length import PromptMeter
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.prompt_limit import model_files
from dynamo_mlperf.job.workload import read_data_set
from dynamo_mlperf.tuning.own_lengths import OwnLengths
from dynamo_mlperf.tuning.rehearsal_requests import lengths_of, own_lengths

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.rehearsal_requests import Lengths

_COUNTED_SAMPLES = 2_000
"""Prompts of a data set whose tokens are counted; more of them change no quantile that matters."""
_UNKNOWN_LONGEST = 1_000_000


def request_lengths(topology: Topology, base: Path, own: OwnLengths | None = None) -> Lengths:
    """Lengths as people give them, else of the file's data set where it and the tokenizer are there, else as published.

    Raises:
        ConfigError: None of them is to be had.
    """
    own = own or OwnLengths()
    found = None if own.prompts else _found_lengths(topology, base)
    if found is not None and own.answers is None:
        return found
    name = topology.measure.benchmark
    return own_lengths(name, own, found, _longest_prompt(topology))


def _longest_prompt(topology: Topology) -> int:
    """Tokens of a prompt that leave the model room for the longest answer; unlimited for others."""
    shape = shape_of(PUBLISHED.get(topology.model.name, {}))
    longest = shape.longest if shape is not None else 0
    return longest - benchmark(topology.measure.benchmark).max_new_tokens if longest else _UNKNOWN_LONGEST


def _found_lengths(topology: Topology, base: Path) -> Lengths:
    """Of the data set, or as published.

    Raises:
        ConfigError: Neither is to be had.
    """
    name, directory = topology.measure.benchmark, topology.resolve(base).dataset
    if directory is None:
        return lengths_of(name, None, "the file names no measure.dataset", "name one there")
    if not directory.is_dir():
        return lengths_of(name, None, f"the data set {topology.measure.dataset} is not there")
    try:
        model = model_files(topology, base)
    except ConfigError:
        model = None
    meter = PromptMeter(model) if model is not None else None
    if meter is None or not meter.counts:
        where = (
            f"the model's tokenizer, which would count those of {topology.measure.dataset}, cannot be seen from here"
        )
        remedy = "write model: {weights: {path: DIRECTORY}} with a directory that holds the model's tokenizer.json"
        return lengths_of(name, None, where, remedy)
    samples = read_data_set(topology, base)
    every = max(1, len(samples) // _COUNTED_SAMPLES)
    counted = np.array([meter.count(samples[at]) for at in range(0, len(samples), every)], dtype=np.int64)
    return lengths_of(name, counted, str(topology.measure.dataset))

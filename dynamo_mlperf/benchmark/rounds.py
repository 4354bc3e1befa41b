"""The rounds of MLPerf Inference whose runs can be made or judged here: seeds and benchmarks of each, with sources."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from dynamo_mlperf.benchmark.limits import DEEPSEEK_R1, GPT_OSS, LLAMA2, QWEN3_VL
from dynamo_mlperf.benchmark.shapes import Benchmark, Seeds
from dynamo_mlperf.errors import ConfigError

_Value = TypeVar("_Value")
_CHECKER = "tools/submission/submission_checker/constants.py"


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        name: As the checker's `--version` takes it, for example `v6.1`.
        seeds: The seeds that every log of the round shows.
        benchmarks: The benchmarks of the round that this project knows, by name.
        loadgen: Release of LoadGen whose embedded `mlperf.conf` has these seeds.
        sources: Where each part was read.
    """

    name: str
    seeds: Seeds
    benchmarks: Mapping[str, Benchmark]
    loadgen: str
    sources: tuple[str, ...]


def _only(rules: Benchmark, *scenarios: str) -> Benchmark:
    """The benchmark without the scenarios that its round did not have."""

    def kept(values: Mapping[str, _Value]) -> Mapping[str, _Value]:
        return MappingProxyType({name: values[name] for name in scenarios})

    return dataclasses.replace(
        rules,
        limits=kept(rules.limits),
        performance_sample_count=kept(rules.performance_sample_count),
        accuracy_sample_count=kept(rules.accuracy_sample_count),
        accuracy_floor=kept(rules.accuracy_floor),
        interactive_entry=rules.interactive_entry and "Interactive" in scenarios,
        clients=("loadgen",),
    )


def _by_name(*benchmarks: Benchmark) -> Mapping[str, Benchmark]:
    return MappingProxyType({rules.name: rules for rules in benchmarks})


_ALL = ("Offline", "Server", "Interactive")

_V6_1 = Round(
    name="v6.1",
    seeds=Seeds(qsl=2085463073848966840, sample_index=2747215439041700203, schedule=16159082839903944936),
    benchmarks=_by_name(QWEN3_VL, GPT_OSS, DEEPSEEK_R1, LLAMA2),
    loadgen="6.0.17",
    sources=(
        (
            f'mlcommons/inference b66003e1 {_CHECKER}: MODEL_CONFIG["v6.1"] (seeds, sample counts, accuracy, '
            "compliance tests, end-to-end limits), LLM_LATENCY_LIMITS (TTFT, TPOT), OFFLINE_MIN_SPQ_SINCE_V4, "
            "TEST_DURATION_MS, ENDPOINTS_ALLOWED_MODELS"
        ),
        "mlcommons/inference b66003e1 loadgen/mlperf.conf, embedded in LoadGen 6.0.17 (what LoadGen applies)",
    ),
)

_V6_0 = Round(
    name="v6.0",
    seeds=Seeds(qsl=2465351861681999779, sample_index=14276810075590677512, schedule=3936089224930324775),
    benchmarks=_by_name(
        _only(QWEN3_VL, "Offline", "Server"), _only(GPT_OSS, *_ALL), _only(DEEPSEEK_R1, *_ALL), _only(LLAMA2, *_ALL)
    ),
    loadgen="6.0.15",
    sources=(
        (
            f'mlcommons/inference b66003e1 {_CHECKER}: MODEL_CONFIG["v6.0"] (qwen3-vl-235b-a22b has Offline and Server '
            "only; no result files of endpoints: RESULT_FIELD_ENDPOINTS begins with v6.1)"
        ),
        (
            "mlcommons/inference 5a6f0fac loadgen/mlperf.conf (the last before the seeds of v6.1; VERSION 6.0.15): "
            "differs from v6.1's in the three seeds only"
        ),
    ),
)

_V5_1 = Round(
    name="v5.1",
    seeds=Seeds(qsl=1780908523862526354, sample_index=14771362308971278857, schedule=18209322760996052031),
    benchmarks=_by_name(_only(DEEPSEEK_R1, "Offline", "Server"), _only(LLAMA2, *_ALL)),
    loadgen="5.1.1",
    sources=(
        (
            f'mlcommons/inference b66003e1 {_CHECKER}: MODEL_CONFIG["v5.1"] (of the benchmarks here only deepseek-r1, '
            "Offline and Server, and llama2-70b)"
        ),
        "mlcommons/inference tag v5.1.1 (6776245e) loadgen/mlperf.conf: deepseek-r1 has no Interactive entry",
    ),
)

ROUNDS: Mapping[str, Round] = MappingProxyType({entry.name: entry for entry in (_V6_1, _V6_0, _V5_1)})
"""Newest first."""

CURRENT = "v6.1"
"""The round that runs are made for unless another is asked for."""


def round_of(name: str) -> Round:
    """The round called `name`.

    Raises:
        ConfigError: Its rules are not known here; the error names those that are.
    """
    if name in ROUNDS:
        return ROUNDS[name]
    raise ConfigError(
        f"no rules of round {name!r}; there are {', '.join(ROUNDS)}", f"write one of them, such as {CURRENT}"
    )


def round_with_seeds(seeds: Seeds) -> Round | None:
    """The round that has these seeds; None when no known one does."""
    return next((entry for entry in ROUNDS.values() if entry.seeds == seeds), None)

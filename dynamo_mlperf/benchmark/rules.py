"""The rules in force: the benchmarks and seeds of the current round, and look-ups by name.

The data: `limits.py` (round v6.1), `rounds.py` (each round's seeds and differences), `shapes.py` (what it consists of).
Where documents disagree, the submission checker's constants and LoadGen's embedded `mlperf.conf` are what a
submission is held to.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from dynamo_mlperf.benchmark.rounds import CURRENT, ROUNDS, round_of
from dynamo_mlperf.benchmark.shapes import (
    MIN_DURATION_MS,
    MIN_QUERY_COUNT,
    PERCENTILE,
    SCENARIOS,
    Benchmark,
    Limits,
    Reduction,
    Seeds,
)
from dynamo_mlperf.errors import ConfigError

__all__ = [
    "BENCHMARKS",
    "MIN_DURATION_MS",
    "MIN_QUERY_COUNT",
    "ONLY_ENDPOINTS",
    "PERCENTILE",
    "ROUND",
    "SCENARIOS",
    "SEEDS",
    "WITH_IMAGES",
    "Benchmark",
    "Limits",
    "Reduction",
    "Seeds",
    "benchmark",
    "check_scenario",
]

ROUND = CURRENT
SEEDS: Seeds = ROUNDS[ROUND].seeds
"""Of the current round."""

BENCHMARKS: Mapping[str, Benchmark] = ROUNDS[ROUND].benchmarks
"""Of the current round, by name."""

WITH_IMAGES = "qwen3-vl-235b-a22b"
"""The benchmark whose data set is a product catalogue; the others' are text prompts."""

ONLY_ENDPOINTS = {(WITH_IMAGES, "Interactive")}
"""In LoadGen's form the official checker asks it for 48,289 samples, and its data set has 8,000."""


def _nearest(name: str, legal: tuple[str, ...]) -> str:
    folded = {option.lower(): option for option in legal}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.0)
    return folded[found[0]]


def benchmark(name: str, round_name: str = ROUND) -> Benchmark:
    """The benchmark called `name` by the rules of a round.

    Raises:
        ConfigError: There is none; the error names the nearest legal name.
    """
    known = round_of(round_name).benchmarks
    if name in known:
        return known[name]
    legal = tuple(known)
    raise ConfigError(
        f"no benchmark {name!r} in MLPerf Inference {round_name}; there are {', '.join(legal)}",
        f"write benchmark: {_nearest(name, legal)}",
    )


def check_scenario(name: str, rules: Benchmark | None = None) -> str:
    """`name` itself when it is a scenario (of these rules), spelled as the checker spells it.

    Raises:
        ConfigError: It is none; the error names the nearest one.
    """
    if name not in SCENARIOS:
        raise ConfigError(
            f"no scenario {name!r}; there are {', '.join(SCENARIOS)}", f"write scenario: {_nearest(name, SCENARIOS)}"
        )
    if rules is not None and name not in rules.scenarios:
        raise ConfigError(
            f"{rules.name} has no {name} scenario in that round; it has {', '.join(rules.scenarios)}",
            f"write scenario: {rules.scenarios[-1]}, or name another round",
        )
    return name

"""What a rehearsal sends: prompt and output lengths as the benchmark has them, and Poisson arrivals.

Image tokens are part of a prompt's length. Lengths come from a data set at hand, else from what was published of the
benchmark's own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.tuning.own_lengths import OwnLengths, TokenLengths

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Counts = NDArray[np.int64]

_DRAWN = 24_000
_SEED = 20_260_401
_QWEN = "qwen3-vl-235b-a22b"
_PROMPTS = (809.0, 3_700.0, 61_566.0)
"""Least, median and greatest prompt tokens of Qwen3-VL's calibration rows (v6.1), image tokens included."""
_EXTREME = 3.66
"""Standard deviations at which least and greatest are taken to lie: the 1-in-8,000 quantiles, 8,000 being the size of
the Interactive data set. Nothing between them is published, so the shape (lognormal on either side) is assumed."""
_OUTPUTS = (29.0, 42.0, 62.0, 150.0)
"""p1, p50, p99 and maximum of output tokens of a published Qwen3-VL Interactive run (v6.1, 872,000 queries)."""
_P99 = 2.326
_MEAN_OUTPUT = {"gpt-oss-120b": 1_278.2, "deepseek-r1": 3_886.2, "llama2-70b-99.9": 294.5}
"""Mean output tokens: the middle of what the rules accept (tokens per sample; TEST09 of gpt-oss-120b)."""
_LEAST = 2
"""An answer of one token has no time per output token."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Lengths to draw requests from.

    Attributes:
        prompts: Tokens of each prompt, images included.
        outputs: Tokens of each answer; drawn apart from the prompts.
        origin: Where they come from, for people.
        seed: Which requests are drawn, and when they arrive; 0 draws what it always has.
    """

    prompts: Counts
    outputs: Counts
    origin: str
    seed: int = 0

    def text(self) -> str:
        """One line for people."""
        middle, high = (int(np.quantile(self.prompts, share)) for share in (0.5, 0.99))
        return (
            f"prompts p50 {middle}, p99 {high}, max {self.prompts.max()} tokens; "
            f"outputs mean {self.outputs.mean():.1f}; {self.origin}"
        )


def published_prompts(name: str) -> Counts | None:
    """Prompt lengths by what was published of a benchmark's own data set; None where nothing was."""
    if name != _QWEN:
        return None
    least, median, greatest = _PROMPTS
    draws = np.random.default_rng(_SEED).standard_normal(_DRAWN)
    spread = np.where(draws > 0, math.log(greatest / median), math.log(median / least)) / _EXTREME
    return np.clip(median * np.exp(spread * draws), least, greatest).astype(np.int64)


def output_lengths(name: str, own: TokenLengths | None = None) -> Counts:
    """Output lengths of a benchmark, `_DRAWN` of them; as long as is given where it is."""
    most = benchmark(name).max_new_tokens
    draws = np.random.default_rng(_SEED + 1).standard_normal(_DRAWN)
    if name == _QWEN and own is None:
        low, middle, high, greatest = _OUTPUTS
        spread = np.where(draws > 0, high - middle, middle - low) / _P99
        return np.clip(middle + spread * draws, _LEAST, greatest).round().astype(np.int64)
    return _drawn(own or TokenLengths(_MEAN_OUTPUT.get(name, most / 2.0)), draws, _LEAST, most)


def _drawn(given: TokenLengths, draws: Array, least: int, most: int) -> Counts:
    lengths = np.exp(given.log_middle + given.log_spread * draws)
    return np.clip(lengths, least, max(least, most)).round().astype(np.int64)


def own_lengths(name: str, own: OwnLengths, found: Lengths | None, longest: int) -> Lengths:
    """Lengths as a person gives them, and said to be just that; what is not given is as found, or as published.

    Args:
        name: Benchmark.
        own: What is given.
        found: What there is beside it; None where the prompts are given.
        longest: Tokens of a prompt at most.
    """
    given, origins = [], [found.origin] if found else []
    if own.prompts is not None:
        draws = np.random.default_rng(_SEED).standard_normal(_DRAWN)
        prompts = _drawn(own.prompts, draws, 1, longest)
        given.append(f"prompts (mean {own.prompts.mean:g})")
    elif found is not None:
        prompts = found.prompts
    else:
        raise AssertionError(own)
    if own.answers is not None:
        given.append(f"answers (mean {own.answers.mean:g})")
    said = f"lengths of {' and '.join(given)} as you gave them, not the benchmark's"
    return Lengths(prompts, output_lengths(name, own.answers), "; ".join([*origins, said]))


def lengths_of(name: str, counted: Counts | None, where: str, remedy: str = "make that data set") -> Lengths:
    """Lengths for a rehearsal.

    Args:
        name: Benchmark.
        counted: Prompt lengths of the data set at hand, image tokens included; None where there is none.
        where: The data set, for messages.
        remedy: What lets its prompts be counted, for the error.

    Raises:
        ConfigError: Neither a data set nor published lengths are there.
    """
    if counted is not None and len(counted):
        return Lengths(counted, output_lengths(name), f"prompts of {where}")
    prompts = published_prompts(name)
    if prompts is None:
        raise ConfigError(
            f"the prompt lengths of {name} are not published, and {where}",
            f"give --prompt-tokens MEAN[:SPREAD], your own figures, such as --prompt-tokens 300; or {remedy}",
        )
    return Lengths(prompts, output_lengths(name), "prompts as published of the benchmark's data, their shape assumed")


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests on disk, arriving at one a second on average: a replay speeds them up.

    Attributes:
        path: The file: JSON lines as Dynamo's replay reads them (`mooncake`).
        count: How many.
    """

    path: Path
    count: int


BLOCK_TOKENS = 65_536
"""Tokens per entry of `hash_ids`; no two requests share one."""


def write_requests(path: Path, lengths: Lengths, count: int) -> Requests:
    """Write `count` requests; fewer of them are the first of more, so that rates are compared on equal terms.

    Raises:
        OSError: They cannot be written.
    """
    seeds = [_SEED + 2 + column for column in range(3)]
    draws = [np.random.default_rng([seed, lengths.seed] if lengths.seed else seed) for seed in seeds]
    prompts = lengths.prompts[draws[0].integers(0, len(lengths.prompts), count)]
    outputs = lengths.outputs[draws[1].integers(0, len(lengths.outputs), count)]
    arrivals_ms = np.cumsum(draws[2].exponential(1_000.0, count))
    rows = zip(arrivals_ms.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    lines = [json.dumps(_row(index, *row)) for index, row in enumerate(rows)]
    write_atomic(path, "\n".join(lines) + "\n", durable=False)
    return Requests(path, count)


def _row(index: int, at_ms: float, prompt: int, output: int) -> dict[str, object]:
    blocks = -(-prompt // BLOCK_TOKENS)
    ids = list(range(index * 64, index * 64 + blocks))
    return {"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": ids}

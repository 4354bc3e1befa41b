"""`truth.jsonl`: what is right for each sample of a language model's data set.

One sample a line in the order of `prompts.jsonl`: `{"subset": "gpqa_diamond", "answer": "B"}`. `subset` is the name
of the published data set that the question is from; `answer` is a letter, a number, an expression, the id of a
LiveCodeBench question, or the text to compare with (ROUGE).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo_mlperf.benchmark.json_lines import json_lines
from dynamo_mlperf.errors import ConfigError

TRUTH_FILE = "truth.jsonl"


@dataclass(frozen=True)
class Truth:
    """What is right for one sample.

    Attributes:
        subset: The published data set that the question is from, in lower case.
        answer: The right answer; empty where the data set has none.
    """

    subset: str
    answer: str


_WAY_OUT = "make the data set with `dynamo-mlperf dataset SOURCE --benchmark B --out DIR`"


def load_truth(data_set: Path) -> tuple[Truth, ...]:
    """Read `truth.jsonl` of a data set.

    Raises:
        ConfigError: There is none, it is empty, or a line is of another form; names file and line.
    """
    path = data_set / TRUTH_FILE
    rows = tuple(_row(value, where) for where, value in json_lines(path, _WAY_OUT))
    if not rows:
        raise ConfigError(f"{path}: 0 samples", _WAY_OUT)
    return rows


def _row(value: dict[str, Any], where: str) -> Truth:
    subset, answer = value.get("subset"), value.get("answer")
    if not isinstance(subset, str) or not subset or not isinstance(answer, str):
        raise ConfigError(f"{where}: subset and answer have to be texts", 'write {"subset": "...", "answer": "..."}')
    return Truth(subset.lower(), answer)

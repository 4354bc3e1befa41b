"""Rows of the published data sets as prompts and truths of ours.

Columns as the reference implementations of mlcommons/inference b66003e1 read them: `language/gpt-oss-120b`
(`utils/tokenization.py`, `eval_mlperf_accuracy.py`), `language/deepseek-r1` (`mlperf/utils.py`, `eval_accuracy.py`),
`language/llama2-70b` (`processorca.py`, `evaluate-accuracy.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dynamo_mlperf.benchmark.accuracy.tables import Row
from dynamo_mlperf.benchmark.accuracy.truth import Truth
from dynamo_mlperf.errors import ConfigError

_HARMONY_TURN = re.compile(r"<\|start\|>(\w+)<\|message\|>(.*?)<\|end\|>", re.DOTALL)
_HARMONY_EFFORT = re.compile(r"^Reasoning: (\w+)$", re.MULTILINE)
_INSTRUCTIONS = "# Instructions\n\n"


@dataclass(frozen=True)
class Sample:
    """One row.

    Attributes:
        turns: Role and text of each message.
        truth: What is right; None where the table has no right answers.
        effort: How much the model is told to reason (gpt-oss-120b): low, medium or high; empty where nothing says so.
    """

    turns: tuple[tuple[str, str], ...]
    truth: Truth | None
    effort: str = ""


@dataclass(frozen=True)
class Published:
    """How one benchmark's tables are read.

    Attributes:
        columns: Columns that are of use.
        sample: Makes a sample of a row; raises KeyError with the name of a column that is missing.
        sha256: Digests of published files by name, where they are known.
    """

    columns: tuple[str, ...]
    sample: Callable[[Row], Sample]
    sha256: Mapping[str, str] = field(default_factory=dict)


def _text(value: Any) -> str:  # noqa: ANN401 - whatever the table holds
    """A value as text: whole floats as integers, what is missing as nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _truth(row: Row) -> Truth | None:
    """Subset and right answer; None for a table without."""
    if "dataset" not in row:
        return None
    answer = row["ground_truth"] if "ground_truth" in row else row.get("gt_output")
    subset = _text(row["dataset"]).lower()
    return Truth(subset, _text(answer)) if subset else None


def _gpt_oss(row: Row) -> Sample:
    rendered = row.get("text_input")
    if isinstance(rendered, str) and rendered.lstrip().startswith("<|start|>"):
        turns = _HARMONY_TURN.findall(rendered)
        effort = next((_HARMONY_EFFORT.findall(text) for role, text in turns if role == "system"), [])
        asked = [
            ("system", text.removeprefix(_INSTRUCTIONS)) if role == "developer" else (role, text)
            for role, text in turns
            if role != "system"
        ]
        return Sample(tuple(asked), _truth(row), effort[0] if effort else "")
    return Sample((("user", row["prompt"]),), _truth(row))


def _deepseek(row: Row) -> Sample:
    return Sample((("user", row["text_input"]),), _truth(row))


def _llama2(row: Row) -> Sample:
    system = (("system", row["system_prompt"]),) if row.get("system_prompt") else ()
    return Sample((*system, ("user", row["question"])), Truth("open_orca", _text(row["output"])))


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "gpt-oss-120b": Published(("text_input", "prompt", "dataset", "ground_truth"), _gpt_oss),
        "deepseek-r1": Published(("text_input", "dataset", "ground_truth", "gt_output"), _deepseek),
        "llama2-70b-99.9": Published(
            ("system_prompt", "question", "output"),
            _llama2,
            # mlcommons/endpoints ea332753, dataset_manager/predefined/open_orca
            MappingProxyType(
                {
                    "open_orca_gpt4_tokenized_llama.sampled_24576.pkl": (
                        "b64e66e54b6267f79eb4f9ccec52d466bab3ac94747ed258c3b0f337ed166fab"
                    )
                }
            ),
        ),
    }
)
"""The language models' tables, by benchmark."""


def sample_of(benchmark_name: str, row: Row, where: str) -> Sample:
    """The sample that a row holds.

    Raises:
        ConfigError: A column is missing, or holds no text.
    """
    try:
        sample = PUBLISHED[benchmark_name].sample(row)
    except KeyError as error:
        has = ", ".join(row) or "none of those that count"
        raise ConfigError(f"{where}: no column {error.args[0]!r}; it has {has}", "name the published table") from error
    texts = [text for _, text in sample.turns]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{where}: an empty prompt", "name the published table, unchanged")
    try:
        "".join([*texts, sample.truth.answer if sample.truth else ""]).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: half of a surrogate pair", "name the published table, unchanged") from error
    return sample

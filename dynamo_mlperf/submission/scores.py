"""Scores as a submission shows them, `accuracy.txt` and endpoints' `accuracy_results.json`, against the rules.

Forms and names by `ACC_PATTERN` and `checks/accuracy_check.py` of mlcommons/inference b66003e1. The official checker
compares endpoints' scores with a floor for qwen3-vl alone; here every benchmark's are.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE, Scores
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import read_text, strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.benchmark.shapes import Benchmark

_FORMS = {
    "F1_HIERARCHICAL": r'\{[^\n]*"f1":\s*([0-9.]+)[^\n]*\}',
    "exact_match": r"'exact_match':\s([0-9.]+)",
    "ROUGE1": r"'rouge1':\s+'?([0-9.]+)",
    "ROUGE2": r"'rouge2':\s+'?([0-9.]+)",
    "ROUGEL": r"'rougeL':\s+'?([0-9.]+)",
    TOKENS_PER_SAMPLE: r"'tokens_per_sample':\s([0-9.]+)",
}
_HASH = re.compile(r"^hash=(\w+)$", re.MULTILINE)
_NAMES = ("f1", "score", "accuracy", "exact_match")
_MOST_BYTES = 4 * 2**20
_PERCENT = 100.0
_IN_FRACTIONS = frozenset({"gpt-oss-120b"})
"""Benchmarks whose scorers give 0 to 1 where the floor is in percent (mlcommons/endpoints ea332753, its
`evaluation/accuracy_results.py`); those of deepseek-r1 give percent, and a hierarchical F1 is a fraction to both."""


def read_small(path: Path) -> str:
    """The text of a small file.

    Raises:
        MeasureError: It is missing, too large or no text.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise MeasureError(f"{path} has {path.stat().st_size} bytes", "put back the file as it was written")
        return read_text(path)
    except (OSError, ValueError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", "run the test again") from error


def read_accuracy_text(path: Path, rules: Benchmark) -> Scores:
    """The scores in an `accuracy.txt`.

    Raises:
        MeasureError: It cannot be read, or says a metric twice.
    """
    text = read_small(path)
    metrics = {}
    for name, form in _FORMS.items():
        found = set(re.findall(form, text))
        if len(found) > 1:
            raise MeasureError(f"{path} gives {name} as {' and as '.join(sorted(found))}", "score the log again")
        if found:
            metrics[name] = _number(path, found.pop())
    if len(hashes := set(_HASH.findall(text))) > 1:
        raise MeasureError(f"{path} has {len(hashes)} different hashes", "score the log again")
    return Scores(rules.name, 0, metrics, hashes.pop() if hashes else "")


def _number(path: Path, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise MeasureError(f"{path} holds {text!r}, which is no number", "score the log again") from None


def read_endpoints_scores(path: Path, rules: Benchmark) -> Scores:
    """The scores in an `accuracy_results.json`: one metric over all its data sets.

    Each data set counts by its own samples, repeats left out: gpt-oss-120b has three.

    Raises:
        MeasureError: It cannot be read, or a data set has no score.
    """
    try:
        entries = [entry for entry in strict_json(read_small(path))["accuracy_scores"] if _counts(entry)]
        weights = [int(entry.get("unit_samples", entry["total_samples"])) for entry in entries]
        values = [_score(entry["score"]) for entry in entries]
        samples = sum(int(entry["total_samples"]) for entry in entries)
        partial = [str(entry.get("dataset_name")) for entry in entries if entry.get("complete") is False]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise MeasureError(f"{path} holds no scores of endpoints: {error!r}", "run the accuracy phase again") from error
    if not sum(weights) or not all(math.isfinite(value) for value in values):
        raise MeasureError(f"{path} holds no score", "run the accuracy phase again")
    if partial:
        raise MeasureError(f"{path}: {', '.join(partial)} was not scored whole", "run the accuracy phase again")
    name = next(iter(rules.accuracy_floor[rules.scenarios[0]]))
    value = sum(weight * one for weight, one in zip(weights, values, strict=True)) / sum(weights)
    if rules.name in _IN_FRACTIONS:
        value *= _PERCENT
    return Scores(rules.name, samples, {name: value, **_tokens(entries)}, "")


def _counts(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("dataset_type", "accuracy") == "accuracy")


def _score(score: Any) -> float:  # noqa: ANN401 - whatever the file holds
    """A number, or an object that names it as the reference's scorers do."""
    if isinstance(score, dict):
        score = [score[key] for key in _NAMES if key in score][0]  # noqa: RUF015 - IndexError is caught with KeyError
    return float(score)


def _tokens(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Mean output tokens per sample, where endpoints counted them for each data set."""
    means = [(entry.get("output_sequence_lengths") or {}).get("avg") for entry in entries]
    if any(mean is None for mean in means):
        return {}
    total = sum(int(entry["total_samples"]) for entry in entries)
    counted = sum(float(str(mean)) * int(entry["total_samples"]) for mean, entry in zip(means, entries, strict=True))
    return {TOKENS_PER_SAMPLE: counted / total}

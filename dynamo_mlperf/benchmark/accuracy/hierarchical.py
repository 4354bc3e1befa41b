"""Hierarchical F1 of product categories: the score of qwen3-vl-235b-a22b.

As the reference scores (mlcommons/inference b66003e1, `multimodal/qwen3-vl`, `evaluation.py` and `schema.py`): paths
are split at " > " and each level is stripped of blanks; what counts is the length of the common beginning, summed over
all samples against the summed lengths. Letters must agree in case. An answer that is not exactly the wanted JSON object
counts as a wrong path as long as the true one.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dynamo_mlperf.benchmark.accuracy.answers import Answer, Progress
from dynamo_mlperf.benchmark.catalogue import Catalogue

_SEPARATOR = " > "


class _Product(BaseModel):
    """What the model has to answer; the same three keys and no other, converted as pydantic converts JSON."""

    model_config = ConfigDict(extra="forbid")

    category: str
    brand: str
    is_secondhand: bool


def levels(path: str) -> list[str]:
    """The levels of a category path, outermost first; at least one, which may be empty."""
    return [level.strip() for level in path.split(_SEPARATOR)]


def common_levels(left: list[str], right: list[str]) -> int:
    """How many levels two paths share, counted from the outermost."""
    shared = 0
    for mine, other in zip(left, right, strict=False):
        if mine != other:
            break
        shared += 1
    return shared


def answered_category(answer: bytes) -> str | None:
    """The category that an answer names; None where the answer is not the wanted JSON object."""
    try:
        return _Product.model_validate_json(answer).category
    except ValidationError:
        return None


class HierarchicalF1:
    """Adds up the levels of all answers to a catalogue."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._shared = self._answered = self._true = self._unreadable = 0

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        truth = levels(self._catalogue[answer.index].category)
        category = answered_category(answer.data)
        self._true += len(truth)
        if category is None:
            self._unreadable += 1
            self._answered += len(truth)
            return
        given = levels(category)
        self._answered += len(given)
        self._shared += common_levels(given, truth)

    def finish(self, progress: Progress) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def not_scored(self) -> dict[str, int]:
        """Every answer is scored."""
        return {}

    def metrics(self) -> dict[str, float]:
        """`F1_HIERARCHICAL`, 0 to 1."""
        if not self._shared:
            return {"F1_HIERARCHICAL": 0.0}
        precision, recall = self._shared / self._answered, self._shared / self._true
        return {"F1_HIERARCHICAL": 2 * (precision * recall) / (precision + recall)}

    def details(self) -> dict[str, Any]:
        """The sums behind it."""
        return {
            "levels_shared": self._shared,
            "levels_answered": self._answered,
            "levels_true": self._true,
            "unreadable_answers": self._unreadable,
        }

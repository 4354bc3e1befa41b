"""What an accuracy log is worth: metrics, the lines of `accuracy.txt`, and what falls short of the rules.

The names of metrics and the form of the lines are those that the submission checker parses (`ACC_PATTERN` and
`AccuracyCheck` of mlcommons/inference b66003e1, `tools/submission/submission_checker`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynamo_mlperf.benchmark.shapes import Benchmark
from dynamo_mlperf.errors import ConfigError

ACCURACY_TXT = "accuracy.txt"

TOKENS_PER_SAMPLE = "TOKENS_PER_SAMPLE"
"""The checker's name for the mean number of output tokens."""

_PRINTED = {
    "exact_match": "exact_match",
    "ROUGE1": "rouge1",
    "ROUGE2": "rouge2",
    "ROUGEL": "rougeL",
    TOKENS_PER_SAMPLE: "tokens_per_sample",
}
"""How `accuracy.txt` names the checker's metrics of the language models."""


@dataclass(frozen=True)
class Shortfall:
    """A metric outside what the rules allow.

    Attributes:
        metric: The checker's name of it.
        wanted: The bound, as people read it.
        got: The value, or why there is none.
    """

    metric: str
    wanted: str
    got: str

    def text(self) -> str:
        """One line for people."""
        return f"{self.metric}: wanted {self.wanted}, got {self.got}"


@dataclass(frozen=True)
class Scores:
    """The scores of one accuracy log.

    Attributes:
        benchmark: The benchmark's name.
        samples: Answers in the log, one a sample.
        metrics: Value by the checker's name (`F1_HIERARCHICAL`, `exact_match`, `ROUGE1`, `TOKENS_PER_SAMPLE`, ...),
            rounded as the reference prints it: it is what `accuracy.txt` says and what the checker compares.
        log_sha256: SHA-256 of the whole accuracy log, as hex digits.
        details: Counts behind the metrics, as plain JSON values; for people and records.
        not_scored: Answers that nobody scored, by subset; `exact_match` is absent from the metrics while there are any.
    """

    benchmark: str
    samples: int
    metrics: Mapping[str, float]
    log_sha256: str
    details: Mapping[str, Any] = field(default_factory=dict)
    not_scored: Mapping[str, int] = field(default_factory=dict)

    def text_lines(self) -> list[str]:
        """The lines of `accuracy.txt`, the hash last; without a score that was not made, the checker refuses them."""
        missing = [f"not scored: {count} answers of {subset}" for subset, count in self.not_scored.items()]
        return ["Results", "", *missing, self._result_line(), "", f"hash={self.log_sha256}"]

    def text(self) -> str:
        """The whole of `accuracy.txt`."""
        return "\n".join(self.text_lines()) + "\n"

    def _result_line(self) -> str:
        if "F1_HIERARCHICAL" in self.metrics:
            return f'{{"f1": {plain_number(self.metrics["F1_HIERARCHICAL"])}}}'
        parts = [f"'{_PRINTED[name]}': {plain_number(value)}" for name, value in self.metrics.items()]
        return "{" + ", ".join([*parts, f"'num-samples': {self.samples}"]) + "}"

    def shortfalls(self, rules: Benchmark, scenario: str) -> tuple[Shortfall, ...]:
        """What is outside the rules: floors of accuracy, then the bounds of tokens per sample.

        Args:
            rules: The benchmark by the rules of a round.
            scenario: One of its scenarios: Interactive can have a floor of its own.

        Raises:
            ConfigError: The benchmark has no such scenario in that round.
        """
        if scenario not in rules.accuracy_floor:
            raise ConfigError(
                f"{rules.name} has no {scenario} scenario in that round; it has {', '.join(rules.accuracy_floor)}",
                "name one of them",
            )
        floors = dict(rules.accuracy_floor[scenario])
        lowest, highest = rules.tokens_per_sample
        if lowest is not None:
            floors[TOKENS_PER_SAMPLE] = lowest
        short = [self._short(name, f">= {floor:.10g}", floor, None) for name, floor in floors.items()]
        if highest is not None:
            short.append(self._short(TOKENS_PER_SAMPLE, f"<= {highest:.10g}", None, highest))
        return tuple(dict.fromkeys(entry for entry in short if entry is not None))

    def _short(self, name: str, wanted: str, lowest: float | None, highest: float | None) -> Shortfall | None:
        if name not in self.metrics:
            count = sum(self.not_scored.values())
            return Shortfall(name, wanted, f"no score: {count} answers were not scored" if count else "no score")
        value = self.metrics[name]
        holds = (lowest is None or value >= lowest) and (highest is None or value <= highest)
        return None if holds else Shortfall(name, wanted, plain_number(value))

    def as_json(self) -> dict[str, Any]:
        """The scores as plain JSON values."""
        return {
            "benchmark": self.benchmark,
            "samples": self.samples,
            "scores": dict(self.metrics),
            "not_scored": dict(self.not_scored),
            "details": dict(self.details),
            "log_sha256": self.log_sha256,
        }


def plain_number(value: float) -> str:
    """A number as the checker's patterns read it: digits and a point, never an exponent.

    `1e-05` would be read as 1, and what NumPy 2 prints (`np.float64(44.4)`) not at all.
    """
    shown = json.dumps(float(value))
    return f"{float(value):.12f}" if "e" in shown else shown

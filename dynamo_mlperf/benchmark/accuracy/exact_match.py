"""Exact match with answer extraction: the score of gpt-oss-120b and deepseek-r1.

gpt-oss-120b: AIME25 is asked 8 times, GPQA 5 times, LiveCodeBench v6 3 times; the score is the sum of correct answers
over repeats, in percent of the most it can be (mlcommons/inference b66003e1,
`language/gpt-oss-120b/eval_mlperf_accuracy.py`). deepseek-r1: the percentage of all answers that are right, over five
subsets (`language/deepseek-r1/eval_accuracy.py`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dynamo_mlperf.benchmark.accuracy import extraction, math_equal
from dynamo_mlperf.benchmark.accuracy.answers import Answer, Progress
from dynamo_mlperf.benchmark.accuracy.code_tests import CodeJudge, CodeVerdict
from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE
from dynamo_mlperf.benchmark.accuracy.truth import Truth
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.confined import run_confined

_MATH_BATCH = 64
_MATH_START_S = 60
_WHY_KEPT = 20
_CHOICES = {"gpqa": "D", "mmlu_pro": "J", "mmlu": "J"}


class Reader(Protocol):
    """Makes text of a logged answer; see `tokens.py`."""

    def read(self, answer: Answer) -> tuple[str, int]:
        """Text and number of tokens."""


@dataclass(frozen=True)
class Style:
    """What the two benchmarks do differently.

    Attributes:
        kinds: Parts of subset names by which answers are told apart; the first that fits counts.
        choice: Finds the letter of a multiple-choice answer.
        code: Finds the code.
        repeats: How often each subset is asked; 1 where it is not listed.
        digits: Digits after the point that the reference prints of the score; None for all.
    """

    kinds: tuple[str, ...]
    choice: Callable[[str, str], str | None]
    code: Callable[[str], str | None]
    repeats: Mapping[str, int]
    digits: int | None


DEEPSEEK_STYLE = Style(
    ("gpqa", "mmlu_pro", "math500", "aime", "livecodebench"), extraction.choice, extraction.code, {}, None
)
GPT_OSS_STYLE = Style(
    ("gpqa", "mmlu_pro", "math500", "aime", "livecodebench", "mmlu"),
    extraction.choice_in_channels,
    extraction.code_in_channels,
    {"aime25": 8, "gpqa_diamond": 5, "livecodebench_v6": 3},
    3,
)


class ExactMatch:
    """Counts right answers by subset.

    Args:
        truth: What is right for each sample.
        reader: Makes text of an answer.
        style: Of the benchmark.
        judge: Runs code; None = code is not scored.
    """

    def __init__(self, truth: Sequence[Truth], reader: Reader, style: Style, judge: CodeJudge | None) -> None:
        self._truth, self._reader, self._style, self._judge = truth, reader, style, judge
        self._asked: Counter[str] = Counter()
        self._right: Counter[str] = Counter()
        self._without_answer: Counter[str] = Counter()
        self._not_scored: Counter[str] = Counter()
        self._tokens = 0
        self._expressions: list[tuple[str, str, str]] = []
        self._running: list[tuple[str, str, Future[CodeVerdict]]] = []
        self._why_not: list[str] = []

    def add(self, answer: Answer) -> None:
        """Take one answer."""
        text, tokens = self._reader.read(answer)
        truth = self._truth[answer.index]
        self._tokens += tokens
        self._asked[truth.subset] += 1
        kind = self._kind(truth.subset)
        if kind in _CHOICES:
            self._add_choice(text, truth, _CHOICES[kind])
        elif kind == "aime":
            self._add_number(text, truth)
        elif kind == "math500":
            self._add_expression(text, truth)
        else:
            self._add_code(text, truth)

    def _kind(self, subset: str) -> str:
        kind = next((kind for kind in self._style.kinds if kind in subset), None)
        if kind is None:
            raise ConfigError(
                f"truth.jsonl names a subset {subset!r}, and nobody knows how to score it",
                f"use names that hold one of {', '.join(self._style.kinds)}",
            )
        return kind

    def _add_choice(self, text: str, truth: Truth, last_letter: str) -> None:
        letter = self._style.choice(text, last_letter)
        self._note(truth, found=letter is not None, right=letter is not None and letter == truth.answer.upper())

    def _add_number(self, text: str, truth: Truth) -> None:
        number = extraction.aime_number(text)
        try:
            right = number is not None and number == int(truth.answer)
        except ValueError:
            right = False
        self._note(truth, found=number is not None, right=right)

    def _add_expression(self, text: str, truth: Truth) -> None:
        expression = extraction.boxed(text)
        if not expression or not truth.answer:
            self._note(truth, found=expression is not None, right=False)
            return
        self._expressions.append((truth.answer, expression, truth.subset))
        if len(self._expressions) >= _MATH_BATCH:
            self._compare_expressions()

    def _compare_expressions(self) -> None:
        """Compare what waits; a process that dies costs only the pair that it died of."""
        waiting, self._expressions = self._expressions, []
        while waiting:
            done = run_confined(
                [sys.executable, "-I", str(Path(math_equal.__file__))],
                "".join(json.dumps(pair[:2]) + "\n" for pair in waiting),
                timeout_s=_MATH_START_S + math_equal.SECONDS_EACH * len(waiting),
            )
            ready, *verdicts = done.answer.split() or [""]
            if ready != math_equal.READY:
                raise ConfigError(
                    f"the comparison of mathematical answers did not start (status {done.status})",
                    "pip install 'dynamo-mlperf[accuracy]'",
                )
            for (*_, subset), verdict in zip(waiting, verdicts, strict=False):
                self._right[subset] += verdict == "1"
            waiting = waiting[len(verdicts) + 1 :]

    def _add_code(self, text: str, truth: Truth) -> None:
        code = self._style.code(text)
        if not code or not truth.answer:
            self._note(truth, found=code is not None, right=False)
            return
        if self._judge is None or not self._judge.has_tests(truth.answer):
            self._not_scored[truth.subset] += 1
            return

        self._running.append((truth.subset, truth.answer, self._judge.submit(code, truth.answer)))

    def _note(self, truth: Truth, *, found: bool, right: bool) -> None:
        self._without_answer[truth.subset] += not found
        self._right[truth.subset] += right

    def finish(self, progress: Progress) -> None:
        """Wait for what still runs; call once, after the last answer."""
        self._compare_expressions()
        for done, (subset, question, future) in enumerate(self._running, start=1):
            verdict = future.result()
            self._right[subset] += verdict.passed
            if not verdict.passed and len(self._why_not) < _WHY_KEPT:
                self._why_not.append(f"{question}: {verdict.why}")
            progress(done, len(self._running))

    def close(self) -> None:
        """End the judge's threads."""
        if self._judge is not None:
            self._judge.close()

    def metrics(self) -> dict[str, float]:
        """`exact_match` in percent, unless answers were not scored, and `TOKENS_PER_SAMPLE`."""
        tokens = {TOKENS_PER_SAMPLE: self._tokens / self._asked.total()}
        if self._not_scored:
            return tokens
        return {"exact_match": self._exact_match(), **tokens}

    def _exact_match(self) -> float:
        repeats = {subset: self._style.repeats.get(subset, 1) for subset in sorted(self._asked)}
        right = sum(self._right[subset] / times for subset, times in repeats.items())
        most = sum(self._asked[subset] / times for subset, times in repeats.items())
        percent = right / most * 100 if self._style.repeats else 100.0 * right / most
        return percent if self._style.digits is None else round(percent, self._style.digits)

    def not_scored(self) -> dict[str, int]:
        """Answers that nobody scored, by subset."""
        return dict(self._not_scored)

    def details(self) -> dict[str, Any]:
        """Counts by subset, and why the first answers of code did not pass."""
        subsets = {
            subset: {
                "asked": asked,
                "right": self._right[subset],
                "without_answer": self._without_answer[subset],
                "repeats": self._style.repeats.get(subset, 1),
            }
            for subset, asked in sorted(self._asked.items())
        }
        return {"subsets": subsets, "code_that_failed": list(self._why_not)}

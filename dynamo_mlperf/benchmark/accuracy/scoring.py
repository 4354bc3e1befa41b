"""Score an accuracy log: the benchmark's own scorer over every answer, each sample exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dynamo_mlperf.benchmark.accuracy.answers import Answer, AnswerLog, Coverage, Progress
from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.benchmark.accuracy.tokens import TextAnswers, TokenAnswers
from dynamo_mlperf.benchmark.accuracy.truth import TRUTH_FILE
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.benchmark.tiny_catalogue import CATALOGUE_FILE
from dynamo_mlperf.process.spread import cores


class Scorer(Protocol):
    """What each benchmark brings along: it takes the answers in the order of the log."""

    def add(self, answer: Answer) -> None:
        """Take one answer."""

    def finish(self, progress: Progress) -> None:
        """Score what waits; called once, after the last answer."""

    def close(self) -> None:
        """End threads and processes, whether or not it came to an end."""

    def metrics(self) -> dict[str, float]:
        """Value by the checker's name, rounded as the reference prints it."""

    def not_scored(self) -> dict[str, int]:
        """Answers that nobody scored, by subset."""

    def details(self) -> dict[str, Any]:
        """Counts behind the metrics."""


@dataclass(frozen=True)
class _Means:
    """What scoring is done with; see `score_accuracy_log`."""

    data_set: Path
    tokenizer: Path | None
    token_bytes: int
    run_code: bool
    workers: int

    def reader(self, *, special: bool) -> TextAnswers | TokenAnswers:
        """Makes text of answers; `special` keeps special tokens in it."""
        if self.tokenizer is None:
            return TextAnswers()
        return TokenAnswers(self.tokenizer, self.token_bytes, special=special)


def _qwen3_vl(means: _Means) -> tuple[Scorer, int]:
    from dynamo_mlperf.benchmark.accuracy.hierarchical import HierarchicalF1
    from dynamo_mlperf.benchmark.catalogue import load_catalogue

    catalogue = load_catalogue(means.data_set)
    return HierarchicalF1(catalogue), len(catalogue)


def _exact_match(means: _Means, *, channels: bool) -> tuple[Scorer, int]:
    from dynamo_mlperf.benchmark.accuracy.code_tests import CodeJudge
    from dynamo_mlperf.benchmark.accuracy.exact_match import DEEPSEEK_STYLE, GPT_OSS_STYLE, ExactMatch
    from dynamo_mlperf.benchmark.accuracy.truth import load_truth

    truth, reader = load_truth(means.data_set), means.reader(special=channels)
    judge = CodeJudge(means.data_set, means.workers) if means.run_code else None
    return ExactMatch(truth, reader, GPT_OSS_STYLE if channels else DEEPSEEK_STYLE, judge), len(truth)


def _llama2(means: _Means) -> tuple[Scorer, int]:
    from dynamo_mlperf.benchmark.accuracy.rouge import Rouge
    from dynamo_mlperf.benchmark.accuracy.truth import load_truth

    truth = load_truth(means.data_set)
    return Rouge(truth, means.reader(special=False), means.workers), len(truth)


_SCORERS: dict[str, Callable[[_Means], tuple[Scorer, int]]] = {
    "qwen3-vl-235b-a22b": _qwen3_vl,
    "gpt-oss-120b": partial(_exact_match, channels=True),
    "deepseek-r1": partial(_exact_match, channels=False),
    "llama2-70b-99.9": _llama2,
}
"""Makes a benchmark's scorer, and says how many samples its data set has."""
_BY_CATALOGUE = frozenset({"qwen3-vl-235b-a22b"})


def truth_file(benchmark_name: str) -> str:
    """The file of a data set that holds a benchmark's truth."""
    return CATALOGUE_FILE if benchmark_name in _BY_CATALOGUE else TRUTH_FILE


def score_accuracy_log(
    benchmark_name: str,
    accuracy_log: Path,
    data_set: Path,
    tokenizer: Path | None = None,
    *,
    token_bytes: int = 4,
    run_code: bool = True,
    workers: int = 0,
    progress: Progress = lambda _done, _total: None,
) -> Scores:
    """Score what a model answered.

    Args:
        benchmark_name: As `schema rules` names it.
        accuracy_log: `mlperf_log_accuracy.json` as LoadGen wrote it, not truncated.
        data_set: Directory of the data set that the test was run with: `catalogue.jsonl`, or `truth.jsonl`.
        tokenizer: The model's `tokenizer.json` (or its directory) where the log holds token ids; None where it holds
            UTF-8 text, as for qwen3-vl-235b-a22b.
        token_bytes: Bytes of a token id in the log, 4 or 8.
        run_code: Run the code that the model wrote; without it such answers are reported as not scored.
        workers: Processes to score with; 0 = one a core.
        progress: Told bytes read and bytes in all, then answers scored and answers in all.

    Raises:
        MeasureError: The log is empty, truncated, or has other than one answer to each sample.
        ConfigError: No such benchmark, no such data set, no such tokenizer, or one that does not fit the log.
    """
    log = AnswerLog(accuracy_log, progress)
    means = _Means(data_set, tokenizer, token_bytes, run_code, workers or cores())
    scores = _scored(benchmark_name, log, accuracy_log, means, progress)
    return replace(scores, log_sha256=log.sha256)


def score_answers(benchmark_name: str, answers: Iterable[Answer], source: Path, data_set: Path) -> Scores:
    """Score answers in text that lie in no log of LoadGen's; there is no hash then.

    Args:
        benchmark_name: As `schema rules` names it.
        answers: One to each sample, in any order.
        source: Where they come from, for messages.
        data_set: Directory of the data set that the test was run with.

    Raises:
        MeasureError: There is other than one answer to each sample.
        ConfigError: No such benchmark, or no such data set.
    """
    means = _Means(data_set, None, 4, run_code=False, workers=cores())
    return _scored(benchmark_name, answers, source, means, lambda _done, _total: None)


def _scored(benchmark_name: str, answers: Iterable[Answer], source: Path, means: _Means, progress: Progress) -> Scores:
    name = benchmark(benchmark_name).name
    scorer, samples = _SCORERS[name](means)
    coverage = Coverage(source, samples)
    try:
        for answer in answers:
            coverage.note(answer.index)
            scorer.add(answer)
        coverage.check()
        scorer.finish(progress)
    finally:
        scorer.close()
    return Scores(name, samples, scorer.metrics(), "", scorer.details(), scorer.not_scored())

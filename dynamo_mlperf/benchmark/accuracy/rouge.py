"""ROUGE-1, ROUGE-2 and ROUGE-L: the score of llama2-70b-99.9.

As the reference scores (mlcommons/inference b66003e1, `language/llama2-70b/evaluate-accuracy.py`): F-measures of the
package rouge-score with Porter's stemmer, their mean in percent, to four digits. The reference breaks texts into
sentences first; a break falls where there is no letter or digit, and only those make words, so ROUGE-1, -2 and -L are
the same without. What does depend on it (ROUGE-Lsum, characters) the v6.1 checker does not ask for, and it would need
nltk's data on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from dynamo_mlperf.benchmark.accuracy.answers import Answer, Progress
from dynamo_mlperf.benchmark.accuracy.exact_match import Reader
from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE
from dynamo_mlperf.benchmark.accuracy.truth import Truth
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.spread import Spread

_KINDS = ("ROUGE1", "ROUGE2", "ROUGEL")
_BATCH = 64
_STEMS = 1 << 18
_DIGITS = 4


@cache
def _parts() -> tuple[Callable[[str], list[str]], Callable[[float, float], float]]:
    """rouge-score's own words of a text, each word stemmed once a process, and its F-measure.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        from nltk.stem.porter import PorterStemmer
        from rouge_score import tokenize
        from rouge_score.scoring import fmeasure
    except ImportError as error:
        raise ConfigError(
            f"ROUGE needs the package {error.name}, which is not installed", "pip install 'dynamo-mlperf[accuracy]'"
        ) from error

    class _Stems:
        """What rouge-score takes for a stemmer."""

        stem = staticmethod(lru_cache(_STEMS)(PorterStemmer().stem))

    return partial(tokenize.tokenize, stemmer=_Stems), fmeasure


def rouge_of(pairs: Sequence[tuple[str, str]]) -> list[tuple[float, ...]]:
    """F-measures of ROUGE-1, -2 and -L of each (truth, answer), to the bit those of rouge-score's `RougeScorer`."""
    words, _ = _parts()
    return [_of_words(words(truth.strip()), words(answer.strip())) for truth, answer in pairs]


def _of_words(truth: list[str], answer: list[str]) -> tuple[float, float, float]:
    of_one = (Counter(truth) & Counter(answer)).total()
    of_two = (Counter(pairwise(truth)) & Counter(pairwise(answer))).total()
    in_order = common_in_order(truth, answer)
    return (
        _f_measure(of_one, len(truth), len(answer)),
        _f_measure(of_two, len(truth) - 1, len(answer) - 1),
        _f_measure(in_order, len(truth), len(answer)),
    )


def _f_measure(common: int, of_truth: int, of_answer: int) -> float:
    _, fmeasure = _parts()
    return fmeasure(common / max(of_answer, 1), common / max(of_truth, 1))


def common_in_order(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence.

    A row of the usual table is one number of a bit a word (H. Hyyro, "Bit-parallel LCS-length computation revisited",
    2004): rouge-score fills the table cell by cell, which for answers of 200 words takes most of the time of scoring.
    """
    places: dict[str, int] = {}
    for number, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << number
    every = (1 << len(left)) - 1
    row = every
    for word in right:
        if met := row & places.get(word, 0):
            row = (row + met | row - met) & every
    return len(left) - row.bit_count()


class Rouge:
    """Scores answers in batches, in processes of their own where there is more than one core.

    Args:
        truth: What is right for each sample.
        reader: Makes text of an answer.
        workers: Processes.
    """

    def __init__(self, truth: Sequence[Truth], reader: Reader, workers: int) -> None:
        _parts()
        self._truth, self._reader = truth, reader
        self._spread = Spread(rouge_of, workers)
        self._waiting: list[tuple[str, str]] = []
        self._scores: list[tuple[float, ...]] = []
        self._tokens = 0
        self._answers = 0

    def add(self, answer: Answer) -> None:
        """Take one answer."""
        text, tokens = self._reader.read(answer)
        self._tokens += tokens
        self._answers += 1
        self._waiting.append((self._truth[answer.index].answer, text))
        if len(self._waiting) >= _BATCH:
            self._hand_on()

    def _hand_on(self) -> None:
        self._keep(self._spread.put(self._waiting))
        self._waiting = []

    def _keep(self, batches: list[list[tuple[float, ...]]]) -> None:
        for scores in batches:
            self._scores += scores

    def finish(self, progress: Progress) -> None:
        """Score what waits; call once, after the last answer."""
        if self._waiting:
            self._hand_on()
        for scores in self._spread.rest():
            self._keep([scores])
            progress(len(self._scores), self._answers)

    def close(self) -> None:
        """End the processes."""
        self._spread.close()

    def metrics(self) -> dict[str, float]:
        """`ROUGE1`, `ROUGE2`, `ROUGEL` in percent, and `TOKENS_PER_SAMPLE`."""
        columns = zip(_KINDS, zip(*self._scores, strict=True), strict=True)
        scores = {name: float(np.round(np.mean(column) * 100, _DIGITS)) for name, column in columns}
        return {**scores, TOKENS_PER_SAMPLE: round(self._tokens / self._answers, 1)}

    def not_scored(self) -> dict[str, int]:
        """Every answer is scored."""
        return {}

    def details(self) -> dict[str, Any]:
        """Tokens in all."""
        return {"output_tokens": self._tokens}

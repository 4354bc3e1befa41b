"""ROUGE-1, ROUGE-2 and ROUGE-L: the score of llama2-70b-99.9.

As the reference scores (mlcommons/inference b66003e1, `language/llama2-70b/evaluate-accuracy.py`): F-measures of the
package rouge-score with Porter's stemmer, their mean in percent, to four digits. The reference breaks texts into
sentences first; a break falls where there is no letter or digit, and only those make words, so ROUGE-1, -2 and -L are
the same without. What does depend on it (ROUGE-Lsum, characters) the v6.1 checker does not ask for, and it would need
nltk's data on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.accuracy.answers import Answer, Progress
from dynamo_mlperf.benchmark.accuracy.exact_match import Reader
from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE
from dynamo_mlperf.benchmark.accuracy.truth import Truth
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.spread import Spread

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

_KINDS = {"ROUGE1": "rouge1", "ROUGE2": "rouge2", "ROUGEL": "rougeL"}
_BATCH = 64
_STEMS = 1 << 18
_DIGITS = 4


@cache
def _scorer() -> RougeScorer:
    """One a process; words are stemmed once."""
    try:
        from nltk.stem.porter import PorterStemmer
        from rouge_score import tokenize
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            f"ROUGE needs the package {error.name}, which is not installed", "pip install 'dynamo-mlperf[accuracy]'"
        ) from error

    class _Stems:
        """What rouge-score takes for a stemmer."""

        stem = staticmethod(lru_cache(_STEMS)(PorterStemmer().stem))

    class _Words(Tokenizer):  # type: ignore[misc]
        """rouge-score's own words, with stems that are remembered."""

        def tokenize(self, text: str) -> list[str]:
            words: list[str] = tokenize.tokenize(text, _Stems)
            return words

    return RougeScorer(list(_KINDS.values()), tokenizer=_Words())


def rouge_of(pairs: Sequence[tuple[str, str]]) -> list[tuple[float, ...]]:
    """F-measures of ROUGE-1, -2 and -L of each (truth, answer)."""
    scorer = _scorer()
    found = (scorer.score(truth.strip(), answer.strip()) for truth, answer in pairs)
    return [tuple(score[kind].fmeasure for kind in _KINDS.values()) for score in found]


class Rouge:
    """Scores answers in batches, in processes of their own where there is more than one core.

    Args:
        truth: What is right for each sample.
        reader: Makes text of an answer.
        workers: Processes.
    """

    def __init__(self, truth: Sequence[Truth], reader: Reader, workers: int) -> None:
        _scorer()
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

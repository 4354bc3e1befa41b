"""Scores made again from the recorded answers, where the data set with the truth is at hand.

What a record says of its own score is the one thing that its hash and its counts do not prove. Where it cannot be made
again, that is said, in the tree too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT, Scores, plain_number
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log, score_answers
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, MeasureError
from dynamo_mlperf.load.directory import UNREADABLE
from dynamo_mlperf.load.endpoints_answers import accuracy_answers
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.records import ACCURACY, ENDPOINTS, RESULT, accuracy_results, read_record
from dynamo_mlperf.submission.scores import read_accuracy_text, read_endpoints_scores
from dynamo_mlperf.submission.truth_at_hand import (
    DataSetMissingError,
    NamedDataSetError,
    data_set_of,
    own_evaluators,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.submission.records import TestRecord
    from dynamo_mlperf.submission.truth_at_hand import Rescoring

NOT_AGAIN = "not scored again"
_NOT_RUN = "in code not run"
_CLOSE = 1e-6
"""Scores that differ by less are the same: files hold what was printed."""
_PERCENT = 100.0


@dataclass(frozen=True)
class Again:
    """What became of one test's scores: a sentence for the record, and what stands in the way."""

    said: str
    findings: tuple[Finding, ...] = ()


def score_again(record: TestRecord, rules: Benchmark, how: Rescoring) -> Again:
    """Score the recorded answers of an accuracy test or of TEST07, and hold that against the recorded scores.

    Records that cannot be read are a finding, whatever is wrong with them.

    Raises:
        NamedDataSetError: A data set that the caller named cannot be used.
    """
    where, wanted = str(record.directory), "records and answers that can be scored"
    if not how.wanted:
        return Again(f"{NOT_AGAIN}: as was asked for")
    if own_evaluators(record):
        return Again(f"{NOT_AGAIN}: evaluators of endpoints' own scored it")
    try:
        return _score_again(record, rules, how)
    except NamedDataSetError:
        raise
    except DataSetMissingError as problem:
        return Again(f"{NOT_AGAIN}: {problem.what}")
    except DynamoMlperfError as problem:
        action = problem.action or f"run {record.name} again"
        return Again(NOT_AGAIN, (Finding(where, record.what, wanted, problem.what, action),))
    except UNREADABLE as problem:
        got = f"{type(problem).__name__}: {problem}"
        action = f"put the original files of {record.name} back or run it again"
        return Again(NOT_AGAIN, (Finding(where, record.what, wanted, got, action),))


def _score_again(record: TestRecord, rules: Benchmark, how: Rescoring) -> Again:
    data_set = data_set_of(record, how)
    recorded = _recorded(record, rules)
    try:
        found = _scores(record, data_set, how)
    except ConfigError as problem:  # a package that is missing, a data set that does not fit
        if (given := how.data_sets.get(record.benchmark)) is not None:
            raise NamedDataSetError(record.benchmark, given, problem.what, problem.action) from problem
        raise DataSetMissingError(problem.what, problem.action) from problem
    findings = tuple(_differing(record, recorded, found))
    left = sum(found.not_scored.values())
    said = f"scored again from {found.samples} answers"
    return Again(f"{said}, {left} {_NOT_RUN}: the recorded score is possible" if left else said, findings)


def scores_as_recorded(record: Path) -> list[str]:
    """What a result's record in a tree says of scores that were taken as recorded, in full or in part."""
    try:
        said = read_record(record).get("scored_again")
    except ConfigError:  # the gate tells of it
        return []
    tests = said.items() if isinstance(said, dict) else ()
    return [f"scores of {name}: {how}" for name, how in tests if NOT_AGAIN in str(how) or _NOT_RUN in str(how)]


def _scores(record: TestRecord, data_set: Path, how: Rescoring) -> Scores:
    if record.client == ENDPOINTS:
        return score_answers(record.benchmark, accuracy_answers(record.directory), record.directory, data_set)
    return score_accuracy_log(record.benchmark, record.directory / ACCURACY_LOG, data_set, run_code=how.run_code)


def _recorded(record: TestRecord, rules: Benchmark) -> Mapping[str, float]:
    """The scores that the record claims."""
    if record.client == ENDPOINTS:
        return read_endpoints_scores(accuracy_results(record), rules).metrics
    if record.name == ACCURACY:
        return read_accuracy_text(record.directory / ACCURACY_TXT, rules).metrics
    scores = record.result.get("scores")
    if not isinstance(scores, dict) or not all(type(value) in {int, float} for value in scores.values()):
        raise MeasureError(f"{record.directory / RESULT}: the scores are {scores!r:.80}, and have to be numbers")
    return {name: float(value) for name, value in scores.items()}


def _differing(record: TestRecord, recorded: Mapping[str, float], found: Scores) -> list[Finding]:
    """Recorded scores that these answers do not have; with code that was not run, that they cannot have."""
    action = (
        f"put the original files of {record.name} back or run it again; if another data set ran than the one at hand, "
        f"name that: --data-set {record.benchmark}=DIR"
    )
    findings = []
    for name, value in recorded.items():
        again = found.metrics.get(name)
        lowest, highest = (again, again) if again is not None else bounds(found)
        if lowest is None or highest is None:
            continue
        if not lowest - _CLOSE <= value <= highest + _CLOSE:
            wanted = plain_number(lowest) if again is not None else f"{lowest:.3f} to {highest:.3f}"
            wanted = f"{wanted}, scored again from the answers"
            findings.append(Finding(str(record.directory), f"{name} of {record.what}", wanted, f"{value:.10g}", action))
    return findings


def bounds(found: Scores) -> tuple[float | None, float | None]:
    """Lowest and highest exact match in percent, by how many of the answers in code are right; None without counts.

    To the three digits that the reference prints, each rounded outwards.
    """
    subsets = found.details.get("subsets")
    if not isinstance(subsets, dict) or not subsets:
        return None, None
    most = sum(counts["asked"] / counts["repeats"] for counts in subsets.values())
    right = sum(counts["right"] / counts["repeats"] for counts in subsets.values())
    left = sum(count / subsets[name]["repeats"] for name, count in found.not_scored.items())
    printed = 0.0005
    return _PERCENT * right / most - printed, _PERCENT * (right + left) / most + printed

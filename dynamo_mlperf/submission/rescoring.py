"""Scores made again from the recorded answers, where the data set with the truth is at hand.

What a record says of its own score is the one thing that its hash and its counts do not prove. Where it cannot be made
again, that is said, in the tree too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT, Scores, plain_number
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log, score_answers
from dynamo_mlperf.benchmark.accuracy.truth import TRUTH_FILE
from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.files import digest_file
from dynamo_mlperf.load.endpoints_answers import accuracy_answers
from dynamo_mlperf.load.endpoints_run import RECORD as ENDPOINTS_RECORD
from dynamo_mlperf.load.endpoints_run import read_record as read_endpoints
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.records import ACCURACY, ENDPOINTS, accuracy_results, read_record
from dynamo_mlperf.submission.scores import read_accuracy_text, read_endpoints_scores
from dynamo_mlperf.topology.measuring import SCORED_BY_ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.submission.records import TestRecord

NOT_AGAIN = "not scored again"
_NOT_RUN = "in code not run"
SCORED = (ACCURACY, "TEST07")
"""Tests whose answers are held against the truth."""

_FOLDERS = {ACCURACY: "accuracy", "TEST07": "compliance"}
"""Below the data set, where a test has one of its own."""
_CLOSE = 1e-6
"""Scores that differ by less are the same: files hold what was printed."""
_PERCENT = 100.0


@dataclass(frozen=True)
class Rescoring:
    """How scores are made again.

    Attributes:
        data_sets: Directory of a benchmark's data set, where it is not the one that the run names.
        run_code: Whether code that a model wrote is run.
        wanted: Whether anything is scored again.
    """

    data_sets: Mapping[str, Path] = field(default_factory=dict)
    run_code: bool = False
    wanted: bool = True


@dataclass(frozen=True)
class Again:
    """What became of one test's scores: a sentence for the record, and what stands in the way."""

    said: str
    findings: tuple[Finding, ...] = ()


def score_again(record: TestRecord, rules: Benchmark, how: Rescoring) -> Again:
    """Score the recorded answers of an accuracy test or of TEST07, and hold that against the recorded scores.

    Raises:
        ConfigError: A data set that was named has no truth; or a record cannot be read.
        MeasureError: A record cannot be read.
    """
    data_set = _data_set(record, how) if how.wanted else None
    why_not = _why_not(record, data_set, how)
    if why_not or data_set is None:
        return Again(f"{NOT_AGAIN}: {why_not}")
    try:
        found = _scores(record, data_set, how)
    except ConfigError as problem:  # a package that is missing, a data set that does not fit
        return Again(f"{NOT_AGAIN}: {problem.what}")
    except MeasureError as problem:
        where, action = str(record.directory), problem.action or f"run {record.name} again"
        return Again(NOT_AGAIN, (Finding(where, record.what, "answers that can be scored", problem.what, action),))
    findings = tuple(_differing(record, rules, found))
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


def _why_not(record: TestRecord, data_set: Path | None, how: Rescoring) -> str:
    """Why a test is not scored again; empty where it is."""
    if not how.wanted:
        return "as was asked for"
    if record.client == ENDPOINTS and record.benchmark not in SCORED_BY_ENDPOINTS:
        return "evaluators of endpoints' own scored it"
    if data_set is None:
        return f"the data set is not at hand (--data-set {record.benchmark}=DIR)"
    if record.client == ENDPOINTS and not _ran_with(record, data_set):
        return "the data set at hand is not the one that ran, by its digest"
    return ""


def _data_set(record: TestRecord, how: Rescoring) -> Path | None:
    """Where the truth of a test lies; None where it is not seen from here."""
    given = how.data_sets.get(record.benchmark)
    said = record.run.endpoint.get("data_set") or (record.run.topology.get("measure") or {}).get("dataset")
    root = given or (Path(said) if isinstance(said, str) else None)
    if root is None:
        return None
    for place in (root / _FOLDERS[record.name], root):
        if (place / TRUTH_FILE).is_file() or (place / CATALOGUE_FILE).is_file():
            return place
    if given is not None:
        raise ConfigError(
            f"--data-set {record.benchmark}={given}: no {TRUTH_FILE} or {CATALOGUE_FILE} there",
            "name the directory that `dynamo-mlperf dataset` made",
        )
    return None


def _ran_with(record: TestRecord, data_set: Path) -> bool:
    digest = read_endpoints(record.run.root / ENDPOINTS_RECORD).data_digest
    return digest_file(data_set / CATALOGUE_FILE) == digest


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
    return scores if isinstance(scores, dict) else {}


def _differing(record: TestRecord, rules: Benchmark, found: Scores) -> list[Finding]:
    """Recorded scores that these answers do not have; with code that was not run, that they cannot have."""
    action = (
        f"put the original files of {record.name} back or run it again; if another data set ran than the one at hand, "
        f"name that: --data-set {record.benchmark}=DIR"
    )
    findings = []
    recorded = _recorded(record, rules)
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

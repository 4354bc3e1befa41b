"""The results of accuracy and compliance tests: judged from their logs, scored or verified, recorded in `result.json`.

`result.json` is written last in a test's folder. Its `verdict` is VALID, INVALID or FAILED as a run's is, and says
nothing of the performance test. Rehearsed and reduced tests are held to everything but bounds on what the model
answers: simulated engines answer anything, and part of a data set has no floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT, TOKENS_PER_SAMPLE
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, MeasureError
from dynamo_mlperf.files import write_atomic, write_json
from dynamo_mlperf.load import checks
from dynamo_mlperf.load.audit import ComplianceTest
from dynamo_mlperf.load.logs import read_logs
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.load.verification import Verification, verify_length, verify_score, verify_tokens
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from dynamo_mlperf.benchmark.accuracy.scores import Scores
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass, TransferEvidence, Verdict, VerdictName

RESULT_FILE = "result.json"
ACCURACY = "accuracy"
"""The accuracy test's name, and its folder."""

NO_MEANING = "rehearsal: scores mean nothing, and no floor is applied"
NOT_SCORED = "not scored:"
_PART = "reduced: scores are of part of a data set, and no floor is applied"


@dataclass(frozen=True)
class SideResult:
    """The result of one accuracy or compliance test; `as_json` gives the keys of `result.json`.

    Attributes:
        test: `accuracy` or the compliance test's name.
        verdict: VALID, INVALID (a rule is not met) or FAILED (nothing was measured).
        result_class: official, reduced or rehearsal.
        settings: What LoadGen was told (`user.conf`).
        reasons: Why it is not VALID.
        notes: What a reader should know.
        scores: Figures by name.
        targets: What they are held to.
        wanted_audit: Whether an `audit.config` was wanted.
    """

    test: str
    verdict: VerdictName
    result_class: ResultClass
    settings: LoadSettings
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, Any] = field(default_factory=dict)
    wanted_audit: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "test": self.test,
            "verdict": self.verdict,
            "class": self.result_class,
            "benchmark": self.settings.benchmark,
            "scenario": self.settings.scenario,
            "reasons": [{**asdict(reason), "text": reason.text()} for reason in self.reasons],
            "notes": list(self.notes),
            "scores": dict(self.scores),
            "targets": dict(self.targets),
            "settings": self.settings.to_json(),
            "wanted_audit": self.wanted_audit,
        }

    def line(self) -> str:
        """One line for people."""
        scores = [f"{name} {value:g}" for name, value in self.scores.items()]
        shown = ", ".join([*scores, *(note for note in self.notes if note.startswith(NOT_SCORED))])
        why = f": {self.reasons[0].text()}" if self.reasons else ""
        return f"{self.test} {self.verdict} [{self.result_class}]{f' {shown}' if shown else ''}{why}"


@dataclass(frozen=True)
class Measured:
    """A side test that LoadGen has run.

    Attributes:
        directory: Its folder, which holds LoadGen's logs and takes `result.json`.
        settings: What LoadGen was told.
        result_class: official, reduced or rehearsal.
        transfer: The engines' counters around it; None where nobody could read any.
        data_set: Directory of the data set that was sent.
    """

    directory: Path
    settings: LoadSettings
    result_class: ResultClass
    transfer: TransferEvidence | None
    data_set: Path


Score = Callable[[Measured], "Scores"]
"""Makes the scores of a test's accuracy log."""


def write_result(directory: Path, result: SideResult) -> None:
    """Write `result.json`, the last file of a side test."""
    write_json(directory / RESULT_FILE, result.as_json())


def failed_result(test: str, measured: Measured, problem: DynamoMlperfError, *, audit: bool = False) -> SideResult:
    """The result of a test that measured nothing."""
    reason = Reason(test, "a measurement", problem.what, problem.action or "see the test's folder and logs/")
    return SideResult(test, "FAILED", measured.result_class, measured.settings, (reason,), wanted_audit=audit)


def _verdict_of(reasons: tuple[Reason, ...]) -> VerdictName:
    return "INVALID" if reasons else "VALID"


def _class_note(result_class: ResultClass) -> tuple[str, ...]:
    return {"official": (), "rehearsal": (NO_MEANING,), "reduced": (_PART,)}[result_class]


def _nothing_measured(test: str, judged: Verdict, measured: Measured, *, audit: bool = False) -> SideResult:
    return SideResult(
        test, "FAILED", measured.result_class, measured.settings, judged.reasons, judged.notes, wanted_audit=audit
    )


def score_here(measured: Measured) -> Scores:
    """The scores of its accuracy log, made in this process."""
    return score_accuracy_log(measured.settings.benchmark, measured.directory / ACCURACY_LOG, measured.data_set)


def accuracy_result(measured: Measured, score: Score = score_here) -> SideResult:
    """Judge and score an accuracy test; writes `accuracy.txt` and `result.json` into its folder.

    Args:
        measured: What LoadGen ran.
        score: Makes the scores.

    Raises:
        ConfigError: An official test whose data set has no truth to score against.
        MeasureError: An official test whose log cannot be scored.
    """
    directory, settings = measured.directory, measured.settings
    judged = judge(directory, settings, measured.transfer, measured.result_class, str(directory))
    if judged.verdict == "FAILED":
        result = _nothing_measured(ACCURACY, judged, measured)
        write_result(directory, result)
        return result
    reasons, notes = judged.reasons, (*judged.notes, *_class_note(measured.result_class))
    rules = benchmark(settings.benchmark, settings.round_name)
    targets: dict[str, Any] = dict(rules.accuracy_floor[settings.scenario])
    targets["TOKENS_PER_SAMPLE"] = list(rules.tokens_per_sample)
    scores: Mapping[str, float] = {}
    try:
        scored = score(measured)
    except (ConfigError, MeasureError) as problem:
        if measured.result_class == "official" and not reasons:
            raise
        notes = (*notes, f"{NOT_SCORED} {problem.what}")
    else:
        write_atomic(directory / ACCURACY_TXT, scored.text())
        scores = scored.metrics
        told = {reason.check for reason in reasons}
        short = [
            one
            for one in scored.shortfalls(rules, settings.scenario)
            if one.metric != TOKENS_PER_SAMPLE or checks.MEAN_TOKENS not in told
        ]
        if measured.result_class == "official":
            action = "same weights, template and sampling as the reference; see accuracy.txt"
            reasons = (*reasons, *(Reason(f"accuracy {one.metric}", one.wanted, one.got, action) for one in short))
        else:
            notes = (
                *notes,
                *(f"an official accuracy test like this one would not pass: {one.text()}" for one in short),
            )
    once = tuple({reason.check: reason for reason in reasons}.values())
    result = SideResult(ACCURACY, _verdict_of(once), measured.result_class, settings, once, notes, scores, targets)
    write_result(directory, result)
    return result


def compliance_result(
    test: ComplianceTest, measured: Measured, eos: Collection[int], score: Score = score_here
) -> SideResult:
    """Judge and verify a compliance test; writes its verification file and `result.json` into its folder.

    Args:
        test: The test, as it was run.
        measured: What LoadGen ran; its settings are those of `user.conf`.
        eos: The model's own end-of-text ids (TEST06).
        score: Makes the scores (TEST07).

    Raises:
        ConfigError: The data set of TEST07 has no truth to score against.
        MeasureError: The log cannot be verified.
    """
    directory = measured.directory
    judged = judge(
        directory,
        test.settings(measured.settings),
        measured.transfer,
        measured.result_class,
        str(directory),
        compliance=True,
    )
    if judged.verdict == "FAILED":
        result = _nothing_measured(test.name, judged, measured, audit=True)
        write_result(directory, result)
        return result
    found = _verify(test, measured, eos, score)
    write_atomic(directory / test.verified_by, found.text)
    bounded = measured.result_class != "official" and found.bounds_only
    notes = (*judged.notes, *(_class_note(measured.result_class) if found.bounds_only else ()))
    if bounded:
        notes = (
            *notes,
            *(f"an official {test.name} like this one would not pass: {one.text()}" for one in found.reasons),
        )
    reasons = (
        *judged.reasons,
        *_claimed_class(test, measured),
        *_audit_in_force(test, measured),
        *(() if bounded else found.reasons),
    )
    result = SideResult(
        test.name,
        _verdict_of(reasons),
        measured.result_class,
        measured.settings,
        reasons,
        notes,
        found.scores,
        found.targets,
        wanted_audit=True,
    )
    write_result(directory, result)
    return result


def _verify(test: ComplianceTest, measured: Measured, eos: Collection[int], score: Score) -> Verification:
    log = measured.directory / ACCURACY_LOG
    if test.name == "TEST06":
        return verify_tokens(log, eos, offline=measured.settings.scenario == "Offline")
    if test.name == "TEST07":
        return verify_score(test, score(measured))
    return verify_length(test, log)


def _claimed_class(test: ComplianceTest, measured: Measured) -> list[Reason]:
    """A reduced test does not call itself official; TEST07 has a data set of its own size by the rules."""
    settings = measured.settings
    if test.samples is not None and settings.performance_sample_count == test.samples:
        rules = benchmark(settings.benchmark, settings.round_name)
        settings = replace(settings, performance_sample_count=rules.performance_sample_count[settings.scenario])
    return checks.claimed_class(settings, measured.result_class)


def _audit_in_force(test: ComplianceTest, measured: Measured) -> list[Reason]:
    """Every setting of `audit.config` as the log shows it, and each sample once where the test wants that."""
    log = read_logs(measured.directory)
    reasons = []
    for key, wanted in test.expected_effective().items():
        got = log.values.get(key)
        if got != wanted:
            action = "this LoadGen does not take the line of audit.config: use the wheel of the round"
            reasons.append(Reason(f"setting {key}", str(wanted), str(got), action))
    if test.issue_unique:
        samples = read_queries(measured.directory / "queries.csv").samples
        different = len(np.unique(samples))
        wanted_samples = min(measured.settings.performance_sample_count, test.min_query_count)
        if not len(samples) == different == wanted_samples:
            got_samples = f"{different} of them in {len(samples)} queries"
            reasons.append(
                Reason("samples of the test", f"{wanted_samples}, each once", got_samples, "check the data set")
            )
    return reasons

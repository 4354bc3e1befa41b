"""Accuracy and compliance tests, each held against its evidence anew: logs, settings, scores, and what they prove."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT, TOKENS_PER_SAMPLE
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, MeasureError
from dynamo_mlperf.files import open_regular, strict_json
from dynamo_mlperf.load.audit import AUDIT_CONFIG, compliance_test
from dynamo_mlperf.load.directory import UNREADABLE
from dynamo_mlperf.load.settings import below_rules
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.load.verification import verify_length, verify_tokens
from dynamo_mlperf.record import TransferEvidence, transfer_from_json
from dynamo_mlperf.submission.answers import answer_findings, length_findings
from dynamo_mlperf.submission.finding import Finding, from_reasons
from dynamo_mlperf.submission.performance import class_of
from dynamo_mlperf.submission.records import ACCURACY, ENDPOINTS, PERFORMANCE, accuracy_results, read_record
from dynamo_mlperf.submission.scores import read_accuracy_text, read_endpoints_scores, read_small

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.accuracy.scores import Scores
    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.load.audit import ComplianceTest
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.submission.records import TestRecord
    from dynamo_mlperf.submission.results import Result

EVIDENCE = "evidence.json"
PASSED = {
    "TEST06": (
        ("First token check pass: True", "First token check pass: Skipped"),
        ("EOS check pass: True",),
        ("Sample length check pass: True",),
    ),
    "TEST07": (("TEST PASS",),),
    "TEST09": (("TEST PASS",),),
}
"""Lines that a test's verification file must hold, one of each group (`checks/compliance_check.py` at b66003e1)."""

_BLOCK_BYTES = 4 * 2**20
_SAME = (
    "scenario",
    "loadgen_scenario",
    "loadgen_model",
    "target_qps",
    "min_duration_ms",
    "min_query_count",
    "performance_sample_count",
    "percentile",
    "target_latency_ms",
    "ttft_ms",
    "tpot_ms",
    "use_token_latencies",
    "sample_concatenate_permutation",
    "seeds",
    "round_name",
)
"""Settings that the accuracy test shares with the performance test: both read one user.conf."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file as hex digits; read once as long as the file stays as it is."""
    about = path.stat()
    return _sha256(path, about.st_ino, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _sha256(path: Path, _inode: int, _size_bytes: int, _changed_ns: int) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as source:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def accuracy_findings(result: Result, rules: Benchmark) -> list[Finding]:
    """Why the accuracy test of a result cannot be submitted; a missing one is one of the reasons."""
    record = result.accuracy
    if record is None:
        action = "run the same file with measure: {accuracy: true}, or `measure --mode accuracy`, and name that run too"
        return [Finding(result.where, f"{result.name} accuracy", "an accuracy test", "none", action)]
    return _told(record, lambda: [*_recorded(record, rules), *_accuracy(record, rules), *_same_settings(result)])


def compliance_findings(result: Result, rules: Benchmark) -> list[Finding]:
    """Why the compliance tests of a result cannot be submitted; endpoints has none of its own in this round."""
    findings: list[Finding] = []
    if result.performance is not None and result.performance.client == ENDPOINTS:
        return _told(result.performance, lambda: _token_band(result, rules))
    for name in rules.compliance_tests:
        record = result.tests.get(name)
        if record is None:
            action = f"run the same file with measure: {{compliance: true}}, which runs {name}, and name that run too"
            findings.append(Finding(result.where, f"{result.name} {name}", f"a passed {name}", "none", action))
        else:
            findings += _told(record, lambda record=record: [*_recorded(record, rules), *_compliance(record)])
    return findings


def _told(record: TestRecord, look: Any) -> list[Finding]:  # noqa: ANN401 - a call without arguments
    """What a look finds; records that cannot be read are a finding too, whatever is wrong with them."""
    try:
        found: list[Finding] = look()
    except DynamoMlperfError as problem:
        return [Finding(record.run.name, record.what, "whole records", problem.what, problem.action or "run it again")]
    except UNREADABLE as problem:
        got = f"{type(problem).__name__}: {problem}"
        return [Finding(str(record.directory), record.what, "whole records", got, _again(record))]
    return found


def _again(record: TestRecord) -> str:
    verb = "accuracy" if record.name == ACCURACY else "compliance"
    return f"run the test again with measure: {{{verb}: true}}"


def _recorded(record: TestRecord, rules: Benchmark) -> list[Finding]:
    """The test's own account is there and says VALID, and its logs say so again."""
    where, result = str(record.directory), record.result
    if not result:
        return [Finding(where, record.what, "result.json", "none: the test did not end", _again(record))]
    findings = []
    if result.get("verdict") != "VALID":
        told = "; ".join(str(reason.get("text") or reason.get("check")) for reason in result.get("reasons") or ())
        got = f"{result.get('verdict')}" + (f" ({told})" if told else "")
        findings.append(Finding(where, record.what, "VALID", got, _again(record)))
    spec, settings = record.spec, record.settings
    if spec is None:
        return findings
    if (settings.benchmark, settings.scenario) != (rules.name, record.scenario):
        got = f"{settings.benchmark} {settings.scenario}"
        findings.append(Finding(where, record.what, f"{rules.name} {record.scenario}", got, "put measure.json back"))
    if record.name == ACCURACY and (lowered := below_rules(settings)):
        got = f"lowered: {', '.join(lowered)}"
        findings.append(Finding(where, record.what, "settings of the rules", got, _again(record)))
    in_force = settings if record.name == ACCURACY else compliance_test(record.name).settings(settings)
    again = judge(record.directory, in_force, _transfer(record), class_of(record), where, compliance=spec.audit_config)
    findings += from_reasons(where, again.reasons)
    if record.name != ACCURACY and not spec.audit_config:
        findings.append(Finding(where, record.what, "a test with audit.config", "one without", _again(record)))
    return findings


def _transfer(record: TestRecord) -> TransferEvidence | None:
    """The engines' counters around a test; prefill and decode workers without a record of them proved nothing."""
    value = read_record(record.directory / EVIDENCE).get("transfer")
    disaggregated = bool({"prefill", "decode"} & set(record.run.topology.get("roles") or ()))
    if value is None:
        return TransferEvidence(disaggregated=True, proof="none") if disaggregated else None
    try:
        found = transfer_from_json(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{record.directory / EVIDENCE} cannot be read: {error}", _again(record)) from error
    return replace(found, disaggregated=True) if disaggregated else found


def _accuracy(record: TestRecord, rules: Benchmark) -> list[Finding]:
    if record.client == ENDPOINTS:
        path = accuracy_results(record)
        return score_findings(path, read_endpoints_scores(path, rules), rules, record.scenario)
    text, log = record.directory / ACCURACY_TXT, record.directory / ACCURACY_LOG
    scores = read_accuracy_text(text, rules)
    findings = score_findings(text, scores, rules, record.scenario)
    recorded = record.result.get("scores") or {}
    for name in sorted({*scores.metrics, *recorded}):
        said, value = recorded.get(name), scores.metrics.get(name)
        if said != value:
            action = "run the test again, or put the original files back: one of the two was changed"
            findings.append(Finding(str(text), name, f"{said} (result.json)", f"{value}", action))
    if not log.is_file():
        return [*findings, Finding(str(log), record.what, "the whole accuracy log", "none", _again(record))]
    digest = sha256_of(log)
    if scores.log_sha256 and scores.log_sha256 != digest:
        action = "these scores are of another log: put the original back, or score it again"
        findings.append(Finding(str(text), "hash of the accuracy log", digest, scores.log_sha256, action))
    if not _whole(log):
        findings.append(Finding(str(log), record.what, "the whole accuracy log", "a truncated one", "put it back"))
        return findings
    return [*findings, *answer_findings(record, scores.metrics)]


def _whole(log: Path) -> bool:
    """Whether an accuracy log begins and ends as LoadGen's does."""
    with open_regular(log) as source:
        start = source.read(16).lstrip()
        source.seek(max(0, log.stat().st_size - 16))
        return start.startswith(b"[") and source.read().rstrip().endswith(b"]")


def score_findings(path: Path, scores: Scores, rules: Benchmark, scenario: str) -> list[Finding]:
    """Scores under the floor, and tokens per sample outside their band.

    Endpoints counts the tokens of an accuracy phase only where it has a tokenizer, and the checker never asks for them.
    """
    action = "same weights, chat template and sampling as the reference's; look at the answers"
    return [
        Finding(str(path), short.metric, short.wanted, short.got, action)
        for short in scores.shortfalls(rules, scenario)
        if path.suffix == ".txt" or short.metric in scores.metrics or short.metric != TOKENS_PER_SAMPLE
    ]


def _same_settings(result: Result) -> list[Finding]:
    """Performance and accuracy ran with the same settings."""
    performance, accuracy = result.performance, result.accuracy
    if performance is None or accuracy is None:
        return []
    if performance.client != accuracy.client:
        got = f"{performance.client} and {accuracy.client}"
        action = "run both with one client"
        return [Finding(accuracy.run.name, f"load client of {result.name}", "one", got, action)]
    return [
        Finding(
            accuracy.run.name,
            f"{name} of {result.name} accuracy",
            f"{wanted} as in the performance test",
            str(got),
            "run both tests by one topology file",
        )
        for name, wanted, got in differing(performance.settings, accuracy.settings)
    ]


def differing(performance: LoadSettings, accuracy: LoadSettings) -> list[tuple[str, Any, Any]]:
    """The shared settings in which two tests differ: name, the performance test's, the accuracy test's."""
    pairs = ((name, getattr(performance, name), getattr(accuracy, name)) for name in _SAME)
    return [(name, one, other) for name, one, other in pairs if one != other]


def verification_findings(path: Path, name: str) -> list[Finding]:
    """What a verification file lacks of the lines of a passed test."""
    lines = {line.strip() for line in read_small(path).splitlines()}
    return [
        Finding(str(path), f"{name} verification", f"the line {wanted[0]!r}", "not there", f"run {name} again")
        for wanted in PASSED[name]
        if not lines & set(wanted)
    ]


def _compliance(record: TestRecord) -> list[Finding]:
    """The verification file says passed, and the answers say so again by the model's own end-of-text ids."""
    test = compliance_test(record.name)
    verified, log = record.directory / test.verified_by, record.directory / ACCURACY_LOG
    findings = [
        *verification_findings(verified, record.name),
        *_audit_used(record, test),
    ]
    if record.name != "TEST09":  # a log of token ids is long: it is read once
        findings += answer_findings(record, {})
    if record.name == "TEST06":
        eos = (record.result.get("targets") or {}).get("eos_token_ids")
        if not isinstance(eos, list) or not all(isinstance(token, int) for token in eos):
            raise ConfigError(f"{record.directory}: result.json names no eos_token_ids", "run TEST06 again")
        findings += from_reasons(log, verify_tokens(log, eos, offline=record.scenario == "Offline").reasons)
    elif record.name == "TEST09":
        found = verify_length(test, log)
        findings += [*from_reasons(log, found.reasons), *length_findings(record, found.scores)]
    else:
        floor = test.thresholds["test07_accuracy_threshold"]
        score = (record.result.get("scores") or {}).get("exact_match")
        if not isinstance(score, int | float) or not score >= floor:
            wanted = f"exact_match >= {floor:g}"
            findings.append(Finding(str(record.directory), record.what, wanted, str(score), "run TEST07 again"))
        elif f"Accuracy score: {score:g}" not in read_small(verified).splitlines():
            wanted = f"Accuracy score: {score:g}, as in result.json"
            findings.append(Finding(str(verified), "TEST07 score", wanted, "another", "run TEST07 again"))
    return findings


def _audit_used(record: TestRecord, test: ComplianceTest) -> list[Finding]:
    """The `audit.config` that goes into the tree is the test's own; a rehearsal's may ask for fewer queries."""
    used = record.directory / f"{AUDIT_CONFIG}.used"
    official = class_of(record) == "official"
    if not used.is_file() or (official and read_small(used) != test.audit_config()):
        got = "another" if used.is_file() else "none"
        return [Finding(str(used), record.what, f"the audit.config of {test.name}", got, _again(record))]
    return []


def _token_band(result: Result, rules: Benchmark) -> list[Finding]:
    """TEST09 in endpoints' form: the checker reads the mean output tokens of the performance run."""
    record = result.tests[PERFORMANCE]
    path = record.directory / "performance" / "result_summary.json"
    return token_band_findings(path, rules)


def token_band_findings(path: Path, rules: Benchmark) -> list[Finding]:
    """The mean output tokens in a `result_summary.json` against TEST09's band, where the benchmark has that test."""
    if "TEST09" not in rules.compliance_tests:
        return []
    bounds = compliance_test("TEST09").thresholds
    low, high = bounds["test09_min_output_tokens"], bounds["test09_max_output_tokens"]
    try:
        mean = strict_json(read_small(path))["output_sequence_lengths"]["avg"]
        within = low <= float(mean) <= high
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"{path} holds no mean of output tokens: {error!r}", "run with a tokenizer") from error
    if within:
        return []
    action = "check the chat template, the reasoning effort and the cap on output tokens"
    return [Finding(str(path), "TEST09 mean output tokens", f"{low:g} to {high:g}", f"{mean:g}", action)]

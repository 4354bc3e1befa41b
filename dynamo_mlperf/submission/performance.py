"""A performance test judged again from its evidence, and by what a submission asks for beyond a VALID verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import ONLY_ENDPOINTS
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.load.directory import judge_directory
from dynamo_mlperf.load.settings import below_rules
from dynamo_mlperf.submission.finding import Finding, from_reasons
from dynamo_mlperf.submission.records import ENDPOINTS

if TYPE_CHECKING:
    from dynamo_mlperf.record import ResultClass, Verdict
    from dynamo_mlperf.submission.records import TestRecord


def judge_performance(record: TestRecord) -> tuple[Verdict | None, list[Finding]]:
    """The verdict anew, and why the test cannot be submitted; no verdict where nothing was measured."""
    where = record.run.name
    try:
        verdict = judge_directory(record.run.root)
    except (MeasureError, ConfigError) as problem:
        return None, [Finding(where, record.what, "a measurement", problem.what, problem.action or "run it again")]
    findings = from_reasons(where, verdict.reasons)
    recorded = record.run.verdict
    if recorded.get("verdict") != verdict.verdict:
        got = f"{recorded.get('verdict') or 'none'}, and {verdict.verdict} from the evidence"
        action = "the run directory was changed since: put the original back, or run again"
        findings.append(Finding(where, "verdict that the run recorded", verdict.verdict, got, action))
    if recorded.get("class", verdict.result_class) != verdict.result_class:
        got = f"{recorded['class']}, and {verdict.result_class} from the evidence"
        action = "the run directory was changed since: put the original back, or run again"
        findings.append(Finding(where, "class that the run recorded", verdict.result_class, got, action))
    if (verdict.benchmark, verdict.scenario) != (record.benchmark, record.scenario):
        got = f"{verdict.benchmark} {verdict.scenario}"
        findings.append(Finding(where, "what was measured", record.what, got, "put the original records back"))
    return verdict, [*findings, *_full_rules(record)]


def class_of(record: TestRecord) -> ResultClass:
    """The class of a test's result by its engine, then as it was recorded; official only where something says so."""
    if record.run.topology.get("engine") == "mocker":
        return "rehearsal"
    said = record.result.get("class") or record.run.verdict.get("class")
    if said not in ("official", "reduced", "rehearsal"):
        raise ConfigError(f"{record.run.name}: {record.what} records no class of its result", "run it again")
    if said == "official" and record.run.topology.get("reduced"):
        return "reduced"
    result: ResultClass = said
    return result


def _full_rules(record: TestRecord) -> list[Finding]:
    """The settings are those of the rules, whatever the class; and the form is one that the round takes."""
    where = record.run.name
    findings = []
    if lowered := below_rules(record.settings):
        got = f"lowered: {', '.join(lowered)}"
        action = "take the reduced: block out, and run again"
        findings.append(Finding(where, record.what, "settings of the rules", got, action))
    return [*findings, *client_findings(record)]


def client_findings(record: TestRecord) -> list[Finding]:
    """The load client is one whose form of this test the round takes."""
    if record.client == ENDPOINTS or (record.benchmark, record.scenario) not in ONLY_ENDPOINTS:
        return []
    action = "measure it with `client: endpoints`: the official checker refuses its 8000 samples in LoadGen's form"
    return [Finding(record.run.name, record.what, "a run of endpoints", "a run of LoadGen", action)]


def failure_findings(record: TestRecord) -> list[Finding]:
    """Why a run measured nothing, where it says so itself."""
    if record.run.verdict.get("verdict") != "FAILED":
        return []
    reasons = record.run.verdict.get("reasons")
    first = reasons[0] if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict) else {}
    got = next(iter(str(first.get("got") or "").splitlines()), "for no recorded reason")  # a log's end may follow
    action = str(first.get("action") or "run it again")
    return [Finding(record.run.name, record.what, "a measurement", f"the run FAILED: {got}", action)]

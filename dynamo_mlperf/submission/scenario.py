"""One result's folder: logs byte for byte, the accuracy log truncated, and the record of what it is."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT, Scores
from dynamo_mlperf.benchmark.accuracy.truncation import truncated
from dynamo_mlperf.load.audit import AUDIT_CONFIG, compliance_test
from dynamo_mlperf.load.endpoints_results import CONFIG, SUMMARY
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.proofs import sha256_of
from dynamo_mlperf.submission.records import ACCURACY, ACCURACY_RESULTS, ENDPOINTS, PERFORMANCE, accuracy_results
from dynamo_mlperf.submission.scores import read_accuracy_text, read_endpoints_scores, read_small
from dynamo_mlperf.submission.texts import TOPOLOGY, readme

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.submission.records import TestRecord
    from dynamo_mlperf.submission.results import Result

RECORD_SCHEMA = 1
_HASH = "hash="


@dataclass(frozen=True)
class Judged:
    """A result that nothing stands in the way of.

    Attributes:
        result: Its tests.
        rules: Its benchmark.
        verdict: Its performance test, judged anew.
        rescored: By test, whether and how its scores were made again.
    """

    result: Result
    rules: Benchmark
    verdict: Verdict
    rescored: dict[str, str] = field(default_factory=dict)

    @property
    def performance(self) -> TestRecord:
        """Its performance test."""
        return self.result.tests[PERFORMANCE]

    @property
    def accuracy(self) -> TestRecord:
        """Its accuracy test."""
        return self.result.tests[ACCURACY]

    def scores(self) -> Scores:
        """Its accuracy."""
        if self.accuracy.client == ENDPOINTS:
            return read_endpoints_scores(accuracy_results(self.accuracy), self.rules)
        return read_accuracy_text(self.accuracy.directory / ACCURACY_TXT, self.rules)


def write_scenario(place: Path, judged: Judged, system: System, *, rehearsal: bool) -> None:
    """Write the folder of one result; `place` must not exist yet.

    Raises:
        OSError: A file cannot be read or written.
        MeasureError: A text of the run's cannot be read.
    """
    result = judged.result
    place.mkdir(parents=True)
    originals = (
        _endpoints_form(place, judged)
        if judged.performance.client == ENDPOINTS
        else _loadgen_form(place, judged, rehearsal=rehearsal)
    )
    measured = system.measurements[result.benchmark].model_dump()
    if rehearsal:
        measured[marks.CLASS_KEY] = f"rehearsal ({marks.NOTE})"
    _write_json(place / layout.MEASUREMENTS, measured)
    scores = {name: f"{value:g}" for name, value in judged.scores().metrics.items()}
    scores |= {f"scores of {name}": said for name, said in judged.rescored.items()}
    text = readme(result, judged.verdict, system, scores, rehearsal=rehearsal)
    (place / layout.README).write_text(text)
    (place / layout.RECORD).parent.mkdir()
    _write_json(place / layout.RECORD, _record(judged, originals))
    run = judged.performance.run
    if run.topology_text:
        shutil.copyfile(run.root / "topology.yaml", place / TOPOLOGY)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _copy_logs(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in layout.LOGS:
        shutil.copyfile(source / name, target / name)


def _write_text(source: Path, target: Path, *, rehearsal: bool) -> None:
    """A small text as it is; of a rehearsal with the mark above it."""
    text = read_small(source)
    target.write_text(marks.with_line(text) if rehearsal else text)


def _loadgen_form(place: Path, judged: Judged, *, rehearsal: bool) -> dict[str, str]:
    """Returns the SHA-256 of each log that was truncated, by its path in the folder."""
    performance = judged.performance.directory
    _copy_logs(performance, place / layout.PERFORMANCE_LOGS)
    _write_text(performance / layout.USER_CONF, place / layout.USER_CONF, rehearsal=rehearsal)
    accuracy, target = judged.accuracy.directory, place / layout.ACCURACY_FOLDER
    _copy_logs(accuracy, target)
    digest = _truncate(accuracy, target)
    text = read_small(accuracy / ACCURACY_TXT)
    if _HASH not in text:
        text = f"{text.rstrip()}\n\n{_HASH}{digest}\n"
    (target / ACCURACY_TXT).write_text(marks.with_line(text) if rehearsal else text)
    originals = {f"{layout.ACCURACY_FOLDER}/{ACCURACY_LOG}": digest}
    for name in judged.rules.compliance_tests:
        originals |= _compliance(place, judged.result.tests[name], rehearsal=rehearsal)
    return originals


def _compliance(place: Path, record: TestRecord, *, rehearsal: bool) -> dict[str, str]:
    """A compliance test: its verification, its logs, and its answers truncated, their hash beside them."""
    folder = place / record.name
    _copy_logs(record.directory, folder / layout.PERFORMANCE_LOGS)
    verified = compliance_test(record.name).verified_by
    _write_text(record.directory / verified, folder / verified, rehearsal=rehearsal)
    if (used := record.directory / f"{AUDIT_CONFIG}.used").is_file():
        shutil.copyfile(used, folder / AUDIT_CONFIG)
    if not (record.directory / ACCURACY_LOG).is_file():
        return {}
    target = folder / layout.ACCURACY_FOLDER
    target.mkdir()
    digest = _truncate(record.directory, target)
    (target / ACCURACY_TXT).write_text(f"{_HASH}{digest}\n")
    return {f"{record.name}/{layout.ACCURACY_FOLDER}/{ACCURACY_LOG}": digest}


def _truncate(source: Path, target: Path) -> str:
    """Write the accuracy log's beginning and end, and return the SHA-256 of the whole."""
    (target / ACCURACY_LOG).write_bytes(truncated(source / ACCURACY_LOG))
    return sha256_of(source / ACCURACY_LOG)


def _endpoints_form(place: Path, judged: Judged) -> dict[str, str]:
    directory = judged.performance.directory
    for name in (CONFIG, SUMMARY):
        (place / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(directory / name, place / name)
    (place / ACCURACY_RESULTS).parent.mkdir()
    shutil.copyfile(accuracy_results(judged.accuracy), place / ACCURACY_RESULTS)
    return {}


def _record(judged: Judged, originals: dict[str, str]) -> dict[str, Any]:
    """What the result is, for whoever checks the tree: nothing in it names a host or a path."""
    result, verdict, run = judged.result, judged.verdict, judged.performance.run
    tests = {
        name: {
            "class": verdict.result_class if name == PERFORMANCE else record.result.get("class"),
            "verdict": verdict.verdict if name == PERFORMANCE else record.result.get("verdict"),
            "run": record.run.root.name,
            "commit": record.run.commit,
        }
        for name, record in sorted(result.tests.items())
        if name in (PERFORMANCE, ACCURACY) or name in judged.rules.compliance_tests
    }
    return {
        "made_by": "dynamo_mlperf",
        "schema": RECORD_SCHEMA,
        "class": verdict.result_class,
        "benchmark": result.benchmark,
        "scenario": result.scenario,
        "client": judged.performance.client,
        "engine": run.topology.get("engine") or "endpoint",
        "model": verdict.model or None,
        "requests": verdict.requests,
        "failed_requests": verdict.failed_requests,
        "split": run.plan.get("split"),
        "disaggregation": asdict(verdict.transfer) if verdict.transfer else None,
        "tests": tests,
        "scored_again": judged.rescored,
        "originals_sha256": originals,
        "versions": run.versions,
    }

"""Our gate for one result of a tree: stricter than the official checker, whose gaps are closed here.

It lets through (mlcommons/inference b66003e1): failed samples in a run of endpoints and errors in a LoadGen performance
log (`loadgen_errors_check`), an Interactive run made under Server limits (`llm_check` takes the log's scenario), and
any score of endpoints but qwen3-vl's (`accuracy_result_check`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.scores import ACCURACY_TXT
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError
from dynamo_mlperf.files import open_regular, read_json
from dynamo_mlperf.load.audit import compliance_test
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.endpoints_results import CONFIG, SUMMARY
from dynamo_mlperf.load.loadgen_summary import summary_reasons
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.description import ModelMeasurements
from dynamo_mlperf.submission.finding import Finding, from_reasons
from dynamo_mlperf.submission.proofs import score_findings, token_band_findings, verification_findings
from dynamo_mlperf.submission.records import ACCURACY_RESULTS, read_record
from dynamo_mlperf.submission.scores import read_accuracy_text, read_endpoints_scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.benchmark.shapes import Benchmark

_AGAIN = "package the runs again"
_SETTINGS_BYTES = 2**20
"""Of a detail log: its settings stand at its beginning."""
_TEST_MODE = re.compile(rb'"effective_test_mode", "value": "(\w+)"')


class ScenarioGate:
    """Everything that is asked of `results/<system>/<benchmark>/<scenario>/`.

    Args:
        place: The folder.
        rules: Its benchmark.
        rules_round: The round.
        ours: Whether the tree is one that `package` made, or says so in any place: then it must have its records.
        rehearsal: Whether a rehearsal is what the tree is meant to be.
    """

    def __init__(self, place: Path, rules: Benchmark, rules_round: Round, *, ours: bool, rehearsal: bool) -> None:
        self._place, self._rules, self._round = place, rules, rules_round
        self._ours, self._rehearsal = ours, rehearsal
        self._scenario = place.name
        self._endpoints = (place / CONFIG).exists() or (place / SUMMARY).exists()

    def findings(self) -> Iterator[Finding]:
        """All of them, the measurement's first."""
        form = self._endpoints_form if self._endpoints else self._loadgen_form
        for look in (*form(), self._measurements, self._documents, self._record, self._marks):
            yield from self._told(look)

    def _told(self, look: Callable[[], list[Finding]]) -> list[Finding]:
        """What cannot be read is a finding, whatever is wrong with it."""
        try:
            return look()
        except DynamoMlperfError as problem:
            return [Finding(str(self._place), "files", "whole ones", problem.what, problem.action or _AGAIN)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            got = f"{type(problem).__name__}: {problem}"
            return [Finding(str(self._place), "files", "whole ones", got, _AGAIN)]

    # -- LoadGen's form --

    def _loadgen_form(self) -> tuple[Callable[[], list[Finding]], ...]:
        compliance = [lambda name=name: self._compliance(name) for name in self._rules.compliance_tests]
        return (self._loadgen_performance, self._loadgen_accuracy, *compliance)

    def _missing(self, *names: str) -> list[Finding]:
        """Files that are not there, or are empty."""
        return [
            Finding(str(path), "file", "there, with content", "empty" if path.is_file() else "missing", _AGAIN)
            for path in (self._place / name for name in names)
            if not path.is_file() or not path.stat().st_size
        ]

    def _loadgen_performance(self) -> list[Finding]:
        names = [f"{layout.PERFORMANCE_LOGS}/{name}" for name in layout.LOGS]
        if missing := self._missing(*names, layout.USER_CONF):
            return missing
        logs = self._place / layout.PERFORMANCE_LOGS
        return [*self._mode(logs, "PerformanceOnly"), *self._judged(logs)]

    def _judged(self, directory: Path) -> list[Finding]:
        wanted = Wanted(self._rules.name, self._scenario, self._round.name)
        verdict = judge_directory(directory, wanted)
        path = directory / (DETAIL if (directory / DETAIL).is_file() else SUMMARY)
        return from_reasons(path, verdict.reasons)

    def _mode(self, logs: Path, wanted: str) -> list[Finding]:
        with open_regular(logs / DETAIL) as log:
            found = _TEST_MODE.search(log.read(_SETTINGS_BYTES))
        got = found[1].decode() if found else "nothing"
        return [] if got == wanted else [Finding(str(logs / DETAIL), "effective_test_mode", wanted, got, _AGAIN)]

    def _loadgen_accuracy(self) -> list[Finding]:
        folder = self._place / layout.ACCURACY_FOLDER
        names = [f"{layout.ACCURACY_FOLDER}/{name}" for name in (*layout.LOGS, ACCURACY_LOG, ACCURACY_TXT)]
        if missing := self._missing(*names):
            return missing
        text, log = folder / ACCURACY_TXT, folder / ACCURACY_LOG
        scores = read_accuracy_text(text, self._rules)
        findings = [
            *self._mode(folder, "AccuracyOnly"),
            *self._judged(folder),
            *score_findings(text, scores, self._rules, self._scenario),
        ]
        if not scores.log_sha256:
            findings.append(Finding(str(text), "hash of the accuracy log", "a line hash=...", "none", _AGAIN))
        if (size := log.stat().st_size) > layout.MAX_ACCURACY_LOG_BYTES:
            wanted = f"{layout.MAX_ACCURACY_LOG_BYTES} bytes or fewer"
            findings.append(Finding(str(log), "truncated accuracy log", wanted, f"{size} bytes", _AGAIN))
        return findings

    def _compliance(self, name: str) -> list[Finding]:
        verified = f"{name}/{compliance_test(name).verified_by}"
        if missing := self._missing(verified):
            return missing
        findings = verification_findings(self._place / verified, name)
        logs = self._place / name / layout.PERFORMANCE_LOGS
        if (logs / DETAIL).is_file():
            log = read_logs(logs)
            if not log.audit_config_applied:
                action = f"run {name} again with its audit.config in LoadGen's working directory"
                findings.append(Finding(str(logs / DETAIL), "audit.config", "picked up by LoadGen", "not", action))
            if log.error_count:
                got = f"{log.error_count}, the first: {log.errors[0] if log.errors else 'num_errors'}"
                findings.append(Finding(str(logs / DETAIL), "LoadGen errors", "0", got, f"run {name} again"))
            findings += from_reasons(logs / DETAIL, summary_reasons(log))
        elif self._ours:
            findings += self._missing(f"{name}/{layout.PERFORMANCE_LOGS}/{DETAIL}")
        return findings

    # -- endpoints' form --

    def _endpoints_form(self) -> tuple[Callable[[], list[Finding]], ...]:
        return (self._endpoints_performance, self._endpoints_accuracy)

    def _endpoints_performance(self) -> list[Finding]:
        if missing := self._missing(CONFIG, SUMMARY):
            return missing
        return [*self._judged(self._place), *token_band_findings(self._place / SUMMARY, self._rules)]

    def _endpoints_accuracy(self) -> list[Finding]:
        if missing := self._missing(ACCURACY_RESULTS):
            return missing
        path = self._place / ACCURACY_RESULTS
        scores = read_endpoints_scores(path, self._rules)
        wanted = self._rules.accuracy_sample_count[self._scenario]
        findings = score_findings(path, scores, self._rules, self._scenario)
        if scores.samples != wanted:
            action = "run the accuracy phase over the whole data set"
            findings.append(Finding(str(path), "accuracy samples", str(wanted), str(scores.samples), action))
        return findings

    # -- both --

    def _measurements(self) -> list[Finding]:
        if missing := self._missing(layout.MEASUREMENTS):
            return missing
        path = self._place / layout.MEASUREMENTS
        value = read_record(path)
        return [
            Finding(str(path), key, "a value", "nothing", "write it in the system's description")
            for key in ModelMeasurements.model_fields
            if not str(value.get(key) or "").strip()
        ]

    def _documents(self) -> list[Finding]:
        return self._missing(layout.README)

    def _record(self) -> list[Finding]:
        """What the run says that it is; a tree of ours without that says nothing."""
        path = self._place / layout.RECORD
        if not path.is_file():
            got = "none, though the tree is one that package made"
            return [Finding(str(path), "record of the runs", "the record", got, _AGAIN)] if self._ours else []
        record = read_record(path)
        findings = [
            Finding(str(path), key, wanted, str(record.get(key)), "put the result back into its own folder")
            for key, wanted in (("benchmark", self._rules.name), ("scenario", self._scenario))
            if record.get(key) != wanted
        ]
        if record.get("failed_requests") != 0:
            got = str(record.get("failed_requests"))
            findings.append(Finding(str(path), "failed requests", "0", got, "run again; see the workers' logs"))
        return [*findings, *self._tests_on_record(path, record), *self._class_on_record(path, record)]

    def _tests_on_record(self, path: Path, record: dict[str, Any]) -> list[Finding]:
        wanted = ("performance", "accuracy", *(() if self._endpoints else self._rules.compliance_tests))
        tests = record.get("tests") or {}
        return [
            Finding(str(path), f"verdict of the {name} test", "VALID", str(got), "run it again")
            for name in wanted
            if (got := (tests.get(name) or {}).get("verdict")) != "VALID"
        ]

    def _class_on_record(self, path: Path, record: dict[str, Any]) -> list[Finding]:
        action = "measure with real engines, by the full rules"
        if self._rehearsal:
            return []
        return [
            Finding(str(path), "what the record says", "official", told, action)
            for told in marks.marks_in_record(record)
        ]

    def _marks(self) -> list[Finding]:
        """Every other place that says rehearsal."""
        if self._rehearsal:
            return []
        names = [layout.README, layout.USER_CONF, layout.MEASUREMENTS, f"{layout.ACCURACY_FOLDER}/{ACCURACY_TXT}"]
        names += [f"{name}/{compliance_test(name).verified_by}" for name in self._rules.compliance_tests]
        found = [self._place / name for name in names if marks.marks_in_file(self._place / name)]
        if config_says_so(self._place / CONFIG):
            found.append(self._place / CONFIG)
        action = "a rehearsal cannot be submitted: measure with real engines"
        return [Finding(str(path), "what the file says", "a measurement", "REHEARSAL", action) for path in found]


def config_says_so(path: Path) -> bool:
    """Whether a configuration of endpoints names its run a rehearsal."""
    names = [line for line in marks.text_of(path).splitlines() if line.startswith("name:")]
    return any("rehears" in line.lower() for line in names)


def unknown_benchmark(place: Path, error: ConfigError) -> Finding:
    """The finding for a folder of results whose name is no benchmark of the round."""
    return Finding(str(place), "benchmark", "one of the round", error.what, "take the folder out, or name it rightly")


def parse_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a tree.

    Raises:
        ConfigError: It is none.
    """
    try:
        value = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", _AGAIN) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no object", _AGAIN)
    return value

"""A run of endpoints that was made here: its record, and its verdict by the settings that were asked for.

Beyond what its two files say (`endpoints_verdict.py`) it is judged by its event log, one line a query in
`queries.csv`, by the settings in force against those that were asked for, and by the engines' counters.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.rounds import round_of
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.benchmark.shapes import Limits
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.files import read_json
from dynamo_mlperf.load.checks import NAMED, claimed_class, equal_issue, tokens_per_sample, transfers
from dynamo_mlperf.load.endpoints_config import not_in_force, sample_count
from dynamo_mlperf.load.endpoints_results import EndpointsResults, read_results
from dynamo_mlperf.load.endpoints_schedule import HELD_UP, lateness_ms
from dynamo_mlperf.load.endpoints_verdict import Asked, known_latencies, results_reasons
from dynamo_mlperf.load.lateness import as_account, issued_in_time
from dynamo_mlperf.load.over_limit import figure
from dynamo_mlperf.load.queries import Queries, read_queries
from dynamo_mlperf.load.settings import LoadSettings
from dynamo_mlperf.load.verdict import failed
from dynamo_mlperf.record import ConstraintLatency, Reason, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.record import ResultClass, TransferEvidence

RECORD = "endpoints.json"
"""Beside the directory of endpoints: what was asked of it, and of which release."""
REQUEST = "endpoints.yaml"
"""Beside it: the configuration that it was given."""
REPORT_DIR = "endpoints"
QUERIES = "queries.csv"
ACCOUNT = "client.json"
_NOT_PER_QUERY = "tpot"
"""Endpoints keeps no token counts per sample, so this latency is known from its summary alone."""


@dataclass(frozen=True)
class EndpointsRecord:
    """What was asked of endpoints.

    Attributes:
        settings: The rules in force.
        config: The configuration that it was given.
        version: Its release.
        commit: Its commit; empty where its installation does not say.
        data_digest: BLAKE3 of the data set's index file.
        accuracy: Whether its accuracy phase was asked for.
    """

    settings: LoadSettings
    config: dict[str, Any]
    version: str
    commit: str
    data_digest: str
    accuracy: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        shallow = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**shallow, "settings": self.settings.to_json()}


def read_record(path: Path) -> EndpointsRecord:
    """The record that `to_json` wrote.

    Raises:
        MeasureError: It is missing, cut or garbage.
    """
    again = "copy the whole run directory, or run the measurement again"
    try:
        value = read_json(path)
        record = EndpointsRecord(**{**value, "settings": LoadSettings.from_json(value["settings"])})
        benchmark(record.settings.benchmark, record.settings.round_name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", again) from error
    except ConfigError as error:
        raise MeasureError(f"{path}: {error.what}", again) from error
    return record


def asked_by(settings: LoadSettings) -> Asked:
    """What a run by these settings has to meet."""
    rules_round = round_of(settings.round_name)
    limits = Limits(settings.percentile, settings.target_latency_ms, settings.ttft_ms, settings.tpot_ms)
    rules = benchmark(settings.benchmark, settings.round_name)
    return Asked(rules, settings.scenario, rules_round, limits, settings.min_duration_ms, sample_count(settings))


def judge_run(
    report_dir: Path,
    record: EndpointsRecord,
    transfer: TransferEvidence | None,
    result_class: ResultClass,
    run_dir: str,
) -> Verdict:
    """The verdict of the performance phase.

    Args:
        report_dir: Where endpoints wrote.
        record: What was asked of it.
        transfer: The engines' counters over its whole run, warm-up and accuracy phase included; None without any.
        result_class: official, reduced or rehearsal.
        run_dir: Recorded in the verdict.
    """
    settings = record.settings
    try:
        results = read_results(report_dir)
        queries = read_queries(report_dir / QUERIES)
        account = _read_account(report_dir / ACCOUNT)
    except MeasureError as error:
        return failed(settings, result_class, run_dir, error, transfer)
    asked = asked_by(settings)
    lost, late_ms = _lost(queries), lateness_ms(queries, settings)
    latencies = {name: _counted(latency, queries, name) for name, latency in known_latencies(results, asked).items()}
    by_files = results_reasons(results, asked)
    reasons = [
        *(reason for reason in by_files if not (lost and reason.check == lost[0].check)),
        *lost,
        *_counts(results, queries, settings),
        *_in_force(results, record),
        *_same_client(results, record),
        *issued_in_time(late_ms, settings, HELD_UP),
        *transfers(transfer, account["sent"], result_class),
        *claimed_class(settings, result_class),
    ]
    reasons += _over_by_our_count(latencies, len(queries), {reason.check for reason in reasons})
    succeeded = int(np.count_nonzero(queries.succeeded))
    mean, official = figure(results.measured("output_sequence_lengths", "avg")), result_class == "official"
    return Verdict(
        verdict="INVALID" if reasons else "VALID",
        result_class=result_class,
        benchmark=settings.benchmark,
        scenario=settings.scenario,
        run_dir=run_dir,
        reasons=tuple(dict.fromkeys(reasons)),
        notes=(*_notes(record, transfer), *(tokens_per_sample(mean, asked.rules) if official else ())),
        target_qps=settings.target_qps,
        completed_qps=figure(results.measured("qps")) if succeeded == len(queries) else succeeded / results.duration_s,
        tokens_per_second=figure(results.measured("tps")),
        requests=len(queries),
        failed_requests=len(queries) - succeeded,
        duration_s=results.duration_s,
        latency_p99_ms=latencies,
        transfer=transfer,
        client={**account, "issued_late_ms": as_account(late_ms)},
    )


def _read_account(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = read_json(path)
        known = {**value, "sent": int(figure(value["sent"]) or 0)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", "run the measurement again") from error
    return known


def _lost(queries: Queries) -> list[Reason]:
    """No request failed: endpoints itself takes a stream that breaks off, or holds no word, for an answer."""
    failures = [(queries.samples[place], error) for place, error in enumerate(queries.errors) if error]
    if not failures:
        return []
    named = "; ".join(f"sample {sample}: {error}" for sample, error in failures[:NAMED])
    more = f"; and {len(failures) - NAMED} more" if len(failures) > NAMED else ""
    got = f"{len(failures)} of {len(queries)} ({named}{more})"
    return [Reason("failed requests", "0", got, "queries.csv names every one; see the workers' logs")]


def _counts(results: EndpointsResults, queries: Queries, settings: LoadSettings) -> list[Reason]:
    """As many samples as were asked for, all in the event log, and each of the data set equally often."""
    planned, reasons = sample_count(settings), []
    if not planned == results.issued == len(queries):
        got = f"{results.issued} in result_summary.json, {len(queries)} in the event log"
        action = "it was cut short: run the measurement again"
        reasons.append(Reason("samples that endpoints issued", str(planned), got, action))
    return [*reasons, *equal_issue(queries, settings.performance_sample_count)]


def _in_force(results: EndpointsResults, record: EndpointsRecord) -> list[Reason]:
    """Every setting that was asked for is in the configuration that endpoints wrote back."""
    action = "endpoints did not take it over: see its config.yaml"
    return [
        Reason(f"setting {place}", str(wanted), "nothing" if got is None else str(got), action)
        for place, wanted, got in not_in_force(record.config, results.config)
    ]


def _same_client(results: EndpointsResults, record: EndpointsRecord) -> list[Reason]:
    """The results are of the release that was checked before the run."""
    version, commit = results.measured("version"), results.measured("git_sha")
    other = commit and record.commit and not record.commit.startswith(str(commit))
    if version == record.version and not other:
        return []
    got = f"{version} {commit or ''}".strip()
    return [Reason("release of endpoints", f"{record.version} {record.commit}".strip(), got, "run it again")]


def _counted(latency: ConstraintLatency, queries: Queries, name: str) -> ConstraintLatency:
    """The number over the limit from the event log, failed queries included; TPOT stays as its percentiles bound it."""
    if name == _NOT_PER_QUERY:
        return latency
    over = int(np.count_nonzero(queries.latencies_ms(name) > latency.limit))
    missing = len(queries) - int(np.count_nonzero(queries.succeeded))
    return dataclasses.replace(latency, over_limit=over + missing)


def _over_by_our_count(latencies: dict[str, ConstraintLatency], number: int, told: set[str]) -> list[Reason]:
    """More over the limit by the event log than the early-stopping rule allows, where the summary does not say so."""
    reasons = []
    for name, latency in latencies.items():
        check = f"{name} within {latency.limit:g} ms"
        if name == _NOT_PER_QUERY or check in told or latency.over_limit_allowed < 0:
            continue
        if latency.over_limit > latency.over_limit_allowed:
            got = f"{latency.over_limit} of {number} over it by the event log"
            action = "lower target_qps; the summary of endpoints leaves failed samples out"
            reasons.append(Reason(check, f"at most {latency.over_limit_allowed} over it", got, action))
    return reasons


def _notes(record: EndpointsRecord, transfer: TransferEvidence | None) -> list[str]:
    notes = []
    if not record.commit:
        notes.append(f"endpoints {record.version}: its installation does not record its commit")
    if transfer is None:
        notes.append("no engine counters were read: nothing is said about disaggregation")
    return notes

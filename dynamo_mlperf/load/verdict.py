"""The verdict of a LoadGen run, from what it left behind.

VALID only when all agree: LoadGen's result, its summary, its error entries, the settings in force, our own clock and
counts, the early-stopping rule recomputed from `queries.csv`, no failed request, a client that was fast enough, and the
engines' counters. INVALID names each rule that was not met; FAILED means that nothing was measured, and shows no
figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit, early_stopping_latency, plain_percentile
from dynamo_mlperf.benchmark.rules import PERCENTILE, benchmark
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load import checks
from dynamo_mlperf.load.lateness import LOADGEN_HELD_UP, as_account, issued_in_time, logged_percentile_ms, told_in_time
from dynamo_mlperf.load.loadgen_schedule import by_schedule, lateness_ms
from dynamo_mlperf.load.loadgen_summary import summary_reasons
from dynamo_mlperf.load.logs import LoadgenLog, read_logs
from dynamo_mlperf.load.over_limit import LOGGED_SHARES
from dynamo_mlperf.load.queries import Queries, read_client, read_queries
from dynamo_mlperf.record import ConstraintLatency, Reason, ResultClass, TransferEvidence, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.load.queries import Times
    from dynamo_mlperf.load.settings import LoadSettings

_THROUGHPUTS = ("result_completed_samples_per_sec", "result_samples_per_second")
"""LoadGen's keys in the Server scenario and in Offline."""
_DIFFERENT = 0.05
_DIFFERENT_MS = 5.0


def judge(
    load_dir: Path,
    settings: LoadSettings,
    transfer: TransferEvidence | None,
    result_class: ResultClass,
    run_dir: str,
    *,
    compliance: bool = False,
) -> Verdict:
    """The verdict of the run whose logs and client files are in `load_dir`.

    Args:
        load_dir: Where the LoadGen process wrote.
        settings: What was asked for.
        transfer: The engines' counters over the measured window; None where nobody could read any.
        result_class: official, reduced or rehearsal.
        run_dir: Recorded in the verdict.
        compliance: Whether an `audit.config` was wanted: such a test, as an accuracy test, is not judged by its times.
    """
    timed = settings.mode == "performance" and not compliance
    try:
        log = read_logs(load_dir)
        queries = read_queries(load_dir / "queries.csv")
        client = read_client(load_dir / "client.json")
    except MeasureError as error:
        return failed(settings, result_class, run_dir, error, transfer)
    late_ms = lateness_ms(queries, log, settings)
    latencies = _latencies(by_schedule(queries, late_ms), log, settings)
    reasons = [
        *checks.failures(queries),
        *checks.settings_in_force(log, settings, compliance=compliance),
        *checks.audit_config(log, compliance=compliance),
        *checks.duration(queries, settings),
        *checks.counts(queries, log, client, settings),
        *(_in_time(log, queries, client, settings, late_ms) if timed else ()),
        *checks.transfers(transfer, len(queries), result_class),
        *(() if compliance else checks.claimed_class(settings, result_class)),
        *_tokens(queries, settings, result_class),
    ]
    if timed:
        for name, latency in latencies.items():
            reasons += checks.early_stopping(name, latency, len(queries))
    # Last: it follows from one of the others, and the first reason is the one that people are shown.
    reasons += checks.loadgen_errors(log) if compliance else checks.loadgen_result(log, settings)
    reasons += summary_reasons(log)
    succeeded = int(np.count_nonzero(queries.succeeded))
    measured = succeeded > 0 and queries.duration_s > 0
    return Verdict(
        verdict="INVALID" if reasons else "VALID",
        result_class=result_class,
        benchmark=settings.benchmark,
        scenario=settings.scenario,
        run_dir=run_dir,
        reasons=tuple(dict.fromkeys(reasons)),
        notes=(
            *_notes(log, latencies, transfer, client),
            *(_unscheduled(late_ms, settings) if timed else ()),
            *_stricter(latencies, len(queries), settings),
            *_length(queries, settings, result_class),
        ),
        target_qps=settings.target_qps,
        completed_qps=_throughput(log, queries) if measured else None,
        tokens_per_second=float(queries.output_tokens[queries.succeeded].sum()) / queries.duration_s
        if measured
        else None,
        requests=len(queries),
        failed_requests=len(queries) - succeeded,
        duration_s=queries.duration_s,
        latency_p99_ms=latencies if measured else {},
        transfer=transfer,
        client={**client, "failed": client["failed"][: checks.NAMED], "issued_late_ms": as_account(late_ms)},
    )


def _in_time(
    log: LoadgenLog, queries: Queries, client: dict[str, Any], settings: LoadSettings, late_ms: Times | None
) -> list[Reason]:
    """Neither the client nor LoadGen's own process was late: where times are judged, they are those of the system."""
    return [
        *checks.client_health(client, settings),
        *issued_in_time(late_ms, settings, LOADGEN_HELD_UP),
        *told_in_time(log, _own_percentiles(by_schedule(queries, late_ms)), settings),
    ]


def _unscheduled(late_ms: Times | None, settings: LoadSettings) -> list[str]:
    """Said where nobody can tell when a query was to be issued; Offline issues all at once."""
    if late_ms is not None or settings.loadgen_scenario == "Offline":
        return []
    return ["LoadGen's log shows another schedule than its seed gives: latencies count from the issue of each query"]


def _tokens(queries: Queries, settings: LoadSettings, result_class: ResultClass) -> list[Reason]:
    """An official accuracy run answers at the length of the reference; part of a data set says nothing of it."""
    if settings.mode != "accuracy" or result_class != "official" or not queries.succeeded.any():
        return []
    mean = float(queries.output_tokens[queries.succeeded].mean())
    found = checks.tokens_out_of_range(mean, benchmark(settings.benchmark, settings.round_name))
    return [] if found is None else [found]


def _length(queries: Queries, settings: LoadSettings, result_class: ResultClass) -> list[str]:
    """Simulated engines answer as long as they may: of them nothing is said."""
    if settings.mode == "accuracy" or result_class == "rehearsal" or not queries.succeeded.any():
        return []
    mean = float(queries.output_tokens[queries.succeeded].mean())
    return checks.tokens_per_sample(mean, benchmark(settings.benchmark, settings.round_name))


def _stricter(latencies: dict[str, ConstraintLatency], number: int, settings: LoadSettings) -> list[str]:
    """Where LoadGen's rule is met to the last sample, and that of endpoints, one sample stricter, would not be."""
    if "endpoints" not in benchmark(settings.benchmark, settings.round_name).clients:
        return []
    return [
        f"{name}: {latency.over_limit} of {number} over the limit is the last number that LoadGen passes; "
        "the endpoints client wants one less"
        for name, latency in latencies.items()
        if latency.over_limit == latency.over_limit_allowed > 0
    ]


def _throughput(log: LoadgenLog, queries: Queries) -> float:
    """Answered queries (Offline: samples) per second.

    LoadGen's own figure, which a submission reports, where every request was answered: it divides one query less than
    were issued by the time, and counts failed ones too, so that with failures only our own count will do.
    """
    succeeded = int(np.count_nonzero(queries.succeeded))
    if succeeded == len(queries):
        for key in _THROUGHPUTS:
            if key in log.values:
                return float(log.values[key])
    return succeeded / queries.duration_s


def failed(
    settings: LoadSettings,
    result_class: ResultClass,
    run_dir: str,
    error: MeasureError,
    transfer: TransferEvidence | None = None,
) -> Verdict:
    """The verdict of a run that did not measure; it shows no figure."""
    return Verdict(
        verdict="FAILED",
        result_class=result_class,
        benchmark=settings.benchmark,
        scenario=settings.scenario,
        run_dir=run_dir,
        reasons=(Reason("measurement", "whole logs of a finished test", error.what, error.action),),
        target_qps=settings.target_qps,
        transfer=transfer,
    )


def _own_percentiles(queries: Queries) -> dict[float, float]:
    """End-to-end percentiles by our client's clock; empty without answers."""
    values = queries.latencies_ms("end_to_end").tolist()
    return {share: plain_percentile(values, share) for share in LOGGED_SHARES} if values else {}


def _scheduled(log: LoadgenLog, name: str, share: float, own: float) -> float:
    """A percentile by LoadGen's clock, which starts at the scheduled time, where it logs that one; else ours."""
    theirs = logged_percentile_ms(log, share) if name == "end_to_end" else None
    return own if theirs is None else max(own, theirs)


def _latencies(queries: Queries, log: LoadgenLog, settings: LoadSettings) -> dict[str, ConstraintLatency]:
    """Latencies by constraint; a failed request is over every limit and in no percentile.

    The rules count from the schedule: time that a query waited to be issued is the system's in their eyes.
    """
    number = len(queries)
    lost = number - int(np.count_nonzero(queries.succeeded))
    found: dict[str, ConstraintLatency] = {}
    for name, limit in settings.limits_ms.items():
        values = queries.latencies_ms(name)
        some = values.tolist() or [float("nan")]
        stopped = early_stopping_latency([*values.tolist(), *([float("inf")] * lost)], settings.percentile)
        found[name] = ConstraintLatency(
            plain=_scheduled(log, name, PERCENTILE, plain_percentile(some, PERCENTILE)),
            at_percentile=_scheduled(log, name, settings.percentile, plain_percentile(some, settings.percentile)),
            early_stopping=None if stopped == float("inf") else stopped,
            limit=limit,
            percentile=settings.percentile,
            over_limit=max(int(np.count_nonzero(values > limit)) + lost, checks.logged_over_limit(log, name)),
            over_limit_allowed=allowed_over_limit(number, settings.percentile),
        )
    return found


def _notes(
    log: LoadgenLog,
    latencies: dict[str, ConstraintLatency],
    transfer: TransferEvidence | None,
    client: dict[str, Any],
) -> tuple[str, ...]:
    notes = [f"LoadGen warned: {warning}" for warning in log.warnings]
    if transfer is None:
        notes.append("no engine counters were read: nothing is said about disaggregation")
    if client.get("retried_connections"):
        notes.append(f"{client['retried_connections']} idle connections had been closed by a frontend; sent again")
    theirs = log.values.get("result_99.00_percentile_latency_ns")
    ours = latencies.get("end_to_end")
    if ours is not None and theirs is not None:
        gap_ms = abs(theirs / 1e6 - ours.plain)
        if gap_ms > _DIFFERENT_MS and gap_ms > _DIFFERENT * ours.plain:
            notes.append(f"p99 is {theirs / 1e6:.1f} ms by LoadGen and {ours.plain:.1f} ms by the client's own clock")
    return tuple(notes)

"""The verdict of a LoadGen test that this project did not run, from LoadGen's own logs.

Everything that those logs show is held against the rules of the round, the early-stopping rule included; what they do
not show is said, so that nobody takes silence for a check. The rules apply in full: a test with lowered settings is
INVALID, with each of them named.
"""

from __future__ import annotations

import os
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.rounds import round_with_seeds
from dynamo_mlperf.benchmark.shapes import Seeds
from dynamo_mlperf.files import open_regular
from dynamo_mlperf.load.checks import contradictions, loadgen_errors, over_limit_reasons, tokens_per_sample
from dynamo_mlperf.load.loadgen_summary import summary_reasons
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.load.over_limit import RANGE_KEYS, OverLimit, counted, figure, logged
from dynamo_mlperf.load.trace import TRACE, traced_latencies_ms
from dynamo_mlperf.record import ConstraintLatency, Reason, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.load.logs import LoadgenLog
    from dynamo_mlperf.load.queries import Times

_NS_PER_MS = 1_000_000
_SIX_DIGITS = 1e-5
"""LoadGen logs rates with six digits."""
_EDGE_BYTES = 64
"""Of the answers' log: what shows that it begins, or ends."""

_NOT_IN_THESE_LOGS = (
    "failed requests: LoadGen counts an answer with an error as completed",
    "the client's own speed: no account of it beside the logs",
    "KV transfers and remote prefill: no engine counters beside the logs",
)


def judge_loadgen(directory: Path, rules: Benchmark, scenario: str, rules_round: Round) -> Verdict:
    """The verdict by the full rules.

    Args:
        directory: Holds `mlperf_log_detail.txt`, the summary, and LoadGen's trace where one was written.
        rules: The benchmark of the test.
        scenario: Offline, Server or Interactive.
        rules_round: The round that it is judged by.

    Raises:
        MeasureError: There is no log, or not the log of a test that ended.
    """
    log = read_logs(directory)
    accuracy = log.values["effective_test_mode"] == "AccuracyOnly"
    traced = traced_latencies_ms(directory / TRACE)
    reasons = [*loadgen_errors(log), *_seeds(log, rules_round), *_mode(log), *_scenario(log, scenario)]
    counts: dict[str, OverLimit] = {}
    if accuracy:
        reasons += [*_accuracy_settings(log, rules, scenario), *_answers(directory / ACCURACY_LOG)]
    else:
        reasons += [*_settings(log, rules, scenario), *_duration(log, rules, scenario), *_counts(log)]
        counts = _over_limits(log, traced, rules, scenario)
        reasons += _traced(log, traced)
        for name, limit_ms in rules.limits[scenario].by_constraint.items():
            reasons += (
                over_limit_reasons(name, counts[name], limit_ms) if name in counts else [_unmeasured(name, limit_ms)]
            )
        reasons += _result(log)
    reasons += summary_reasons(log)
    notes = [
        *(f"LoadGen warned: {warning}" for warning in log.warnings),
        *_open_notes(log, counts, rules, scenario, accuracy=accuracy),
        *([] if accuracy else tokens_per_sample(_mean_tokens(log), rules)),
        *(f"not checked: {what}" for what in _NOT_IN_THESE_LOGS),
    ]
    values = log.values
    number = int(values.get("result_query_count") or values.get("generated_query_count") or 0)
    return Verdict(
        verdict="INVALID" if reasons else "VALID",
        result_class="official",
        benchmark=rules.name,
        scenario=scenario,
        run_dir=str(directory),
        reasons=tuple(dict.fromkeys(reasons)),
        notes=tuple(notes),
        target_qps=figure(values.get("effective_target_qps")),
        completed_qps=None if accuracy else _rate(log),
        tokens_per_second=figure(
            values.get("result_completed_tokens_per_second", values.get("result_tokens_per_second"))
        ),
        requests=number * int(values.get("generated_samples_per_query", 1)),
        duration_s=_duration_s(log),
        latency_p99_ms=_latencies(counts, rules, scenario),
    )


def _unmeasured(name: str, limit_ms: float) -> Reason:
    action = "name the model to LoadGen as mlperf.conf does, and report first tokens and token counts to it"
    return Reason(f"{name} within {limit_ms:g} ms", "its percentiles", "not logged", action)


def _seeds(log: LoadgenLog, rules_round: Round) -> list[Reason]:
    keys = ("effective_qsl_rng_seed", "effective_sample_index_rng_seed", "effective_schedule_rng_seed")
    wanted = zip(keys, astuple(rules_round.seeds), strict=True)
    theirs = round_with_seeds(Seeds(*(log.values.get(key, 0) for key in keys)))
    action = "run again with the LoadGen of the round"
    if theirs is not None:
        action = f"these are the seeds of {theirs.name}: judge it with --round {theirs.name}"
    return [
        Reason(f"setting {key}", f"{seed} (round {rules_round.name})", str(log.values.get(key, "nothing")), action)
        for key, seed in wanted
        if log.values.get(key) != seed
    ]


def _mode(log: LoadgenLog) -> list[Reason]:
    """Only the two modes of a submission, without a compliance test's settings."""
    mode = log.values["effective_test_mode"]
    reasons = []
    if mode not in ("PerformanceOnly", "AccuracyOnly"):
        wanted = "PerformanceOnly or AccuracyOnly"
        reasons.append(Reason("setting effective_test_mode", wanted, str(mode), "run the two tests one by one"))
    if log.audit_config_applied:
        action = "a compliance test is no performance result: run again without it"
        reasons.append(Reason("audit.config", "none", "one was applied", action))
    changed = [
        key for key in ("effective_performance_issue_unique", "effective_performance_issue_same") if log.values.get(key)
    ]
    reasons += [
        Reason(f"setting {key}", "False", "True", "leave it out of user.conf, and run again") for key in changed
    ]
    return reasons


def _scenario(log: LoadgenLog, scenario: str) -> list[Reason]:
    wanted = "Offline" if scenario == "Offline" else "Server"
    got = log.values.get("effective_scenario")
    if got == wanted:
        return []
    return [Reason("setting effective_scenario", wanted, str(got), "judge it by its own scenario (--scenario)")]


def _settings(log: LoadgenLog, rules: Benchmark, scenario: str) -> list[Reason]:
    """Nothing lowered: limits at most the rules', counts and duration at least."""
    values = log.values
    samples = rules.performance_sample_count[scenario]
    reasons = [
        *_at_least(values, "effective_min_duration_ms", rules.min_duration_ms),
        *_at_least(values, "effective_performance_sample_count", samples),
    ]
    if values.get("effective_sample_concatenate_permutation") is not True:
        action = "name the model to LoadGen as mlperf.conf does: it then issues every sample equally often"
        reasons.append(Reason("setting effective_sample_concatenate_permutation", "True", "False", action))
    if rules.use_token_latencies and values.get("requested_use_token_latencies") is not True:
        action = "name the model to LoadGen as mlperf.conf does: only TTFT and TPOT are judged"
        reasons.append(Reason("setting requested_use_token_latencies", "True", "not set", action))
    if scenario == "Offline":
        return [*reasons, *_at_least(values, "effective_samples_per_query", rules.offline_min_samples)]
    limits = rules.limits[scenario]
    reasons += _at_least(values, "effective_target_latency_percentile", limits.percentile)
    keys = {
        "effective_target_latency_ns": limits.latency_ms,
        "requested_server_ttft_latency": limits.ttft_ms,
        "requested_server_tpot_latency": limits.tpot_ms,
    }
    for key, limit_ms in keys.items():
        if limit_ms is not None:
            reasons += _at_most(values, key, round(limit_ms * _NS_PER_MS))
    return reasons


def _accuracy_settings(log: LoadgenLog, rules: Benchmark, scenario: str) -> list[Reason]:
    wanted = rules.accuracy_sample_count[scenario]
    key = "effective_accuracy_sample_count"
    got = log.values.get(key, log.values.get("qsl_reported_total_count"))
    issued = int(log.values.get("generated_query_count", 0)) * int(log.values.get("generated_samples_per_query", 1))
    action = "run the whole data set"
    reasons = [] if got == wanted else [Reason(f"setting {key}", str(wanted), str(got), action)]
    if issued < wanted:
        reasons.append(Reason("samples issued", str(wanted), str(issued), action))
    return reasons


def _answers(path: Path) -> list[Reason]:
    """The answers are there from the first to the last, if truncated between as in a submission."""
    try:
        with open_regular(path) as log:
            begin = log.read(_EDGE_BYTES)
            log.seek(max(0, os.fstat(log.fileno()).st_size - _EDGE_BYTES))
            end = log.read()
    except OSError:
        begin = end = b""
    if begin.lstrip().startswith(b"[") and b"{" in begin and end.rstrip().endswith(b"]"):
        return []
    got = "one that is cut, or holds none" if begin else "none, or an empty one"
    return [Reason(f"answers in {path.name}", "from the first to the last", got, "take it as LoadGen wrote it")]


_LOWERED = "take the line out of user.conf, and run again"


def _at_least(values: dict[str, Any], key: str, wanted: float) -> list[Reason]:
    got = values.get(key)
    if isinstance(got, int | float) and got >= wanted * (1 - _SIX_DIGITS):
        return []
    return [Reason(f"setting {key}", f"{wanted:g} or more", "nothing" if got is None else f"{got:g}", _LOWERED)]


def _at_most(values: dict[str, Any], key: str, wanted_ns: int) -> list[Reason]:
    got = values.get(key)
    if isinstance(got, int | float) and 0 < got <= wanted_ns:
        return []
    shown = "nothing" if got is None else str(got)
    return [Reason(f"setting {key}", f"{wanted_ns} or less", shown, "judge by the limits of the rules: " + _LOWERED)]


def _rate(log: LoadgenLog) -> float | None:
    for key in ("result_completed_samples_per_sec", "result_samples_per_second"):
        if key in log.values:
            return figure(log.values[key])
    return None


def _duration_s(log: LoadgenLog) -> float | None:
    """How long the test took, from its count and rate; Server counts one query less than it issued."""
    rate = _rate(log)
    if not rate:
        return None
    number = int(log.values.get("result_query_count", 0))
    if log.values.get("effective_scenario") == "Offline":
        return number * int(log.values.get("generated_samples_per_query", 1)) / rate
    return max(number - 1, 0) / rate


def _duration(log: LoadgenLog, rules: Benchmark, scenario: str) -> list[Reason]:
    got_s, wanted_s = _duration_s(log), rules.min_duration_ms / 1000
    if got_s is not None and got_s >= wanted_s * (1 - _SIX_DIGITS):
        return []
    action = "set target_qps higher: LoadGen plans an Offline run by it" if scenario == "Offline" else "run for longer"
    return [Reason("duration", f"{wanted_s:g} s or more", "not logged" if got_s is None else f"{got_s:.3f} s", action)]


def _counts(log: LoadgenLog) -> list[Reason]:
    planned, ended = (int(log.values.get(key, 0)) for key in ("generated_query_count", "result_query_count"))
    if planned == ended > 0:
        return []
    return [Reason("queries that LoadGen issued", str(planned), str(ended), "run the measurement again")]


def _result(log: LoadgenLog) -> list[Reason]:
    """LoadGen's own result, which the rules ask for whatever we say."""
    if log.validity == "VALID":
        return contradictions(log)
    said = str(log.values.get("result_invalid_reason") or "").strip()
    shown = f"{log.validity} ({said})" if said else f"{log.validity}"
    return [Reason("LoadGen's result", "VALID", shown, "see mlperf_log_summary.txt")]


def _traced(log: LoadgenLog, traced: dict[str, Times]) -> list[Reason]:
    """A trace is that of the test: it has every query, from LoadGen's lowest latency to its highest."""
    if log.values.get("effective_scenario") != "Server":
        return []
    for name, latencies in traced.items():
        lowest, highest = (log.values.get(key) for key in RANGE_KEYS[name])
        number, logged_number = len(latencies), log.values.get("result_query_count")
        at_ns = (round(latencies[0] * _NS_PER_MS), round(latencies[-1] * _NS_PER_MS))
        if number != logged_number or (lowest is not None and at_ns != (lowest, highest)):
            got = f"{number} of {logged_number} queries with {name} from {at_ns[0]} to {at_ns[1]} ns"
            action = "take both of one test, or leave the trace out"
            return [Reason(f"LoadGen's {TRACE}", f"that of the test in {DETAIL}", got, action)]
    return []


def _over_limits(log: LoadgenLog, traced: dict[str, Times], rules: Benchmark, scenario: str) -> dict[str, OverLimit]:
    """Each constraint by the best evidence there is: every latency from the trace, else LoadGen's percentiles."""
    limits = rules.limits[scenario]
    found = {}
    number = int(log.values.get("result_query_count", 0))
    for name, limit_ms in limits.by_constraint.items():
        latencies = traced.get(name)
        count = logged(log, name, limit_ms, limits.percentile)
        # Another test's trace, which is a reason of its own, hides nothing of what the log itself shows.
        shown = count is not None and count.outcome == "failed"
        if latencies is not None and len(latencies) == number > 0 and not shown:
            found[name] = counted(latencies, limit_ms, limits.percentile)
        elif count is not None:
            found[name] = count
    return found


def _latencies(counts: dict[str, OverLimit], rules: Benchmark, scenario: str) -> dict[str, ConstraintLatency]:
    limits = rules.limits[scenario].by_constraint
    return {
        name: ConstraintLatency(
            plain=count.p99_ms,
            at_percentile=count.at_percentile_ms,
            early_stopping=count.early_stopping_ms,
            limit=limits[name],
            percentile=count.percentile,
            over_limit=count.bound,
            over_limit_allowed=count.allowed,
        )
        for name, count in counts.items()
        if count.p99_ms is not None and count.at_percentile_ms is not None
    }


def _open_notes(
    log: LoadgenLog, counts: dict[str, OverLimit], rules: Benchmark, scenario: str, *, accuracy: bool
) -> list[str]:
    """What the logs leave open about the constraints."""
    if accuracy:
        return ["not checked: accuracy and tokens per sample: score mlperf_log_accuracy.json"]
    notes = []
    for name in rules.limits[scenario].by_constraint:
        if name in counts and counts[name].at_least != counts[name].at_most:
            count = counts[name]
            said = "met" if log.values.get("early_stopping_met") else "not met"
            start = "not checked to the last sample: " if count.outcome == "open" else ""
            notes.append(
                f"{start}{name}: {count.shown} of {count.number} over the limit by LoadGen's percentiles, "
                f"{max(0, count.allowed)} may be; LoadGen itself says early stopping {said}"
            )
    return notes


def _mean_tokens(log: LoadgenLog) -> float | None:
    """Mean output tokens per sample, where LoadGen was told of tokens."""
    rate, seconds = log.values.get("result_completed_tokens_per_second"), _duration_s(log)
    number = int(log.values.get("result_query_count", 0))
    return None if rate is None or not seconds or not number else (figure(rate) or 0.0) * seconds / number

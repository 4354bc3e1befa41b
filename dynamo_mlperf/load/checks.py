"""The checks of a verdict; each gives the reasons why a run is not VALID, none when it is met."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.load.health import client_limit
from dynamo_mlperf.load.logs import AGAIN
from dynamo_mlperf.load.settings import below_rules
from dynamo_mlperf.load.stopping import too_few, too_many_over
from dynamo_mlperf.load.user_conf import expected_effective
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.load.logs import LoadgenLog
    from dynamo_mlperf.load.over_limit import OverLimit
    from dynamo_mlperf.load.queries import Queries
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ConstraintLatency, TransferEvidence

NAMED = 10
"""Failed requests that a reason names; `client.json` has all of them."""

_LOG_PRECISION = 1e-5
"""LoadGen logs numbers with six digits."""

MEAN_TOKENS = "mean output tokens per sample"
"""What an accuracy test is held to beside its scores."""

PROOF = "proof of disaggregation"
"""The check that engine counters pass."""

_COMPLIANCE_KEYS = ("effective_accuracy_log_", "effective_performance_issue_")
"""What an `audit.config` may change."""


def loadgen_errors(log: LoadgenLog) -> list[Reason]:
    """LoadGen's error entries, which do not change its result."""
    if not log.error_count:
        return []
    first = log.errors[0] if log.errors else "not in the detail log"
    return [
        Reason(
            "error entries in LoadGen's log",
            "0",
            f"{log.error_count}, the first: {first}",
            "LoadGen calls such a run VALID all the same: mend the cause in mlperf_log_detail.txt",
        )
    ]


def contradictions(log: LoadgenLog) -> list[Reason]:
    """A detail log that calls a test VALID says nothing else."""
    action = "take the log of one test, as LoadGen wrote it"
    return [Reason("LoadGen's result", "a log that agrees on it", said, action) for said in log.contradictions]


def loadgen_result(log: LoadgenLog, settings: LoadSettings) -> list[Reason]:
    """LoadGen's error entries, then its result."""
    reasons = [*loadgen_errors(log), *contradictions(log)]
    if settings.mode == "performance" and log.validity != "VALID":
        said = str(log.values.get("result_invalid_reason") or "early stopping").strip()
        reasons.append(Reason("LoadGen's result", "VALID", f"{log.validity} ({said})", "see mlperf_log_summary.txt"))
    return reasons


def settings_in_force(log: LoadgenLog, settings: LoadSettings, *, compliance: bool) -> list[Reason]:
    """Every requested setting against the one that LoadGen logs, seeds included."""
    reasons = []
    for key, wanted in expected_effective(settings).items():
        if compliance and key.startswith(_COMPLIANCE_KEYS):
            continue
        got = log.values.get(key)
        if not _same(wanted, got):
            action = "the line in user.conf had no effect, or this LoadGen is of another round: see user.conf"
            shown = "nothing" if got is None else str(got)
            reasons.append(Reason(f"setting {key}", str(wanted), shown, action))
    return reasons


def _same(wanted: object, got: object) -> bool:
    if isinstance(wanted, float) and isinstance(got, int | float):
        return math.isclose(wanted, got, rel_tol=_LOG_PRECISION)
    return type(wanted) is type(got) and wanted == got


ALMOST = 0.9
"""A run that lasted this share of the time lacked a little room; one that is shorter was cut, or made for less."""


def audit_config(log: LoadgenLog, *, compliance: bool) -> list[Reason]:
    """An `audit.config` is picked up when, and only when, this is a compliance run."""
    if log.audit_config_applied == compliance:
        return []
    if compliance:
        return [Reason("audit.config", "picked up by LoadGen", "not picked up", "put it into the working directory")]
    return [Reason("audit.config", "none", "one was applied", "remove it from the working directory, and run again")]


def duration(queries: Queries, settings: LoadSettings) -> list[Reason]:
    """The run is long enough by our own clock."""
    wanted_s, got_s = settings.min_duration_ms / 1000, queries.duration_s
    if settings.mode == "accuracy" or got_s >= wanted_s:
        return []
    action = "run again"
    if settings.scenario != "Offline" and got_s >= ALMOST * wanted_s:
        # The seed fixes the arrivals, so the same queries at a lower rate take longer by that much.
        room = slower(settings.target_qps * got_s / wanted_s)
        action = f"set target_qps to {room} or less: the queries of the run, whole data sets, then last long enough"
    elif settings.scenario == "Offline" and got_s > 0:
        # LoadGen plans an Offline run's samples by target_qps, so the length of the run follows it.
        enough = max(1.1 * len(queries) / got_s, settings.target_qps * wanted_s / got_s)
        action = f"set target_qps to about {_rounded_up(enough)}: LoadGen plans an Offline run by it"
    return [Reason("duration", f"{wanted_s:g} s or more", f"{got_s:.3f} s", action)]


def slower(rate: float) -> str:
    """A rate to write into a file: half a percent below `rate`, cut after the third digit behind the point."""
    return f"{math.floor(995 * rate) / 1000:g}"


def _rounded_up(rate: float) -> str:
    """A rate to write into a file: the next whole number, or the next tenth below 10."""
    return f"{math.ceil(rate)}" if rate >= 10 else f"{math.ceil(rate * 10) / 10:g}"  # noqa: PLR2004 - two digits


def counts(queries: Queries, log: LoadgenLog, client: Mapping[str, Any], settings: LoadSettings) -> list[Reason]:
    """Queries: enough, none lost between LoadGen and our client, and every sample equally often."""
    reasons = []
    number = len(queries)
    least = settings.accuracy_sample_count if settings.mode == "accuracy" else settings.min_query_count
    if number < least:
        reasons.append(Reason("queries", f"{least} or more", str(number), "run for longer or at a higher target_qps"))
    planned = int(log.values.get("generated_query_count", 0)) * int(log.values.get("generated_samples_per_query", 0))
    if not planned == number == client["requests"]:
        got = f"{number} in queries.csv, {client['requests']} in client.json"
        reasons.append(Reason("queries that LoadGen issued", str(planned), got, "run the measurement again"))
    issued, ended = (log.values.get(key) for key in ("generated_query_count", "result_query_count"))
    if ended is not None and ended != issued:
        reasons.append(Reason("queries that ended by LoadGen's log", str(issued), str(ended), AGAIN))
    named, failed = len(client["failed"]), sum(bool(error) for error in queries.errors)
    if named > failed:
        got = f"{failed} in queries.csv, {named} in client.json"
        reasons.append(Reason("failed requests in both files", "the same", got, "copy the run directory again"))
    samples = settings.accuracy_sample_count if settings.mode == "accuracy" else settings.performance_sample_count
    if settings.sample_concatenate_permutation and number:
        reasons += equal_issue(queries, samples)
    return reasons


def equal_issue(queries: Queries, samples: int) -> list[Reason]:
    """Every one of the data set's `samples` samples was issued, all equally often, and nothing else was."""
    drawn, times = np.unique(queries.samples, return_counts=True)
    outside = drawn[(drawn < 0) | (drawn >= samples)]
    if len(outside):
        got = f"sample {outside[0]}, where the last is {samples - 1}"
    elif len(drawn) != samples or np.ptp(times):
        got = f"{len(drawn)} samples, each {times.min()} to {times.max()} times"
    else:
        return []
    return [Reason("equal issue", f"{samples} samples, equally often", got, AGAIN)]


def failures(queries: Queries) -> list[Reason]:
    """No request failed, and every answer has a token."""
    failed = [index for index, error in enumerate(queries.errors) if error]
    reasons = []
    if failed:
        named = "; ".join(f"sample {queries.samples[index]}: {queries.errors[index]}" for index in failed[:NAMED])
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        got = f"{len(failed)} of {len(queries)} ({named}{more})"
        reasons.append(Reason("failed requests", "0", got, "client.json names every one; see the workers' logs"))
    empty = np.flatnonzero(queries.succeeded & (queries.output_tokens < 1))
    if empty.size:
        got = f"{empty.size} without, the first of sample {queries.samples[empty[0]]}"
        reasons.append(Reason("answers with a token", "all", got, "look at the model's answers"))
    return reasons


def early_stopping(name: str, latency: ConstraintLatency, number: int) -> list[Reason]:
    """Enough queries, and few enough over the limit, for the judged percentile with confidence 0.99."""
    if latency.over_limit_allowed < 0:
        return [too_few(number, latency.over_limit, latency.percentile)]
    if latency.over_limit <= latency.over_limit_allowed:
        return []
    percent = f"p{latency.percentile * 100:g}"
    seen = f", {percent} {latency.at_percentile:.1f} ms" if not math.isnan(latency.at_percentile) else ""
    if latency.early_stopping is not None:
        seen += f", early-stopping {percent} {latency.early_stopping:.1f} ms"
    return [too_many_over(name, latency.limit, number, latency.over_limit, latency.percentile, seen=seen)]


def over_limit_reasons(name: str, count: OverLimit, limit_ms: float) -> list[Reason]:
    """The same from whatever a log shows of the latencies; what it leaves open is no reason."""
    if count.allowed < 0:
        return [too_few(count.number, count.at_least, count.percentile)]
    if count.outcome != "failed":
        return []
    percent = f"p{count.percentile * 100:g}"
    seen = "" if count.at_percentile_ms is None else f", {percent} {count.at_percentile_ms:.1f} ms"
    return [too_many_over(name, limit_ms, count.number, count.at_least, count.percentile, seen=seen, shown=count.shown)]


def tokens_out_of_range(mean: float | None, rules: Benchmark) -> Reason | None:
    """The mean of output tokens per sample against the bounds of an accuracy run; None where it is within, or unknown.

    The checker applies them to `TOKENS_PER_SAMPLE` of accuracy.txt alone (`accuracy-target`, `accuracy-upper-limit`
    in its constants), never to a performance log.
    """
    low, high = rules.tokens_per_sample
    if mean is None or ((low is None or mean >= low) and (high is None or mean <= high)):
        return None
    wanted = f"{low:g} to {high:g}" if low is not None else f"at most {high:g}"
    action = "check the chat template, the end-of-text token and the cap on output tokens"
    return Reason(MEAN_TOKENS, wanted, f"{mean:.1f}", action)


def tokens_per_sample(mean: float | None, rules: Benchmark) -> list[str]:
    """The same for a performance run, which is not judged by it: a note that its accuracy run would not pass."""
    found = tokens_out_of_range(mean, rules)
    return [] if found is None else [f"an accuracy run like this one would not pass: {found.text()}"]


def client_health(client: Mapping[str, Any], settings: LoadSettings) -> list[Reason]:
    """The client did not limit the run."""
    text = client_limit(client, settings) or client["client_limited"]
    if not text:
        return []
    got, _, remedy = str(text).partition(": ")
    return [Reason("client-limited", "a client faster than the system under test", got, remedy)]


def logged_over_limit(log: LoadgenLog, name: str) -> int:
    """Queries over the end-to-end limit by LoadGen's own count, which starts at the scheduled time."""
    return int(log.values.get("result_overlatency_query_count", 0)) if name == "end_to_end" else 0


def transfers(evidence: TransferEvidence | None, number: int, result_class: str) -> list[Reason]:
    """A disaggregated run proves by the engines' counters that every prompt was prefilled remotely."""
    if evidence is None or not evidence.disaggregated:
        return []
    if evidence.proof == "none":
        return [Reason(PROOF, "engine counters", "none", "use an engine that counts KV transfers")]
    if evidence.proof == "routing only":
        return _routing(evidence, number, result_class)
    found = (
        ("prompts prefilled remotely", f"{number} of {number}", evidence.remote_prefills, number),
        ("prompt tokens that decode workers computed", "0", evidence.local_tokens, 0),
        ("prompt tokens that came by KV transfer", str(evidence.prompt_tokens), evidence.external_tokens, None),
        ("failed KV transfers", "0", evidence.failed_transfers, 0),
    )
    reasons = []
    for check, wanted, got, exact in found:
        if got != (evidence.prompt_tokens if exact is None else exact):
            action = "check the decode workers' KV transfer settings and the way to the prefill workers"
            reasons.append(Reason(check, wanted, f"{got} of {number}" if exact == number else str(got), action))
    if number and evidence.prompt_tokens < number:
        action = "the counters saw no load: check that they are those of this run's workers"
        reasons.append(
            Reason(
                "prompt tokens that decode workers took in", f"{number} or more", str(evidence.prompt_tokens), action
            )
        )
    return reasons


def _routing(evidence: TransferEvidence, number: int, result_class: str) -> list[Reason]:
    reasons = []
    if evidence.prefill_requests < number:
        got = f"{evidence.prefill_requests} of {number}"
        reasons.append(Reason("prompts prefilled remotely", f"{number} of {number}", got, "check the prefill workers"))
    if result_class != "rehearsal":
        action = "simulated engines prove routing only: the result's class is rehearsal"
        reasons.append(Reason(PROOF, "engine counters", "requests per role only", action))
    return reasons


def claimed_class(settings: LoadSettings, result_class: str) -> list[Reason]:
    """A reduced run does not call itself official."""
    if result_class != "official":
        return []
    lowered = below_rules(settings)
    if lowered and not settings.reduced:
        action = "these settings are not those that the run was made with: copy measure.json again"
        return [Reason("class of the result", "settings of the rules", f"lowered: {', '.join(lowered)}", action)]
    if settings.reduced:
        return [Reason("class of the result", "reduced", "official", "take the reduced: block out for official runs")]
    return []

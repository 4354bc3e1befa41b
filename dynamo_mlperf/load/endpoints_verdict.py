"""The verdict of a run of MLCommons endpoints, by the same rules and by its own early-stopping rule.

Its rule is one sample stricter than LoadGen's: the t-th highest latency has to be within the limit, so a run passes
from 662 queries on (p99). The official checker reads `early_stopping_percentiles` and lets failed samples through
(mlcommons/inference b66003e1, `parsers/endpoints_parser.py`, `checks/performance_check.py`); here they do not pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.early_stopping import minimum_queries
from dynamo_mlperf.benchmark.rules import PERCENTILE
from dynamo_mlperf.load.checks import ALMOST, slower, tokens_per_sample
from dynamo_mlperf.load.endpoints_results import EndpointsResults, read_results
from dynamo_mlperf.load.over_limit import bounded, figure
from dynamo_mlperf.record import ConstraintLatency, Reason, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.benchmark.shapes import Benchmark, Limits

_NOT_IN_THESE_FILES = (
    "that every sample was issued equally often: the summary has no samples",
    "the client's own speed: no account of it beside the results",
    "KV transfers and remote prefill: no engine counters beside the results",
)
_PATTERNS = {"Offline": "max_throughput", "Server": "poisson", "Interactive": "poisson"}


@dataclass(frozen=True)
class Asked:
    """What a run has to meet.

    Attributes:
        rules: The benchmark.
        scenario: Offline, Server or Interactive.
        rules_round: The round.
        limits: Percentile and latency limits in force.
        min_duration_ms: Shortest run in milliseconds.
        least_samples: Fewest samples.
    """

    rules: Benchmark
    scenario: str
    rules_round: Round
    limits: Limits
    min_duration_ms: int
    least_samples: int

    @staticmethod
    def by_rules(rules: Benchmark, scenario: str, rules_round: Round) -> Asked:
        """The full rules."""
        least = rules.offline_min_samples if scenario == "Offline" else 1
        return Asked(rules, scenario, rules_round, rules.limits[scenario], rules.min_duration_ms, least)

    @property
    def by_token(self) -> bool:
        """Whether TTFT and TPOT are judged."""
        return self.rules.use_token_latencies and self.scenario != "Offline"


def judge_endpoints(directory: Path, rules: Benchmark, scenario: str, rules_round: Round) -> Verdict:
    """The verdict by the full rules.

    Args:
        directory: Holds `config.yaml` and `performance/result_summary.json`.
        rules: The benchmark of the run.
        scenario: Offline, Server or Interactive.
        rules_round: The round that it is judged by.

    Raises:
        MeasureError: There are no results, or not of a run that ended.
    """
    results = read_results(directory)
    asked = Asked.by_rules(rules, scenario, rules_round)
    reasons = results_reasons(results, asked)
    mean = figure(results.measured("output_sequence_lengths", "avg"))
    return Verdict(
        verdict="INVALID" if reasons else "VALID",
        result_class="official",
        benchmark=rules.name,
        scenario=scenario,
        run_dir=str(directory),
        reasons=tuple(reasons),
        notes=(*tokens_per_sample(mean, rules), *(f"not checked: {what}" for what in _NOT_IN_THESE_FILES)),
        target_qps=figure(results.setting("settings", "load_pattern", "target_qps")),
        completed_qps=figure(results.measured("qps")),
        tokens_per_second=figure(results.measured("tps")),
        requests=results.issued,
        failed_requests=results.failed,
        duration_s=results.duration_s,
        latency_p99_ms=known_latencies(results, asked),
    )


def results_reasons(results: EndpointsResults, asked: Asked) -> list[Reason]:
    """Why what endpoints wrote is not VALID, from its two files alone."""
    return [
        *_client(asked.rules, asked.rules_round),
        *_failures(results),
        *_seeds(results, asked.rules_round),
        *_settings(results, asked),
        *_duration(results, asked),
        *_constraints(results, asked),
    ]


def _client(rules: Benchmark, rules_round: Round) -> list[Reason]:
    if "endpoints" in rules.clients:
        return []
    wanted, action = " or ".join(rules.clients), "measure it with LoadGen"
    return [Reason(f"load client of {rules.name} in {rules_round.name}", wanted, "endpoints", action)]


def _failures(results: EndpointsResults) -> list[Reason]:
    if not results.failed:
        return []
    got = f"{results.failed} of {results.issued}"
    return [Reason("failed requests", "0", got, "find them in events.jsonl of the run; see the workers' logs")]


def _seeds(results: EndpointsResults, rules_round: Round) -> list[Reason]:
    """Both files show the two seeds that endpoints has, and they are the round's."""
    wanted = {
        "scheduler_random_seed": rules_round.seeds.schedule,
        "dataloader_random_seed": rules_round.seeds.sample_index,
    }
    action = f"write submission_ref: {{model: ..., ruleset: mlperf-inference-{rules_round.name}}}, which pins them"
    reasons = []
    for key, seed in wanted.items():
        used = results.measured("run_config", key)
        for place, got in ((key, results.setting("settings", "runtime", key)), (f"{key} as used", used)):
            if got != seed and not (got is None and place != key):
                reasons.append(Reason(f"setting {place}", f"{seed} (round {rules_round.name})", str(got), action))
    return reasons


def _settings(results: EndpointsResults, asked: Asked) -> list[Reason]:
    reasons = []
    pattern = results.setting("settings", "load_pattern", "type")
    if pattern != _PATTERNS[asked.scenario]:
        action = "judge it by its own scenario (--scenario), or run again"
        reasons.append(Reason("setting load_pattern.type", _PATTERNS[asked.scenario], str(pattern), action))
    least_ms = results.setting("settings", "runtime", "min_duration_ms")
    if not isinstance(least_ms, int | float) or not least_ms >= asked.min_duration_ms:
        wanted = f"{asked.min_duration_ms} or more"
        reasons.append(Reason("setting min_duration_ms", wanted, str(least_ms), "write it, and run again"))
    if results.issued < asked.least_samples:
        wanted = f"{asked.least_samples} or more"
        reasons.append(Reason("samples", wanted, str(results.issued), "write n_samples_to_issue, and run again"))
    streaming = results.setting("model_params", "streaming")
    if asked.by_token and streaming not in ("on", True):
        action = "write model_params: {streaming: on}: TTFT and TPOT are measured from the stream"
        reasons.append(Reason("setting streaming", "on", str(streaming), action))
    return reasons


def _duration(results: EndpointsResults, asked: Asked) -> list[Reason]:
    wanted_s = asked.min_duration_ms / 1000
    if results.duration_s >= wanted_s:
        return []
    action = "run for longer: write a larger n_samples_to_issue, in whole data sets"
    rate = results.setting("settings", "load_pattern", "target_qps")
    almost = asked.scenario != "Offline" and results.duration_s >= ALMOST * wanted_s
    if almost and isinstance(rate, int | float):
        # The seed fixes the arrivals, so the same samples at a lower rate take longer by that much.
        room = slower(rate * results.duration_s / wanted_s)
        action = f"set target_qps to {room} or less, or write a larger n_samples_to_issue, in whole data sets"
    elif asked.scenario == "Offline":
        rate = math.ceil(10 * results.issued / results.duration_s) / 10
        action = f"set target_qps to about {rate:g}: endpoints plans an Offline run by it"
    return [Reason("duration", f"{wanted_s:g} s or more", f"{results.duration_s:.3f} s", action)]


def _constraints(results: EndpointsResults, asked: Asked) -> list[Reason]:
    """The early-stopping percentile of each constraint is there, and within the limit."""
    limits = asked.limits
    percent = f"p{limits.percentile * 100:g}"
    need = minimum_queries(1, limits.percentile)
    reasons = []
    for name, limit_ms in limits.by_constraint.items():
        stopped = results.percentile_ms(name, limits.percentile, early_stopping=True)
        plain = results.percentile_ms(name, limits.percentile)
        if plain is None and stopped is None:
            action = "measure with streaming on and a tokenizer" if name != "end_to_end" else "run again"
            reasons.append(Reason(f"{name} within {limit_ms:g} ms", f"its {percent}", "not measured", action))
        elif stopped is None or results.issued < need:
            action = "run for longer, or at a higher target_qps"
            wanted = f"{need} with none over (endpoints' rule: one over is counted)"
            reasons.append(Reason(f"too few queries for {percent}", wanted, str(results.issued), action))
        elif (worst := max(stopped, plain or 0.0)) > limit_ms or (asked.by_token and worst >= limit_ms):
            shown = "" if plain is None else f", plain {percent} {plain:.1f} ms"
            action = "lower target_qps, or give the role that limits it more GPUs"
            if plain is not None and plain < limit_ms:
                action = "the plain percentile is within it: run for longer, or lower target_qps a little"
            got = f"early-stopping {percent} {stopped:.1f} ms{shown}"
            reasons.append(Reason(f"{name} within {limit_ms:g} ms", f"early-stopping {percent} within it", got, action))
    return list(dict.fromkeys(reasons))


def known_latencies(results: EndpointsResults, asked: Asked) -> dict[str, ConstraintLatency]:
    """What the summary says of each constraint; the number over the limit is a bound from its percentiles."""
    limits = asked.limits
    found = {}
    for name, limit_ms in limits.by_constraint.items():
        known = results.percentiles(name)
        plain = results.percentile_ms(name, limits.percentile)
        if known is None or plain is None:
            continue
        count = bounded(known, limit_ms, limits.percentile)
        found[name] = ConstraintLatency(
            plain=results.percentile_ms(name, PERCENTILE) or plain,
            at_percentile=plain,
            early_stopping=results.percentile_ms(name, limits.percentile, early_stopping=True),
            limit=limit_ms,
            percentile=limits.percentile,
            over_limit=count.bound,
            over_limit_allowed=count.allowed - 1 if count.allowed > 0 else -1,
        )
    return found

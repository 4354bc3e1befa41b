"""Which benchmark and scenario a test was of, where nobody says: from its place in a submission tree or its settings.

LoadGen logs no model name, but the limits in force tell Server and Interactive apart, and the number of samples tells
Offline runs apart. What fits more than one benchmark is left open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import BENCHMARKS, SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.load.endpoints_results import EndpointsResults
    from dynamo_mlperf.load.logs import LoadgenLog

Guess = tuple[str | None, str | None]
_NS_PER_MS = 1_000_000


def from_path(directory: Path) -> Guess:
    """By names of folders: `.../<benchmark>/<Scenario>/performance/run_1`."""
    parts = directory.absolute().parts
    name = next((part for part in reversed(parts) if part in BENCHMARKS), None)
    scenario = next((part for part in reversed(parts) if part in SCENARIOS), None)
    return name, scenario


def from_log(log: LoadgenLog, rules_round: Round) -> Guess:
    """By the settings in force; a benchmark or scenario that they do not single out is None."""
    values = log.values
    if values.get("effective_scenario") == "Offline":
        samples = values.get("effective_performance_sample_count")
        fits = [name for name, rules in rules_round.benchmarks.items() if rules.offline_min_samples == samples]
        return (fits[0] if len(fits) == 1 else None), "Offline"
    found = []
    for name, rules in rules_round.benchmarks.items():
        for scenario in rules.scenarios:
            limits = rules.limits[scenario]
            wanted = (limits.latency_ms or 0, limits.ttft_ms or 0, limits.tpot_ms or 0)
            tokens = values.get("requested_use_token_latencies", False)
            keys = ("effective_target_latency_ns", "requested_server_ttft_latency", "requested_server_tpot_latency")
            got = tuple(values.get(key, 0) / _NS_PER_MS for key in keys)
            if scenario != "Offline" and got == wanted and tokens == rules.use_token_latencies:
                found.append((name, scenario))
    return found[0] if len(found) == 1 else (None, None)


def from_endpoints(results: EndpointsResults, rules_round: Round) -> Guess:
    """By the configuration's model and load pattern; it does not tell Server and Interactive apart."""
    model = results.model.lower()
    name = next((known for known in rules_round.benchmarks if known in model), None)
    offline = results.setting("settings", "load_pattern", "type") == "max_throughput"
    return name, "Offline" if offline else None

"""The rules of a round as people read them, and as plain JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.benchmark.rounds import Round
    from dynamo_mlperf.benchmark.shapes import Benchmark

_CONSTRAINTS = {"end_to_end": "end-to-end", "ttft": "TTFT", "tpot": "TPOT"}
_HEAD = ("scenario", "limit at p99", "LoadGen model", "performance samples", "accuracy samples", "accuracy floor")


def facts(rules_round: Round) -> dict[str, Any]:
    """Everything that `lines` shows, as plain JSON values; seeds as numbers, limits in milliseconds."""
    return {
        "round": rules_round.name,
        "seeds": asdict(rules_round.seeds),
        "loadgen": rules_round.loadgen,
        "benchmarks": {name: _benchmark(rules) for name, rules in rules_round.benchmarks.items()},
        "sources": list(rules_round.sources),
    }


def _benchmark(rules: Benchmark) -> dict[str, Any]:
    return {
        "clients": list(rules.clients),
        "min_duration_ms": rules.min_duration_ms,
        "offline_min_samples": rules.offline_min_samples,
        "max_new_tokens": rules.max_new_tokens,
        "accuracy_max_new_tokens": rules.accuracy_max_new_tokens,
        "reasoning_effort": dict(rules.reasoning_effort),
        "tokens_per_sample": list(rules.tokens_per_sample),
        "compliance_tests": list(rules.compliance_tests),
        "scenarios": {
            scenario: {
                "percentile": rules.limits[scenario].percentile,
                "limits_ms": rules.limits[scenario].by_constraint,
                "loadgen_model": rules.loadgen_name(scenario),
                "loadgen_scenario": "Offline" if scenario == "Offline" else "Server",
                "limits_set_explicitly": scenario == "Interactive" and not rules.interactive_entry,
                "performance_sample_count": rules.performance_sample_count[scenario],
                "accuracy_sample_count": rules.accuracy_sample_count[scenario],
                "accuracy_floor": dict(rules.accuracy_floor[scenario]),
                "unit": rules.offline_unit if scenario == "Offline" else rules.unit,
            }
            for scenario in rules.scenarios
        },
    }


def lines(rules_round: Round) -> Iterator[str]:
    """The rules of a round, a table per benchmark, then where they were read."""
    seeds = rules_round.seeds
    yield f"MLPerf Inference {rules_round.name}, datacenter, closed (LoadGen {rules_round.loadgen})"
    yield f"seeds: qsl {seeds.qsl}, sample_index {seeds.sample_index}, schedule {seeds.schedule}"
    for rules in rules_round.benchmarks.values():
        yield ""
        yield from _table(rules)
    yield ""
    yield "Sources:"
    for source in rules_round.sources:
        yield f"  {source}"


def _table(rules: Benchmark) -> Iterator[str]:
    yield f"{rules.name} (client: {' or '.join(rules.clients)})"
    rows = [_HEAD, *(_row(rules, scenario) for scenario in rules.scenarios)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    low, high = rules.tokens_per_sample
    bounds = {"at least": low, "at most": high}
    tokens = " and ".join(f"{word} {value:,.10g}" for word, value in bounds.items() if value is not None)
    yield (
        f"  {rules.min_duration_ms / 1000:g} s at least; Offline {rules.offline_min_samples} samples at least; "
        f"result in {_units(rules)}; compliance: {', '.join(rules.compliance_tests) or 'none'}"
    )
    longer = rules.accuracy_max_new_tokens != rules.max_new_tokens
    accuracy = f" ({rules.accuracy_max_new_tokens} in accuracy runs)" if longer else ""
    yield (
        f"  {rules.max_new_tokens} output tokens at most{accuracy}; "
        f"mean output tokens of an accuracy run: {tokens or 'not bounded'}"
    )


def _units(rules: Benchmark) -> str:
    return rules.unit if rules.unit == rules.offline_unit else f"{rules.unit}, Offline in {rules.offline_unit}"


def _row(rules: Benchmark, scenario: str) -> tuple[str, ...]:
    limits = rules.limits[scenario].by_constraint
    floors = rules.accuracy_floor[scenario]
    return (
        scenario,
        ", ".join(f"{_CONSTRAINTS[name]} {limit:g} ms" for name, limit in limits.items()) or "none",
        rules.loadgen_name(scenario),
        str(rules.performance_sample_count[scenario]),
        str(rules.accuracy_sample_count[scenario]),
        ", ".join(f"{metric} {floor:.10g}" for metric, floor in floors.items()),
    )

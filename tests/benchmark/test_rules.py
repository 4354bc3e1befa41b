"""The rules as data: names, limits, and what each scenario is called."""

from __future__ import annotations

import pytest

from dynamo_mlperf.benchmark.rules import BENCHMARKS, SCENARIOS, Limits, benchmark, check_scenario
from dynamo_mlperf.errors import ConfigError


def test_round_has_these_benchmarks() -> None:
    assert set(BENCHMARKS) == {"qwen3-vl-235b-a22b", "gpt-oss-120b", "deepseek-r1", "llama2-70b-99.9"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_scenario_has_its_data(name: str) -> None:
    rules = benchmark(name)
    assert set(rules.limits) == set(rules.performance_sample_count) == set(rules.accuracy_sample_count)
    assert set(rules.limits) == set(SCENARIOS) == set(rules.accuracy_floor)
    assert rules.limits["Offline"] == Limits()
    for scenario in ("Server", "Interactive"):
        limits = rules.limits[scenario]
        assert (limits.latency_ms is None) == rules.use_token_latencies
        assert (limits.ttft_ms is None) == (limits.tpot_ms is None) == (not rules.use_token_latencies)
    assert rules.offline_min_samples == rules.performance_sample_count["Offline"]


@pytest.mark.parametrize(
    ("name", "scenario", "limits", "loadgen_name"),
    [
        ("qwen3-vl-235b-a22b", "Server", Limits(latency_ms=12_000), "qwen3-vl-235b-a22b"),
        ("qwen3-vl-235b-a22b", "Interactive", Limits(latency_ms=1_500), "qwen3-vl-235b-a22b"),
        ("gpt-oss-120b", "Interactive", Limits(ttft_ms=2_000, tpot_ms=15), "gpt-oss-120b-interactive"),
        ("deepseek-r1", "Server", Limits(ttft_ms=2_000, tpot_ms=80), "deepseek-r1"),
        ("llama2-70b-99.9", "Interactive", Limits(ttft_ms=450, tpot_ms=40), "llama2-70b-interactive"),
    ],
)
def test_limits_and_loadgen_names(name: str, scenario: str, limits: Limits, loadgen_name: str) -> None:
    assert benchmark(name).limits[scenario] == limits
    assert benchmark(name).loadgen_name(scenario) == loadgen_name


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("llama2-70b", "llama2-70b-99.9"), ("Qwen3-VL", "qwen3-vl-235b-a22b"), ("gptoss-120b", "gpt-oss-120b")],
)
def test_unknown_benchmark_names_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        benchmark(wrong)
    assert caught.value.action == f"write benchmark: {nearest}"


def test_scenario_is_spelled_as_the_checker_spells_it() -> None:
    assert check_scenario("Interactive") == "Interactive"
    with pytest.raises(ConfigError, match="server") as caught:
        check_scenario("server")
    assert caught.value.action == "write scenario: Server"

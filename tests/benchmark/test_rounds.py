"""Rounds: seeds of their own, benchmarks and scenarios that they had, and nothing else that differs."""

from __future__ import annotations

import dataclasses

import pytest

from dynamo_mlperf.benchmark.rounds import CURRENT, ROUNDS, round_of, round_with_seeds
from dynamo_mlperf.benchmark.rules import Seeds, benchmark, check_scenario
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.settings import build_settings

SEEDS = {
    "v6.1": (2085463073848966840, 2747215439041700203, 16159082839903944936),
    "v6.0": (2465351861681999779, 14276810075590677512, 3936089224930324775),
    "v5.1": (1780908523862526354, 14771362308971278857, 18209322760996052031),
}
SCENARIOS = {
    "v6.1": {
        "qwen3-vl-235b-a22b": 3,
        "gpt-oss-120b": 3,
        "deepseek-r1": 3,
        "llama2-70b-99.9": 3,
    },
    "v6.0": {"qwen3-vl-235b-a22b": 2, "gpt-oss-120b": 3, "deepseek-r1": 3, "llama2-70b-99.9": 3},
    "v5.1": {"deepseek-r1": 2, "llama2-70b-99.9": 3},
}


def test_rounds_have_their_own_seeds() -> None:
    assert {name: dataclasses.astuple(entry.seeds) for name, entry in ROUNDS.items()} == SEEDS
    assert CURRENT == "v6.1"
    for entry in ROUNDS.values():
        assert round_with_seeds(entry.seeds) is entry
    assert round_with_seeds(Seeds(1, 2, 3)) is None


def test_rounds_have_these_benchmarks_and_scenarios() -> None:
    found = {
        name: {rules.name: len(rules.scenarios) for rules in entry.benchmarks.values()}
        for name, entry in ROUNDS.items()
    }
    assert found == SCENARIOS


@pytest.mark.parametrize("name", ROUNDS)
def test_what_a_round_has_is_by_the_same_rules(name: str) -> None:
    for rules in round_of(name).benchmarks.values():
        now = benchmark(rules.name)
        assert set(rules.scenarios) == set(rules.accuracy_floor) == set(rules.performance_sample_count)
        for scenario in rules.scenarios:
            assert rules.limits[scenario] == now.limits[scenario]
        assert rules.tokens_per_sample == now.tokens_per_sample
        assert rules.offline_min_samples == now.offline_min_samples


def test_settings_carry_the_seeds_of_their_round() -> None:
    settings = build_settings(benchmark("llama2-70b-99.9", "v6.0"), "Server", 5, 24576, round_name="v6.0")
    assert (settings.seeds, settings.round_name) == (ROUNDS["v6.0"].seeds, "v6.0")
    assert build_settings(benchmark("llama2-70b-99.9"), "Server", 5, 24576).seeds == ROUNDS["v6.1"].seeds


def test_a_scenario_that_a_round_did_not_have_is_refused() -> None:
    rules = benchmark("qwen3-vl-235b-a22b", "v6.0")
    with pytest.raises(ConfigError, match="has no Interactive scenario in that round; it has Offline, Server"):
        check_scenario("Interactive", rules)
    with pytest.raises(ConfigError, match="has no Interactive"):
        build_settings(rules, "Interactive", 1, 8000, round_name="v6.0")


def test_unknown_names_are_answered_with_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"there are v6\.1, v6\.0, v5\.1"):
        round_of("v4.0")
    with pytest.raises(ConfigError, match=r"no benchmark 'gpt-oss-120b' in MLPerf Inference v5\.1"):
        benchmark("gpt-oss-120b", "v5.1")

"""The rules as data against the real LoadGen: what it embeds, and what it says is in force."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.rounds import ROUNDS
from dynamo_mlperf.benchmark.rules import BENCHMARKS, ROUND, SCENARIOS, benchmark
from dynamo_mlperf.load.logs import DETAIL, logged_values
from dynamo_mlperf.load.settings import LoadSettings, Mode, build_settings
from dynamo_mlperf.load.user_conf import expected_effective, user_conf
from tests.fakes.stub_sut import StubPlan

pytestmark = pytest.mark.loadgen


def _plan(settings: LoadSettings, text: str | None = None) -> StubPlan:
    conf = user_conf(settings) if text is None else text
    accuracy = settings.mode == "accuracy"
    return StubPlan(settings.loadgen_model, conf, settings.dataset_samples, settings.loadgen_scenario, accuracy)


def _settings_that_it_logs(plan: StubPlan, directory: Path) -> dict[str, Any]:
    """What LoadGen logs before it issues; the test itself is not waited for."""
    with plan.start(directory) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            values = logged_values(directory / DETAIL) if (directory / DETAIL).exists() else {}
            if "effective_sample_concatenate_permutation" in values:
                process.kill()
                return values
            time.sleep(0.02)
        process.kill()
    raise AssertionError(f"no settings in {directory / DETAIL}")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_rules_are_what_loadgen_says_is_in_force(tmp_path: Path, name: str, scenario: str) -> None:
    rules = benchmark(name)
    settings = build_settings(rules, scenario, 100, rules.performance_sample_count[scenario])
    values = _settings_that_it_logs(_plan(settings), tmp_path)
    wanted = expected_effective(settings)
    assert {key: values[key] for key in wanted} == pytest.approx(wanted)
    seeds = ROUNDS[ROUND].seeds
    assert (values["effective_qsl_rng_seed"], values["effective_schedule_rng_seed"]) == (seeds.qsl, seeds.schedule)
    limits = rules.limits[scenario]
    if scenario != "Offline":
        assert values["effective_target_latency_ns"] == (limits.latency_ms or 0) * 1e6
    logged = "requested_use_token_latencies" in values, values.get("requested_use_token_latencies", False)
    assert logged == (rules.use_token_latencies, rules.use_token_latencies)
    if limits.ttft_ms and limits.tpot_ms:
        assert values["requested_server_ttft_latency"] == limits.ttft_ms * 1e6
        assert values["requested_server_tpot_latency"] == limits.tpot_ms * 1e6


@pytest.mark.parametrize("name", BENCHMARKS)
def test_accuracy_runs_cover_the_data_set_of_the_rules(tmp_path: Path, name: str) -> None:
    rules = benchmark(name)
    mode: Mode = "accuracy"
    settings = build_settings(rules, "Server", 1e6, rules.performance_sample_count["Server"], mode=mode)
    values = _settings_that_it_logs(_plan(settings), tmp_path)
    assert values["effective_accuracy_sample_count"] == rules.accuracy_sample_count["Server"]


def test_without_explicit_limits_interactive_of_qwen3_vl_would_be_judged_by_others(tmp_path: Path) -> None:
    rules = benchmark("qwen3-vl-235b-a22b")
    settings = build_settings(rules, "Interactive", 100, 8000)
    values = _settings_that_it_logs(_plan(settings, "*.Server.target_qps = 100\n"), tmp_path)
    assert values["effective_target_latency_ns"] == 12_000_000_000
    assert values["effective_performance_sample_count"] == 48_289


def test_seeds_embedded_in_the_installed_wheel_are_those_of_its_round() -> None:
    from dynamo_mlperf.load.wheel import embedded_seeds

    assert embedded_seeds() == ROUNDS["v6.1"].seeds

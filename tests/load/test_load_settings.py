"""Settings by the rules, what `reduced:` may lower, and user.conf there and back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.rules import BENCHMARKS, SCENARIOS, SEEDS, Reduction, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.spec import MeasureSpec, read_spec
from dynamo_mlperf.load.user_conf import (
    expected_effective,
    expected_queries,
    expected_samples_per_query,
    parse_user_conf,
    user_conf,
)

QWEN = benchmark("qwen3-vl-235b-a22b")
GPT = benchmark("gpt-oss-120b")
GOLDEN = Path(__file__).parent / "golden"


def interactive(**lowered: float) -> LoadSettings:
    samples = int(lowered.get("samples", 8000))
    return build_settings(QWEN, "Interactive", 25, samples, Reduction(**lowered) if lowered else None)  # type: ignore[arg-type]


def test_qwen_interactive_sets_its_limits_explicitly() -> None:
    settings = interactive()
    assert (settings.loadgen_model, settings.loadgen_scenario) == ("qwen3-vl-235b-a22b", "Server")
    assert settings.limits_ms == {"end_to_end": 1500}
    assert user_conf(settings) == (
        "qwen3-vl-235b-a22b.Server.target_qps = 25\n"
        "qwen3-vl-235b-a22b.*.performance_sample_count_override = 8000\n"
        "qwen3-vl-235b-a22b.Server.target_latency = 1500\n"
    )


def test_reduced_user_conf_is_what_a_real_run_used() -> None:
    settings = interactive(min_duration_s=3, samples=16, percentile=90)
    assert user_conf(settings) == (GOLDEN / "interactive_reduced_user.conf").read_text()


def test_official_run_of_the_rules_writes_the_rate_alone() -> None:
    settings = build_settings(QWEN, "Server", 198.94, 48_289)
    assert user_conf(settings) == "qwen3-vl-235b-a22b.Server.target_qps = 198.94\n"
    assert not settings.reduced


def test_gpt_oss_interactive_and_server_limits_differ() -> None:
    fast, slow = build_settings(GPT, "Interactive", 10, 6396), build_settings(GPT, "Server", 10, 6396)
    assert (fast.loadgen_model, fast.loadgen_scenario) == ("gpt-oss-120b-interactive", "Server")
    assert (slow.loadgen_model, slow.limits_ms) == ("gpt-oss-120b", {"ttft": 3000, "tpot": 80})
    assert fast.limits_ms == {"ttft": 2000, "tpot": 15}
    shown = expected_effective(fast)
    assert shown["requested_server_ttft_latency"] == 2_000_000_000
    assert shown["requested_server_tpot_latency"] == 15_000_000
    assert shown["effective_target_latency_ns"] == 0


def test_gpt_oss_offline_asks_for_what_the_checker_wants() -> None:
    settings = build_settings(GPT, "Offline", 1, 6396)
    assert settings.limits_ms == {}
    assert "gpt-oss-120b.Offline.min_query_count = 6396\n" in user_conf(settings)
    assert expected_samples_per_query(settings) == 6396


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seeds_of_the_round_are_expected_in_every_log(name: str, scenario: str) -> None:
    rules = benchmark(name)
    settings = build_settings(rules, scenario, 5, rules.performance_sample_count[scenario])
    shown = expected_effective(settings)
    assert shown["effective_qsl_rng_seed"] == SEEDS.qsl
    assert shown["effective_sample_index_rng_seed"] == SEEDS.sample_index
    assert shown["effective_schedule_rng_seed"] == SEEDS.schedule
    assert shown["effective_min_duration_ms"] == 600_000


@pytest.mark.parametrize(
    ("lowered", "changed"),
    [
        ({"min_duration_s": 60}, {"min_duration_ms": 60_000}),
        ({"percentile": 90}, {"percentile": 0.9}),
        ({"latency_limit_ms": 20_000}, {"target_latency_ms": 20_000}),
        (
            {"samples": 64},
            {
                "performance_sample_count": 64,
                "accuracy_sample_count": 64,
                "min_query_count": 64,
                "dataset_samples": 64,
            },
        ),
        (
            {"samples": 500},
            {"performance_sample_count": 500, "accuracy_sample_count": 500, "dataset_samples": 500},
        ),
    ],
)
def test_reduction_changes_only_what_it_names(lowered: dict[str, float], changed: dict[str, object]) -> None:
    assert interactive(**lowered) == dataclasses.replace(interactive(), reduced=True, **changed)  # type: ignore[arg-type]


def test_samples_lower_the_offline_minimum_too() -> None:
    settings = build_settings(QWEN, "Offline", 2, 64, Reduction(samples=64, min_duration_s=10))
    assert (settings.min_query_count, settings.performance_sample_count) == (64, 64)


def test_small_data_set_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="has 64 samples, and qwen3-vl-235b-a22b Interactive needs 8000") as caught:
        build_settings(QWEN, "Interactive", 1, 64)
    assert "reduced: {samples: 64}" in caught.value.action
    with pytest.raises(ConfigError, match="has 64 samples, and qwen3-vl-235b-a22b Interactive needs 100"):
        build_settings(QWEN, "Interactive", 1, 64, Reduction(samples=100))


def test_accuracy_needs_its_own_number_of_samples() -> None:
    assert build_settings(GPT, "Offline", 1, 4395, mode="accuracy").accuracy_sample_count == 4395
    with pytest.raises(ConfigError, match="has 4395 samples, and gpt-oss-120b Offline needs 6396"):
        build_settings(GPT, "Offline", 1, 4395)


@pytest.mark.parametrize(
    ("reduction", "what"),
    [
        (Reduction(samples=0), "samples is 0"),
        (Reduction(samples=9000), "samples is 9000, and the rules ask for 8000"),
        (Reduction(min_duration_s=1e308), r"min_duration_s is 1e\+308, and the rules ask for 600 s"),
        (Reduction(min_duration_s=601), "min_duration_s is 601, and the rules ask for 600 s"),
        (Reduction(min_duration_s=0), "min_duration_s is 0"),
        (Reduction(percentile=0.9), "percentile is 0.9, in percent"),
        (Reduction(percentile=99.9), "percentile is 99.9"),
        (Reduction(latency_limit_ms=0), "latency_limit_ms is 0"),
        (Reduction(latency_limit_ms=1500.5), "whole milliseconds"),
    ],
)
def test_reductions_that_are_none(reduction: Reduction, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        build_settings(QWEN, "Interactive", 1, 8000, reduction)


def test_latency_limit_is_refused_where_ttft_and_tpot_count() -> None:
    with pytest.raises(ConfigError, match="TTFT 2000 ms and TPOT 15 ms count"):
        build_settings(GPT, "Interactive", 1, 6396, Reduction(latency_limit_ms=20_000))


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ConfigError, match="target_qps is"):
        build_settings(QWEN, "Server", rate, 48_289)


CASES = st.builds(
    build_settings,
    st.sampled_from(list(BENCHMARKS.values())),
    st.sampled_from(SCENARIOS),
    st.floats(0.001, 1e6),
    st.integers(64, 4000),
    st.builds(
        Reduction,
        min_duration_s=st.none() | st.floats(0.001, 600),
        samples=st.integers(1, 64),
        percentile=st.none() | st.sampled_from([50, 90, 97.5]),
    ),
    st.sampled_from(["performance", "accuracy"]),
)


@given(settings=CASES)
def test_every_written_line_has_an_effect(settings: LoadSettings) -> None:
    text = user_conf(settings)
    values = parse_user_conf(text, settings)
    assert len(values) == len(text.splitlines())
    assert values["target_qps"] == pytest.approx(settings.target_qps)
    assert values.get("min_duration", 600_000) == settings.min_duration_ms


@given(settings=CASES)
def test_settings_survive_json(settings: LoadSettings) -> None:
    assert LoadSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("*.Server.target_qps=7", "write *.Server.target_qps = 7"),
        ("*.Server.target_qp = 7", "write *.Server.target_qps = 7"),
        ("llama3.1-8b.Server.target_qps = 7", "write *.Server.target_qps = 7"),
        ("#note", "write # note"),
        ("*.Interactive.target_qps = 7", "write *.Server.target_qps = 7"),
        ("*.Server.target_qps = seven", "write a number"),
        ("*.Server.target_latency = 15e2", "write a whole number"),
        ("*.Server.target_qps = 7 # fast", "write *.Server.target_qps = 7"),
        ("nonsense", "write MODEL.SCENARIO.KEY = VALUE"),
        ("target_qps = 7", "write *.Server.target_qps = 7"),
    ],
)
def test_line_without_an_effect_is_named(line: str, near: str) -> None:
    with pytest.raises(ConfigError, match=r"user\.conf line 3 has no effect") as caught:
        parse_user_conf(f"# fine\n\n{line}\n", interactive())
    assert line in caught.value.what
    assert caught.value.action == near


def test_expected_queries_are_padded_to_whole_data_sets() -> None:
    assert expected_queries(interactive(min_duration_s=3, samples=16)) == 80
    assert expected_queries(interactive(min_duration_s=3, samples=100)) == 100
    offline = build_settings(QWEN, "Offline", 25, 16, Reduction(min_duration_s=1, samples=16))
    assert expected_samples_per_query(offline) == 27
    assert expected_queries(offline) == 32


def test_spec_survives_its_file(tmp_path: Path) -> None:
    spec = MeasureSpec(interactive(), tmp_path / "r", (("10.0.0.1", 8000), ("10.0.0.2", 8000)), tmp_path / "o", 3)
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    assert read_spec(tmp_path / "spec.json") == spec
    assert spec.timeout_s == spec.settings.request_timeout_s


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": {}}'])
def test_spec_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_spec(tmp_path / "spec.json")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"frontends": ()}, "no frontend"),
        ({"client_workers": 0}, "client_workers is 0"),
        ({"request_timeout_s": 0}, "is 0"),
    ],
)
def test_spec_of_no_use(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    spec = MeasureSpec(interactive(), tmp_path, (("10.0.0.1", 8000),), tmp_path)
    with pytest.raises(ConfigError, match=what):
        dataclasses.replace(spec, **change)

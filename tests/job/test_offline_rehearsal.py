"""Rehearsals by Dynamo's real replay."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.job.rehearsal import Stage, bar_of, rehearse
from dynamo_mlperf.job.request_lengths import request_lengths
from dynamo_mlperf.topology.document import parse_document
from dynamo_mlperf.topology.role_splits import parse_split
from dynamo_mlperf.topology.spec import load_topology, parse_topology
from dynamo_mlperf.tuning.own_lengths import OwnLengths, token_lengths
from dynamo_mlperf.tuning.profiles import Profile
from dynamo_mlperf.tuning.rehearsal_engines import EngineModel, Factors, engines_of
from dynamo_mlperf.tuning.rehearsal_requests import Lengths, lengths_of, published_prompts, write_requests
from dynamo_mlperf.tuning.simulation import Bar, Cast, Simulator

TOPOLOGIES = Path(__file__).resolve().parents[2] / "topologies"
INTERACTIVE = TOPOLOGIES / "q3vl-gb200x16-interactive-6p4d.yaml"
BAR = Bar({"end_to_end": 1_500.0}, 0.99, 600.0, 100)


def engine(role: str, step_ms: float = 5.0) -> EngineModel:
    """10 ms of prefill for each 1,000 tokens, and steps of one length."""
    prompts, axis = np.array([1.0, 1e5]), np.array([1.0, 1e7])
    profile = Profile("even", prompts, prompts / 100.0, axis, axis, np.full((2, 2), step_ms))
    return EngineModel(role, profile, 10_000, 1, 512, 16_384, None)


def even_lengths(prompt: int = 4_000, output: int = 11) -> Lengths:
    return Lengths(np.array([prompt]), np.array([output]), "made up")


@pytest.mark.dynamo
def test_what_is_simulated_is_what_the_profile_says(tmp_path: Path) -> None:
    with Simulator(sys.executable, tmp_path, even_lengths(), 1) as simulator:
        engines = {role: engine(role) for role in ("prefill", "decode")}
        cast = Cast(simulator.configured(engines, Factors(2.0, 3.0)), {"prefill": 2, "decode": 2}, "round_robin")
        idle = simulator.run(cast, 0.5, BAR, 100.0)
        # Twice 40 ms of prefill, eleven steps of three times 5 ms, and 100 ms of everything else.
        assert idle.latencies_ms["end_to_end"][0] == pytest.approx(80.0 + 11 * 15.0 + 100.0, abs=2.0)
        assert idle.excess < 0.0
        # Two prefill workers end a prompt every 40 ms between them.
        assert simulator.capacity(cast) == pytest.approx(25.0, rel=0.1)
        crowded = simulator.run(cast, 50.0, BAR, 100.0)
        assert crowded.excess > 0.0
        assert crowded.binding == "end_to_end"
        assert simulator.simulated_requests >= 3 * 4_000


@pytest.mark.dynamo
def test_prompts_that_no_cache_holds_fail_and_are_not_forgotten(tmp_path: Path) -> None:
    with Simulator(sys.executable, tmp_path, even_lengths(60_000), 1) as simulator:
        engines = {role: engine(role) for role in ("prefill", "decode")}
        configured = simulator.configured(engines, Factors())
        configured["decode"]["engine"]["num_gpu_blocks"] = 100
        cast = Cast(configured, {"prefill": 2, "decode": 2}, "round_robin")
        assert simulator.run(cast, 0.1, BAR, 0.0).excess == np.inf
        with pytest.raises(SetupError, match="4000 of 4000 simulated requests do not fit the KV cache"):
            simulator.capacity(cast)


@pytest.mark.dynamo
@pytest.mark.parametrize("rate", [1e7, 1e300])
def test_a_rate_whose_requests_fill_the_memory_is_refused(tmp_path: Path, rate: float) -> None:
    with Simulator(sys.executable, tmp_path, even_lengths(), 1) as simulator:
        cast = Cast(
            simulator.configured({"aggregated": engine("aggregated")}, Factors()), {"aggregated": 1}, "kv_router"
        )
        with pytest.raises(ConfigError, match="3,000,000 are the most that fit into memory"):
            simulator.run(cast, rate, BAR, 0.0)
        assert list(tmp_path.glob("requests-*")) == []


@pytest.mark.dynamo
def test_what_the_replay_refuses_is_told(tmp_path: Path) -> None:
    with Simulator(sys.executable, tmp_path, even_lengths(), 1) as simulator:
        configured = simulator.configured({"aggregated": engine("aggregated")}, Factors())
        configured["aggregated"]["engine"]["timing_model"]["config"]["path"] = str(tmp_path / "missing.npz")
        with pytest.raises(SetupError, match="Dynamo's replay: "):
            simulator.run(Cast(configured, {"aggregated": 1}, "round_robin"), 1.0, BAR, 0.0)


@pytest.mark.dynamo
def test_decode_runs_out_at_75_to_25_and_the_balanced_splits_win(repository: Path) -> None:
    """The lesson of the published search on 16 x GB200, by the shipped profiles and calibration alone."""
    topology = load_topology(INTERACTIVE)
    splits = [parse_split(name, topology) for name in ("6P4D", "5P6D", "4P8D")]
    told: list[str] = []
    found = rehearse(topology, splits, Stage(repository, sys.executable, 2, told.append), None, calibrated=True)
    by_name = {each.split: each for each in found.splits}
    rates = {name: each.rate_qps or 0.0 for name, each in by_name.items()}
    assert by_name["6P4D"].bottleneck == "decode"
    assert set(found.order[:2]) == {"5P6D", "4P8D"}
    assert rates["6P4D"] > 15.85  # published, and higher rates were never tried
    assert rates["4P8D"] == pytest.approx(39.85, rel=0.1)
    assert rates["4P8D"] > 1.2 * rates["6P4D"]
    assert {each.binding for each in found.splits} == {"end_to_end"}
    assert {facts["origin"] for facts in found.profiles.values()} == {"aiconfigurator"}
    assert found.calibration["factors"]["itl"] > 0
    assert len(told) == 3


def test_a_run_is_judged_as_the_whole_one_would_be() -> None:
    """1 - t/n of the table of published allowances, not the plain percentile."""
    bar = Bar({}, 0.99, 600.0, 100)
    assert bar.judged_share(40.0) == pytest.approx(1 - 204 / 24_000)
    assert Bar({}, 0.99, 600.0, 100, strict=True).judged_share(40.0) == pytest.approx(1 - 203 / 24_000)
    assert Bar({}, 0.99, 600.0, 100_000).judged_share(0.001) < 0.99 + 0.001
    assert bar.judged_share(0.1) == 1.0  # too few queries: none may be over


def test_limits_and_length_of_the_run_are_those_of_the_file() -> None:
    bar = bar_of(load_topology(INTERACTIVE))
    assert (bar.limits_ms, bar.percentile, bar.duration_s, bar.strict) == ({"end_to_end": 1_500}, 0.99, 600.0, False)
    reduced = INTERACTIVE.read_text() + "reduced: {min_duration_s: 60, percentile: 90, latency_limit_ms: 2000}\n"
    bar = bar_of(parse_topology(reduced))
    assert (bar.limits_ms, bar.percentile, bar.duration_s) == ({"end_to_end": 2_000}, 0.9, 60.0)


def test_prompts_are_as_long_as_published_images_included() -> None:
    prompts = published_prompts("qwen3-vl-235b-a22b")
    assert prompts is not None
    assert (prompts.min(), prompts.max()) == (809, 61_566)
    assert np.median(prompts) == pytest.approx(3_700, rel=0.02)
    outputs = lengths_of("qwen3-vl-235b-a22b", None, "").outputs
    assert [np.quantile(outputs, share) for share in (0.01, 0.5, 0.99)] == pytest.approx([29, 42, 62], abs=1)
    assert outputs.mean() == pytest.approx(42.87, rel=0.02)


@pytest.mark.assets
def test_lengths_of_a_data_set_at_hand_are_counted_with_its_images(repository: Path) -> None:
    """The tiny catalogue's pictures take 64 to 140 tokens each, which no engine's simulation would count."""
    topology = load_topology(TOPOLOGIES / "demo.yaml")
    found = request_lengths(topology, repository)
    assert found.origin == "prompts of assets/tiny-product-catalogue"
    assert found.prompts.min() > 64


def test_without_lengths_nothing_is_made_up() -> None:
    with pytest.raises(ConfigError, match="the prompt lengths of gpt-oss-120b are not published"):
        lengths_of("gpt-oss-120b", None, "no data set is there")


@pytest.mark.parametrize("name", ["llama2-gb200x72-server", "gptoss-gb200x4-server", "dsr1-mi355x512-server"])
def test_lengths_that_people_give_stand_in_and_are_said_to_be_theirs(name: str, tmp_path: Path) -> None:
    topology = load_topology(TOPOLOGIES / f"{name}.yaml")
    with pytest.raises(ConfigError) as refused:
        request_lengths(topology, tmp_path)
    assert "--prompt-tokens MEAN" in refused.value.action
    prompts = token_lengths("--prompt-tokens", "300:120")
    found = request_lengths(topology, tmp_path, OwnLengths(prompts))
    assert found.prompts.mean() == pytest.approx(300, rel=0.02)
    assert found.prompts.std() == pytest.approx(120, rel=0.05)
    assert "prompts (mean 300) as you gave them, not the benchmark's" in found.text()
    assert "answers" not in found.origin
    answered = request_lengths(topology, tmp_path, OwnLengths(prompts, token_lengths("--answer-tokens", "50")))
    assert answered.outputs.mean() == pytest.approx(50, rel=0.03)
    assert "answers (mean 50)" in answered.origin
    many = request_lengths(topology, tmp_path, OwnLengths(token_lengths("--prompt-tokens", "9000000")))
    assert many.prompts.max() < 200_000, "no prompt that the model cannot take"


@pytest.mark.parametrize("text", ["", "x", "0", "-3", "1e9", "300:", "10:101", "nan"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--prompt-tokens .* is no length in tokens"):
        token_lengths("--prompt-tokens", text)


def test_a_data_set_without_a_tokenizer_is_not_asked_for_again(tmp_path: Path) -> None:
    topology = load_topology(TOPOLOGIES / "llama2-gb200x72-server.yaml")
    assert topology.measure.dataset is not None
    (tmp_path / topology.measure.dataset).mkdir(parents=True)
    with pytest.raises(ConfigError, match="tokenizer") as refused:
        request_lengths(topology, tmp_path)
    assert "dataset" not in refused.value.action
    assert "tokenizer.json" in refused.value.action


def test_fewer_requests_are_the_first_of_more(tmp_path: Path) -> None:
    lengths = lengths_of("qwen3-vl-235b-a22b", None, "")
    few, many = (write_requests(tmp_path / f"{count}", lengths, count) for count in (50, 300))
    assert many.path.read_text().splitlines()[:50] == few.path.read_text().splitlines()
    rows = [parse_document(line, few.path).value for line in many.path.read_text().splitlines()]
    gaps = np.diff([row["timestamp"] for row in rows])
    assert gaps.mean() == pytest.approx(1_000.0, rel=0.2)
    assert len({block for row in rows for block in row["hash_ids"]}) == 300  # no prefix is shared


def test_cache_and_bytes_are_those_of_the_gpus_memory() -> None:
    engines, notes = engines_of(load_topology(INTERACTIVE), Path(), {})
    assert notes == ()
    assert engines["decode"].kv_bytes_per_token == 192_512  # 94 layers x 2 x 4 heads x 128 x 2 bytes
    assert engines["decode"].blocks * 64 == pytest.approx(186_000, rel=0.01)
    assert engines["prefill"].blocks > 5 * engines["decode"].blocks
    assert engines["decode"].max_batched_tokens == 2_048


def test_a_gpu_without_a_profile_gets_a_roofline_that_says_so() -> None:
    topology = load_topology(TOPOLOGIES / "dsr1-mi355x512-server.yaml")
    engines, notes = engines_of(topology, Path(), {})
    assert {each.profile.facts["origin"] for each in engines.values()} == {"analytic"}
    assert any("is analytic: a roofline, not a measurement" in note for note in notes)


def test_a_seed_draws_other_requests_at_other_times_and_0_those_it_always_has(tmp_path: Path) -> None:
    lengths = Lengths(np.arange(1000, 2000), np.arange(10, 60), "made")
    drawn = {}
    for seed in (0, 1, 2):
        path = write_requests(tmp_path / f"{seed}", replace(lengths, seed=seed), 40).path
        drawn[seed] = path.read_text()
        assert write_requests(tmp_path / "again", replace(lengths, seed=seed), 40).path.read_text() == drawn[seed]
    assert len(set(drawn.values())) == 3
    assert write_requests(tmp_path / "plain", lengths, 40).path.read_text() == drawn[0]

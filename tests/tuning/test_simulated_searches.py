"""A small, fixed part of `tests.performance.search`: searches on simulated systems whose true rates are known."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from dynamo_mlperf.tuning.fit import certifies
from dynamo_mlperf.tuning.probes import Answer, NoAnswer, SearchSettings
from tests.performance.simulators.runs import simulate
from tests.performance.simulators.searching import Outcome, search, settings_of, stream
from tests.performance.simulators.systems import HELD_OUT, OTHER, TUNING, TUNING_WITHOUT, fresh
from tests.performance.simulators.systems import PADDED as PADDED_SYSTEMS
from tests.performance.simulators.truth import Truth, find_truth

TRUE = {
    "tuning-latency-1": (151.97, 153.13),
    "tuning-both-1": (168.05, 169.83),
    "tuning-cold-1": (303.70, 305.23),
    "tuning-drifting-1": (174.12, 175.20),
    "tuning-heavy-1": (165.90, 167.39),
}
"""Rates that pass with probability 0.9 and with even odds (`simulators.truth.find_truth`, 160 repeats)."""
PADDED = {system.name: system for system in PADDED_SYSTEMS}
SYSTEMS = {system.name: system for system in (*TUNING, *TUNING_WITHOUT)}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """One search per system, from a prediction that is 8 % off."""
    return {name: search(SYSTEMS[name], SearchSettings(start=0.92 * true), 1) for name, (true, _) in TRUE.items()}


def test_answers_are_near_the_true_rate_and_confirmed(outcomes: dict[str, Outcome]) -> None:
    ratios = []
    for name, outcome in outcomes.items():
        assert isinstance(outcome.step, Answer), name
        assert certifies(outcome.history[outcome.step.probe], SearchSettings())
        assert outcome.step.rate < 1.01 * TRUE[name][1], name
        ratios.append(outcome.step.rate / TRUE[name][0])
    assert 0.98 < statistics.median(ratios) < 1.01


def test_they_cost_few_full_runs(outcomes: dict[str, Outcome]) -> None:
    """Plain bisection with full runs needs eight from a range of this width."""
    assert statistics.median(outcome.cost_s for outcome in outcomes.values()) < 2.2 * 600.0


def test_what_was_decided_follows_from_the_records_alone(outcomes: dict[str, Outcome]) -> None:
    again = search(SYSTEMS["tuning-latency-1"], SearchSettings(start=0.92 * TRUE["tuning-latency-1"][0]), 1)
    assert again == outcomes["tuning-latency-1"]


def test_padded_runs_hold_whole_data_sets_and_how_many_is_left_to_chance() -> None:
    """At 39.9 queries/s and 600 s LoadGen sends 24,000 queries or, by luck of the arrivals, 32,000."""
    system = PADDED["padded-8000-44-latency"]
    runs = simulate(system, 39.9, 600.0, seed=1, repeats=60)
    assert set(runs.completed[:, -1].tolist()) == set(runs.whole.tolist()) == {24_000, 32_000}
    told = stream(system, 30.0, 600.0, seed=1, start_s=0.0)
    assert (told.generated, told.samples[-1].completed) == (24_000, 24_000)
    assert told.samples[-1].t_s == pytest.approx(24_000 / 30.0, rel=0.03)
    part = stream(system, 30.0, 600.0, seed=1, start_s=0.0, until_s=200.0)
    assert part.samples == told.samples[: len(part.samples)]
    assert len(part.samples) == 40


def test_a_padded_system_is_searched_with_runs_of_its_own_length() -> None:
    system, (true, even) = PADDED["padded-8000-360-tpot"], (240.68, 247.07)
    settings = settings_of(system, start=0.92 * true)
    outcome = search(system, settings, 1)
    assert isinstance(outcome.step, Answer)
    final = outcome.history[outcome.step.probe].final
    assert final is not None
    assert final.n % 8_000 == 0
    assert 0.97 * true < outcome.step.rate < 1.01 * even
    assert outcome.cost_s < 3.0 * settings.run_s(true)


@pytest.mark.parametrize(
    ("name", "kind"), [("tuning-impossible", "impossible"), ("tuning-too-slow", "too few queries")]
)
def test_systems_without_an_answer_are_told_apart(name: str, kind: str) -> None:
    outcome = search(SYSTEMS[name], SearchSettings(), 1)
    assert isinstance(outcome.step, NoAnswer)
    assert outcome.step.kind == kind
    assert outcome.cost_s < 2.0 * 600.0


def test_a_seed_draws_systems_that_no_set_has() -> None:
    drawn = fresh(1)
    assert len({system.name for system in drawn}) == len(drawn) == 62
    assert fresh(1) == drawn
    known = {*TUNING, *HELD_OUT, *OTHER, *PADDED_SYSTEMS, *fresh(2)}
    others = [replace(system, name="") for system in known]
    assert not any(replace(system, name="") in others for system in drawn)


def test_where_every_rate_passes_no_true_rate_is_made_up() -> None:
    """A limit on TPOT that the prefill pool never lets the decode pool reach."""
    boundless = {system.name: system for system in HELD_OUT}["held-out-tpot-1"]
    assert not find_truth(boundless, repeats=8).known
    assert Truth(*TRUE["tuning-heavy-1"]).known

"""Systems that no model expects, as another's probe program may bring them: each ends with a right and honest answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynamo_mlperf.benchmark.early_stopping import passes
from dynamo_mlperf.tuning.probes import Answer, Final, History, NoAnswer, Probe, ProbeRecord, Sample, SearchSettings
from dynamo_mlperf.tuning.progress import Judge
from dynamo_mlperf.tuning.search import next_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.tuning.probes import Step

    Share = Callable[[float, float, float], float]

RANGE, BLIND = SearchSettings(low=10.0, high=100.0), SearchSettings()


def _probe(share: Share, probe: Probe, history: History, settings: SearchSettings, line_s: float) -> ProbeRecord:
    """A probe of a system where `share(rate, age_s, t_s)` of the queries are over the limit.

    `age_s` are seconds since the search began, `t_s` since the probe did.
    """
    begin_s = sum(record.cost_s for record in history)
    rng, judge = np.random.default_rng([1, len(history)]), Judge(history, settings, probe)
    record = ProbeRecord(probe.rate, probe.planned_s, (), "running", None, begin_s, purpose=probe.purpose)
    issued = over = 0
    for line in range(1, round(probe.planned_s / line_s) + 1):
        came, t_s = int(rng.poisson(probe.rate * line_s)), line * line_s
        issued, over = issued + came, over + int(rng.binomial(came, min(1.0, share(probe.rate, begin_s + t_s, t_s))))
        record = replace(record, samples=(*record.samples, Sample(t_s, issued, issued, {"ttft": over})))
        if t_s < probe.planned_s and (stop := judge.look(record).stop):
            return replace(record, ended=stop, cost_s=t_s + 15.0)
    final = Final(passes(issued, over, 0.99), issued, {"ttft": over}, probe.planned_s)
    return replace(record, ended="complete", final=final, cost_s=probe.planned_s + 15.0)


def _search(share: Share, settings: SearchSettings, line_s: float = 5.0) -> tuple[Step, History, float]:
    """The end of a search, its probes, and what it cost in full runs."""
    history: History = ()
    while isinstance(step := next_step(history, settings), Probe):
        history += (_probe(share, step, history, settings, line_s),)
    return step, history, sum(record.cost_s for record in history) / 600.0


def _knee(rate: float, knee: float = 40.0, steepness: float = 40.0) -> float:
    return 0.01 * math.exp(steepness * math.log(rate / knee))


@pytest.mark.parametrize(("settings", "below"), [(RANGE, 0.001), (BLIND, 0.0)], ids=["range", "blind"])
def test_a_cliff_is_found_though_nothing_shows_below_it(settings: SearchSettings, below: float) -> None:
    step, _, cost = _search(lambda rate, *_: below if rate < 40.0 else 1.0, settings)
    assert isinstance(step, Answer)
    assert 38.0 < step.rate < 40.0
    assert cost < 4.0


@pytest.mark.parametrize("settings", [BLIND, RANGE], ids=["blind", "range"])
def test_a_share_that_is_over_at_any_rate_is_impossible_and_cheap(settings: SearchSettings) -> None:
    step, _, cost = _search(lambda *_: 0.02, settings)
    assert isinstance(step, NoAnswer)
    assert (step.kind, step.binding) == ("impossible", "ttft")
    assert cost < 1.5
    if settings is not RANGE:
        assert "hardly fewer where the rate is lower" in step.reason


def test_a_system_that_takes_any_rate_is_not_said_to_have_a_limit() -> None:
    step, history, cost = _search(lambda *_: 0.0, BLIND)
    assert isinstance(step, Answer)
    assert (step.rate, step.binding) == (BLIND.highest_qps, None)
    assert "no higher rate was seen to fail" in step.reason
    assert all(record.rate <= BLIND.highest_qps for record in history)
    assert cost < 2.0


def test_a_few_slow_queries_at_any_rate_do_not_hide_the_knee() -> None:
    """0.75 % are slow whatever the rate is: one run tells nothing of where the rest begins to fail."""
    step, history, _ = _search(lambda rate, *_: 0.0075 + _knee(rate, steepness=60.0), RANGE)
    assert isinstance(step, Answer)
    assert step.rate < 38.3
    over = [each.rate for each in history if each.rate > step.rate and each.ended != "too low"]
    failed = [each.rate for each in history if each.rate in over and not (each.final and each.final.valid)]
    assert failed
    assert not step.located or min(failed) < 1.25 * step.rate


def test_a_window_of_bad_rates_below_the_knee_does_not_matter() -> None:
    step, _, cost = _search(lambda rate, *_: 0.03 if 15.0 < rate < 20.0 else _knee(rate), RANGE)
    assert isinstance(step, Answer)
    assert 38.0 < step.rate < 40.5
    assert cost < 3.0


def test_a_line_now_and_then_is_enough() -> None:
    step, _, cost = _search(lambda rate, *_: _knee(rate), RANGE, line_s=30.0)
    assert isinstance(step, Answer)
    assert 38.0 < step.rate < 40.5
    assert cost < 3.5


def test_a_system_that_slows_down_by_the_hour_is_answered_as_it_is_now() -> None:
    step, history, _ = _search(lambda rate, age_s, _: _knee(rate * (1.0 + 0.05 * age_s / 3600.0)), RANGE)
    assert isinstance(step, Answer)
    end_s = sum(record.cost_s for record in history)
    assert _knee(step.rate * (1.0 + 0.05 * end_s / 3600.0)) < 0.01
    assert step.rate > 0.9 * 40.0 * math.exp(-0.05 * end_s / 3600.0)


def test_a_system_that_fails_only_late_in_a_run_is_stepped_down_to_what_lasts() -> None:
    """Above 40 QPS half of the queries are over from 450 s on: no short probe shows it."""
    step, _, cost = _search(lambda rate, _, t_s: 0.5 if t_s > 450.0 and rate > 40.0 else 0.001, RANGE)
    assert isinstance(step, Answer)
    assert 30.0 < step.rate < 40.0
    assert cost < 8.0


@pytest.mark.parametrize("limit_s", [6.0, 15.0, 23.0])
@pytest.mark.parametrize("settings", [RANGE, BLIND], ids=["range", "blind"])
def test_a_queue_that_takes_the_longer_to_fail_the_nearer_its_capacity_is_not_crept_up_on(
    settings: SearchSettings, limit_s: float
) -> None:
    """40 QPS are served in turn, and who waits for longer than the limit is over it: at 42 QPS that takes minutes."""
    step, history, cost = _search(lambda rate, _, t_s: float(t_s * (rate / 40.0 - 1.0) > limit_s), settings)
    assert isinstance(step, Answer)
    limit = 40.0 * (1.0 + limit_s / 594.0)
    assert 0.91 * limit < step.rate <= limit
    assert cost < 3.5
    assert len(history) < 14

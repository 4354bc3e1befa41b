"""What an answer says of the rates above it: how far the highest that holds may be, and that this is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamo_mlperf.tuning.conduct import answer_json
from dynamo_mlperf.tuning.fit import Fit
from dynamo_mlperf.tuning.probes import Answer, History, SearchSettings
from dynamo_mlperf.tuning.search import next_step
from tests.performance.simulators.searching import search, settings_of
from tests.performance.simulators.systems import HELD_OUT, OTHER
from tests.tuning.test_next_step import RANGE, record

TRUE_QPS = {"held-out-latency-1": 152.56, "held-out-cold-1": 114.06, "held-out-heavy-1": 549.3, "other-loose-1": 138.7}
"""Rates that pass with probability 0.9 (`simulators.truth.find_truth`)."""
SYSTEMS = {system.name: system for system in (*HELD_OUT, *OTHER)}


def _history(ceiling: float, over: float = 0.03) -> History:
    """A rate that holds between one far below and one that fails."""
    return (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(ceiling, over, seconds=200, ended="cannot pass", begin_s=75.0),
        record(38.9, 0.005, begin_s=290.0),
    )


def _answer(history: History, settings: SearchSettings = RANGE) -> Answer:
    step = next_step(history, settings)
    assert isinstance(step, Answer), step
    return step


def test_it_is_the_upper_end_of_what_the_fit_believes() -> None:
    history = _history(44.0)
    step = _answer(history)
    fit = Fit(history, RANGE, sum(each.cost_s for each in history))
    assert step.within is not None
    assert 0.0 < step.within < 44.0 / 38.9 - 1.0
    assert step.within == fit.room_above(step.rate)
    assert f"none more than {100 * step.within:.1f} % higher holds" in step.reason
    top = step.rate * (1.0 + step.within)
    assert fit.room_above(top) == pytest.approx(0.0, abs=1e-9), "nothing is above the upper end"
    assert fit.room_above(0.5 * top) == pytest.approx(1.0, abs=0.003)


def test_a_rate_that_was_seen_to_fail_bounds_it() -> None:
    """The fit takes a failure for partly chance; nothing above a rate that failed is claimed to hold all the same."""
    history = _history(39.3, 0.0125)
    step = _answer(history)
    believed = Fit(history, RANGE, sum(each.cost_s for each in history)).room_above(step.rate)
    assert step.within == 0.011
    assert believed > step.within


def test_at_the_upper_end_of_the_range_there_is_nothing_above() -> None:
    settings = SearchSettings(low=10.0, high=38.9)
    step = _answer((record(38.9, 0.001),), settings)
    assert (step.rate, step.located, step.within) == (38.9, True, None)
    assert "higher holds" not in step.reason


def test_an_answer_for_want_of_time_says_how_much_more_may_hold() -> None:
    settings = replace(RANGE, time_budget_s=1100.0)
    history = (record(31.6, 0.0, seconds=60, ended="too low"), record(34.0, 0.0005, begin_s=75.0))
    step = _answer(history, settings)
    assert not step.located
    assert step.within is not None
    assert step.within > 0.03
    assert f"up to {100 * step.within:.1f} % more may hold" in step.reason


def test_the_record_and_the_words_hold_one_figure_and_round_it_so_that_it_claims_no_more() -> None:
    history = _history(44.0)
    step = _answer(history)
    told = answer_json(step, history, RANGE, offline=False)["located_within"]
    assert told == step.within
    assert f"none more than {100 * told:.1f} % higher holds" in step.reason
    fit = Fit(history, RANGE, sum(each.cost_s for each in history))
    rooms = [fit.room_above(step.rate, step.rate * (1.0 + share)) for share in (0.0101, 0.0119, 0.0121)]
    assert rooms == [0.011, 0.012, 0.013]


@pytest.mark.parametrize("name", TRUE_QPS)
def test_the_true_rate_is_within_what_was_said(name: str) -> None:
    """On simulated systems; over all of them nine in ten such claims hold (`tests.performance.search`)."""
    true = TRUE_QPS[name]
    step = search(SYSTEMS[name], replace(settings_of(SYSTEMS[name]), start=0.92 * true), 1).step
    assert isinstance(step, Answer)
    assert step.within is not None
    assert true / step.rate - 1.0 <= step.within < 0.2

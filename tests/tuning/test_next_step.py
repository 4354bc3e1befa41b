"""The search as a function of its history: first probe, repeats, ends, and that it never mixes up short with fast."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.tuning.probes import (
    Answer,
    Ended,
    Final,
    History,
    NoAnswer,
    Probe,
    ProbeRecord,
    Sample,
    SearchSettings,
)
from dynamo_mlperf.tuning.search import next_step

RANGE = SearchSettings(low=10.0, high=100.0)


def record(
    rate: float,
    share: float,
    *,
    seconds: float = 600.0,
    ended: Ended = "complete",
    valid: bool | None = None,
    begin_s: float = 0.0,
    planned_s: float = 600.0,
) -> ProbeRecord:
    """A probe of a steady system with this share over the limit."""
    samples = tuple(
        Sample(float(t_s), int(rate * t_s), int(rate * t_s), {"ttft": round(rate * t_s * share)})
        for t_s in range(5, int(seconds) + 1, 5)
    )
    last = samples[-1]
    good = last.over["ttft"] <= allowed_over_limit(last.completed, 0.99) if valid is None else valid
    final = Final(good, last.completed, last.over, seconds) if ended == "complete" else None
    return ProbeRecord(rate, planned_s, samples, ended, final, begin_s, seconds + 15.0)


def _probe(history: History, settings: SearchSettings = RANGE) -> Probe:
    step = next_step(history, settings)
    assert isinstance(step, Probe), step
    return step


def test_the_first_probe_is_a_prediction_or_the_middle_of_the_range() -> None:
    assert _probe((), SearchSettings(start=42.5)).rate == 42.5
    assert _probe(()).rate == pytest.approx(31.623)
    assert _probe((), SearchSettings()).rate == 30.0
    assert _probe((), SearchSettings(start=0.1)).rate == SearchSettings().floor_qps
    assert all(_probe((), each).planned_s == 600.0 for each in (RANGE, SearchSettings(start=7.0)))


def test_a_first_probe_that_was_cut_off_before_it_told_anything_is_made_again() -> None:
    cut = ProbeRecord(31.623, 600.0, (Sample(0.001, 1, 0, {"ttft": 0}),), "interrupted", None, 0.0, 15.0)
    assert (_probe((cut,)).rate, _probe((cut,)).purpose) == (_probe(()).rate, "first probe, again")
    told = dataclasses.replace(cut, samples=(Sample(9.0, 280, 1, {"ttft": 0}),))
    assert _probe((told,)).purpose != "first probe, again"
    late = dataclasses.replace(cut, samples=(Sample(9.0, 280, 0, {"ttft": 0}, {"ttft": 150}),))
    assert _probe((late,)).rate < 31.6


def test_the_same_history_gives_the_same_step() -> None:
    history = (record(31.6, 0.0, seconds=30, ended="too low"), record(60.0, 0.4, seconds=30, ended="cannot pass"))
    assert next_step(history, RANGE) == next_step(history, RANGE)


def test_it_goes_up_after_a_good_probe_and_down_after_a_bad_one() -> None:
    up = _probe((record(31.6, 0.0, seconds=60, ended="too low"),)).rate
    assert 33.0 < up <= 100.0
    down = _probe((record(31.6, 0.3, seconds=60, ended="cannot pass"),)).rate
    assert 10.0 <= down < 30.0


def test_a_confirmed_rate_near_the_estimate_is_the_answer() -> None:
    history = (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(41.0, 0.03, seconds=200, ended="cannot pass", begin_s=75.0),
        record(38.9, 0.005, begin_s=290.0),
    )
    step = next_step(history, RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.probe, step.binding, step.located) == (38.9, 2, "ttft", True)
    assert 0.75 < step.pass_probability <= 0.9


def test_a_confirmed_rate_is_the_answer_where_another_full_run_would_gain_little() -> None:
    """The estimate is 4.2 % above the first and 6.0 % above the second; 4.5 tolerances and what is close count as little."""
    before = (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(41.0, 0.03, seconds=200, ended="cannot pass", begin_s=75.0),
    )
    step = next_step((*before, record(37.0, 0.002, begin_s=290.0)), RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (37.0, True)
    assert 37.5 < _probe((*before, record(36.5, 0.001, begin_s=290.0))).rate < 41.0


def test_a_rate_that_failed_below_the_answer_bounds_nothing_above() -> None:
    history = (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(36.0, 0.02, seconds=60, ended="cannot pass", begin_s=75.0),
        record(38.9, 0.004, begin_s=700.0),
        record(38.95, 0.004, begin_s=1315.0),
    )
    step = next_step(history, RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (38.95, False)
    assert "no higher rate was seen to fail" in step.reason


def test_a_run_is_no_answer_by_its_counts_alone_nor_by_its_verdict_alone() -> None:
    before = (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(41.0, 0.03, seconds=200, ended="cannot pass", begin_s=75.0),
    )
    for last in (record(38.9, 0.005, valid=False, begin_s=290.0), record(38.9, 0.0098, valid=True, begin_s=290.0)):
        assert isinstance(next_step((*before, last), RANGE), Probe)


def test_a_bad_low_probe_is_repeated_before_it_is_believed() -> None:
    history = (
        record(30.0, 0.0),
        record(33.0, 0.0, begin_s=615.0, seconds=300, ended="too low"),
        record(29.0, 0.2, seconds=60, ended="cannot pass", begin_s=930.0),
    )
    step = _probe(history, dataclasses.replace(RANGE, time_budget_s=None))
    # The full-length run at 30 QPS stands, or the bad one is made again; no step far down.
    assert step.rate >= 29.0
    repeated = _probe(history[1:])
    assert repeated.rate == 29.0
    assert "repeat" in repeated.purpose


def test_one_short_probe_far_above_does_not_send_the_search_to_the_lowest_rate() -> None:
    """Half a minute at a prediction that was too high: all are over, and the queue had no time to show that it grows."""
    settings = SearchSettings(low=1.0, high=100.0, start=80.0)
    first = record(80.0, 0.9, seconds=30.0, ended="cannot pass")
    second = _probe((first,), settings)
    assert 10.0 < second.rate < 79.0
    both = (first, record(second.rate, 0.9, seconds=30.0, ended="cannot pass", begin_s=45.0))
    assert (_probe(both, settings).rate, _probe(both, settings).purpose) == (1.0, "the lowest rate")


def test_too_few_queries_are_not_a_failure() -> None:
    """At 0.9 QPS a full run holds 540 queries; at 0.2 QPS nothing is over: too slow to certify, not too fast."""
    settings = SearchSettings()
    low = settings.floor_qps
    history = tuple(record(low, 0.5, seconds=100, ended="cannot pass", begin_s=turn * 115.0) for turn in range(2))
    below = _probe(history, settings)
    assert (below.rate, below.max_s) == (low / 4, 240.0)
    quiet = dataclasses.replace(record(below.rate, 0.0, seconds=240, ended="no more time"), purpose=below.purpose)
    step = next_step((*history, quiet), settings)
    assert isinstance(step, NoAnswer)
    assert step.kind == "too few queries"
    assert "459 queries" in step.reason
    almost = dataclasses.replace(record(below.rate, 0.03, seconds=240, ended="no more time"), purpose=below.purpose)
    assert almost.samples[-1].over == {"ttft": 2}
    step = next_step((*history, almost), settings)
    assert isinstance(step, NoAnswer)
    assert step.kind == "too few queries"
    loud = dataclasses.replace(record(below.rate, 0.5, seconds=240, ended="cannot pass"), purpose=below.purpose)
    step = next_step((*history, loud), settings)
    assert isinstance(step, NoAnswer)
    assert (step.kind, step.binding) == ("impossible", "ttft")


def test_more_queries_can_be_asked_for() -> None:
    assert SearchSettings(min_queries=6000).lowest_qps > 10.0
    assert SearchSettings().needed_queries == 459
    assert SearchSettings(percentile=0.9).needed_queries == 44


def test_runs_that_are_invalid_for_another_reason_end_it() -> None:
    history = tuple(record(30.0 + turn, 0.0, valid=False, begin_s=615.0 * turn) for turn in range(3))
    step = next_step(history, RANGE)
    assert isinstance(step, NoAnswer)
    assert step.kind == "invalid"


def test_the_confirmation_always_fits_the_budget() -> None:
    none = next_step((), dataclasses.replace(RANGE, time_budget_s=610.0))
    assert isinstance(none, NoAnswer)
    assert none.kind == "budget"
    settings = dataclasses.replace(RANGE, time_budget_s=800.0)
    first = _probe((), settings)
    assert first.max_s == pytest.approx(800.0 - 600.0 - 30.0)
    history = (record(31.6, 0.0, seconds=100, ended="too low"),)
    assert _probe(history, settings).must_finish
    spent = (*history, record(50.0, 0.4, seconds=80, ended="cannot pass", begin_s=115.0))
    step = next_step(spent, settings)
    assert isinstance(step, NoAnswer)
    assert step.kind == "budget"


def test_when_time_ends_the_best_certified_rate_is_given_and_named() -> None:
    history = (record(31.6, 0.0), record(60.0, 0.4, seconds=60, ended="cannot pass", begin_s=615.0))
    step = next_step(history, dataclasses.replace(RANGE, time_budget_s=1000.0))
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (31.6, False)
    assert "time budget ended first" in step.reason


def test_the_upper_end_of_the_range_may_be_the_answer() -> None:
    history = (record(31.6, 0.0, seconds=60, ended="too low"), record(100.0, 0.0, begin_s=75.0))
    step = next_step(history, RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.binding) == (100.0, None)
    assert "upper end" in step.reason


def test_a_system_that_contradicts_itself_still_gets_a_full_run() -> None:
    history: History = ()
    for turn in range(10):
        good = turn % 2 == 1
        rate = 40.0 + (0.5 if good else -0.5)
        ended: Ended = "too low" if good else "cannot pass"
        history += (record(rate, 0.0 if good else 0.1, seconds=100, ended=ended, begin_s=115.0 * turn),)
    step = _probe(history)
    assert step.must_finish
    again = record(step.rate, 0.1, seconds=100, ended="cannot pass", begin_s=1150.0)
    lower = _probe((*history, again, again))
    assert lower.must_finish
    assert lower.rate < step.rate


def test_three_good_runs_are_no_answer_while_nothing_has_failed() -> None:
    """A few queries over the limit at any rate make the fitted line flat; the estimate then says little."""
    settings = SearchSettings(duration_s=120.0)
    history: History = ()
    for rate in (93.0, 108.0, 136.0):
        spent_s = sum(each.cost_s for each in history)
        history += (record(rate, 0.0006, seconds=120, planned_s=120, begin_s=spent_s),)
    assert _probe(history, settings).rate >= 2 * 136.0


def test_a_system_that_takes_any_rate_is_searched_to_the_top_of_the_range() -> None:
    settings = SearchSettings(high=1000.0, duration_s=30.0)
    history: History = ()
    while isinstance(step := next_step(history, settings), Probe):
        assert len(history) < 12
        history += (record(step.rate, 0.0, seconds=30, planned_s=30, begin_s=45.0 * len(history)),)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (1000.0, True)


def test_one_good_run_far_below_the_estimate_is_no_answer() -> None:
    settings = SearchSettings(duration_s=120.0)
    assert isinstance(next_step((record(30.0, 0.0006, seconds=120, planned_s=120),), settings), Probe)


def test_what_a_line_says_of_rates_never_tried_locates_nothing() -> None:
    """Two runs 1.5 % apart that hardly differ: the fitted line is flat, and its estimate is near any rate."""
    history = (
        record(31.6, 0.0, seconds=60, ended="too low"),
        record(60.0, 0.4, seconds=30, ended="cannot pass", begin_s=75.0),
        record(39.0, 0.006, begin_s=120.0),
        record(39.6, 0.0065, begin_s=735.0),
    )
    above = _probe(history)
    assert above.rate > 43.0
    assert "to find a rate that fails" in above.purpose
    failed = record(above.rate, 0.05, seconds=60, ended="unlikely to pass", begin_s=1350.0)
    step = next_step((*history, failed), RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located, f"{above.rate:.5g} QPS was seen to fail" in step.reason) == (39.6, True, True)
    # A probe that was given up without a count that says so is no rate that fails.
    given_up = record(above.rate, 0.006, seconds=60, ended="unlikely to pass", begin_s=1350.0)
    step = next_step((*history, given_up), RANGE)
    assert isinstance(step, Probe) or (isinstance(step, Answer) and not step.located)


def test_a_probe_that_was_cut_off_is_no_rate_that_held() -> None:
    """The look above is near the rate that is confirmed, else what it finds to fail is too far off to bound it."""
    history = (
        record(21.2, 0.0, seconds=30, ended="too low"),
        record(42.6, 0.03, seconds=20, ended="interrupted", begin_s=45.0),
        record(36.0, 0.0005, seconds=90, ended="too low", begin_s=80.0),
        record(38.6, 0.006, begin_s=185.0),
    )
    above = _probe(history)
    assert "to find a rate that fails" in above.purpose
    assert above.rate == pytest.approx(1.2 * 38.6, rel=1e-3)
    failed = record(above.rate, 0.2, seconds=25, ended="cannot pass", begin_s=800.0)
    step = next_step((*history, failed), RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (38.6, True)


def test_a_rate_that_failed_a_short_probe_and_held_two_full_runs_is_the_answer() -> None:
    """One slow query of 38 is one too many in a run of so few; the fit believes that probe, and the runs are VALID."""
    settings = SearchSettings(start=0.69)
    lowest = settings.floor_qps
    short = ProbeRecord(lowest, 600.0, (Sample(55.0, 46, 38, {"ttft": 1}),), "cannot pass", None, 0.0, 70.0)
    history: History = (short, record(lowest, 0.0, begin_s=70.0))
    rates = []
    while isinstance(step := next_step(history, settings), Probe):
        rates.append(step.rate)
        assert len(rates) < 8
        spent_s = sum(each.cost_s for each in history)
        if step.rate > 1.05 * lowest:
            history += (record(step.rate, 0.2, seconds=30, ended="cannot pass", begin_s=spent_s),)
        else:
            history += (record(step.rate, 0.0, begin_s=spent_s),)
    assert isinstance(step, Answer)
    assert step.rate == lowest
    assert len(set(rates)) == len(rates)  # what has failed above it is not probed again
    assert rates[-1] == lowest


def test_a_search_that_finds_no_agreement_gives_what_was_valid() -> None:
    """Forty probes of a system that holds a rate once and fails everything after it, that rate included."""
    good = record(20.0, 0.004)
    failed = tuple(record(20.0 + each % 3, 0.02, begin_s=615.0 * (1 + each)) for each in range(39))
    step = next_step((good, *failed), RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (20.0, False)


def test_nothing_is_probed_above_a_rate_that_plainly_failed_but_that_rate_again() -> None:
    """A few slow queries at any rate make the fitted line flat, and the failure a mishap."""
    settings = SearchSettings(low=294.0, high=1765.0)
    history: History = ()
    for rate, share, ended in (
        (720.6, 0.001, "too low"),
        (815.9, 0.0008, "too low"),
        (987.2, 0.32, "cannot pass"),
        (930.0, 0.001, "too low"),
    ):
        spent_s = sum(each.cost_s for each in history)
        history += (record(rate, share, seconds=25, ended=cast("Ended", ended), begin_s=spent_s),)
    again = _probe(history, settings)
    assert (again.rate, again.purpose) == (987.2, "once more where it plainly failed")
    failed = record(987.2, 0.32, seconds=25, ended="cannot pass", begin_s=160.0)
    assert 930.0 < _probe((*history, failed), settings).rate < 987.2


def test_full_runs_without_queries_end_the_search() -> None:
    """A probe that issues nothing is no system that is too slow, and asking it again does not help."""
    nothing = Final(valid=True, n=0, over={"ttft": 0}, seconds=600.0)
    idle = dataclasses.replace(record(50.0, 0.0), samples=(Sample(300.0, 0, 0, {"ttft": 0}),), final=nothing)
    assert isinstance(next_step((idle, idle), RANGE), Probe)
    step = next_step((idle, idle, idle), RANGE)
    assert isinstance(step, NoAnswer)
    assert step.kind == "too few queries"
    assert "3 full runs ended with too few queries" in step.reason


def test_a_good_run_at_the_lowest_rate_is_not_made_again_and_again() -> None:
    """Runs of seconds that are overloaded show few queries over the limit: the fitted line is flat, and says too little."""
    settings = SearchSettings(low=2.0, high=300.0, duration_s=15.0, percentile=0.9, data_set=64, at_least=64)

    def run(rate: float, over: int, n: int, ended: Ended, begin_s: float) -> ProbeRecord:
        samples = tuple(Sample(1.0 * t, n * t // 15, n * t // 15, {"ttft": over * t // 15}) for t in range(1, 16))
        final = Final(valid=True, n=n, over={"ttft": over}, seconds=32.0) if ended == "complete" else None
        return ProbeRecord(rate, settings.run_s(rate), samples, ended, final, begin_s, 30.0)

    history = (
        run(24.5, 25, 107, "cannot pass", 0.0),
        run(16.6, 14, 85, "unlikely to pass", 30.0),
        run(2.0, 0, 64, "complete", 60.0),
        run(2.0, 0, 64, "complete", 90.0),
    )
    step = _probe(history, settings)
    assert 2.0 < step.rate < 16.6


@pytest.mark.parametrize("tolerance", [0.01, 0.05, 0.2])
def test_a_coarse_tolerance_is_no_leave_to_answer_half_of_what_holds(tolerance: float) -> None:
    """Runs of seconds: twice the rate held as well, and what failed is not far above that."""
    settings = SearchSettings(5.0, 0.9, tolerance, low=5.0, high=60.0, start=12.0, data_set=44, at_least=44, slack=1.1)
    history = (
        record(12.0, 0.0, seconds=8, planned_s=7.33, valid=True),
        record(8.8, 0.0, seconds=10.5, planned_s=10.0, begin_s=30.0, valid=True),
        record(24.0, 0.0, seconds=9, planned_s=5.5, begin_s=65.0, valid=True),
        record(48.0, 0.74, seconds=18, planned_s=5.5, ended="cannot pass", begin_s=95.0),
        record(33.94, 0.62, seconds=15, planned_s=6.5, ended="cannot pass", begin_s=140.0),
        record(28.54, 0.45, seconds=12, planned_s=6.2, ended="cannot pass", begin_s=175.0),
    )
    step = next_step(history, settings)
    assert step.rate > 18.0 if isinstance(step, (Answer, Probe)) else pytest.fail(str(step))


def test_a_valid_run_is_not_lost_to_runs_above_it_that_are_invalid_for_another_reason() -> None:
    """A load client that is too slow for higher rates: the best VALID run is the answer, named as not located."""
    refused = tuple(record(rate, 0.001, valid=False, begin_s=1300.0) for rate in (45.0, 44.0, 43.0))
    step = next_step((record(30.0, 0.0), record(36.0, 0.001, begin_s=615.0), *refused), RANGE)
    assert isinstance(step, Answer)
    assert (step.rate, step.located) == (36.0, False)
    assert "3 probes kept every limit and were INVALID for another reason" in step.reason
    alone = next_step(refused, RANGE)
    assert isinstance(alone, NoAnswer)
    assert alone.kind == "invalid"

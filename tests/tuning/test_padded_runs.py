"""LoadGen pads a run to whole data sets: the search plans with the length that a run really has; whose rule judges."""

from __future__ import annotations

import dataclasses

import pytest

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.tuning.fit import Fit, Outlook, certifies
from dynamo_mlperf.tuning.limits import out_of_time
from dynamo_mlperf.tuning.probes import (
    Final,
    History,
    NoAnswer,
    Probe,
    ProbeRecord,
    Sample,
    SearchSettings,
    confirm_s,
)
from dynamo_mlperf.tuning.search import next_step

LARGE = SearchSettings(data_set=48_289, at_least=48_289, start=40.0)
"""As the vision-language benchmark: 48,289 samples and 600 s."""


@pytest.mark.parametrize(
    ("rate", "queries", "seconds"),
    [(40.0, 48_289, 1207.2), (78.0, 48_289, 619.1), (81.0, 96_578, 1192.3), (8.0, 48_289, 6036.1)],
)
def test_a_run_is_as_long_as_its_data_sets_are(rate: float, queries: int, seconds: float) -> None:
    assert LARGE.run_queries(rate) == queries
    assert LARGE.run_s(rate) == pytest.approx(seconds, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "rate", "queries", "most"),
    [
        (SearchSettings(1.0, 0.9, data_set=64, at_least=64), 252.0, 256, 320),
        (SearchSettings(1.0, 0.9, data_set=64, at_least=64), 255.5, 256, 320),
        (SearchSettings(1.0, 0.9, data_set=64, at_least=64), 190.0, 192, 256),
        (SearchSettings(data_set=8000, at_least=8000), 39.67, 24_000, 32_000),
        (SearchSettings(data_set=8000, at_least=8000), 38.9, 24_000, 24_000),
        (SearchSettings(at_least=24_000), 40.0, 24_000, 24_620),
        (SearchSettings(), 40.0, 24_000, 24_000 + 4 * 24_000**0.5),
        (SearchSettings(data_set=8000, at_least=8000, slack=1.1), 36.3, 24_000, 24_000),
        (SearchSettings(data_set=8000, at_least=8000, slack=1.1, rule="endpoints"), 36.3, 24_000, 24_000),
    ],
)
def test_arrivals_at_random_may_fill_a_data_set_more(
    settings: SearchSettings, rate: float, queries: float, most: float
) -> None:
    """LoadGen issued 320 queries at 252 to 255.5 QPS of 1 s, and 32,000 at 39.67 to 40 QPS of 600 s."""
    assert (settings.run_queries(rate), settings.most_queries(rate)) == (queries, most)
    assert settings.run_s(rate) == max(settings.duration_s, most / rate if settings.padded else 0.0)


def test_a_run_that_may_last_too_long_is_made_at_a_lower_rate() -> None:
    """At 79.9 QPS a run lasts 604 s or, with a data set more, 1,209 s; at 77.5 it lasts 623 s."""
    assert LARGE.run_s(79.9) == pytest.approx(1208.7, abs=0.1)
    settings = dataclasses.replace(LARGE, start=79.9, time_budget_s=650.0)
    first = next_step((), settings)
    assert isinstance(first, Probe)
    assert first.must_finish
    assert first.rate == pytest.approx(77.5, abs=0.01)
    assert first.planned_s == first.max_s == settings.run_s(first.rate) < 650.0 - settings.overhead_s
    roomy = next_step((), dataclasses.replace(settings, time_budget_s=2000.0))
    assert isinstance(roomy, Probe)
    assert (roomy.must_finish, roomy.rate) == (False, 79.9)


def test_the_last_run_to_fit_holds_no_data_set_more() -> None:
    samples = tuple(Sample(float(t), 40 * t, 40 * t, {"ttft": 0}) for t in range(10, 61, 10))
    history = (ProbeRecord(40.0, 1207.0, samples, "too low", None, 0.0, 75.0),)
    settings = dataclasses.replace(LARGE, time_budget_s=75.0 + 650.0)
    near = Outlook(rate=80.5, confirm=80.0, doubt=0.0, even=81.0, queries=48_289.0)
    step = out_of_time(history, settings, Fit(history, settings, 75.0), near, "ttft")
    assert isinstance(step, Probe)
    assert step.purpose == "the last to fit"
    assert step.rate == pytest.approx(78.1, abs=0.1)
    assert step.planned_s < 650.0 - settings.overhead_s


def test_a_run_that_is_not_padded_is_as_long_as_it_is_asked_to_be() -> None:
    assert (SearchSettings().run_queries(40.0), SearchSettings().run_s(40.0)) == (24_000.0, 600.0)


def test_probes_are_planned_with_the_real_length() -> None:
    first = next_step((), LARGE)
    assert isinstance(first, Probe)
    assert first.planned_s == pytest.approx(48_289 / 40.0)


def test_a_whole_data_set_is_enough_at_any_rate() -> None:
    """No rate is too low for its number of queries; a run may last 20 times the shortest at most."""
    assert LARGE.floor_qps == pytest.approx(48_289 / (20 * 600.0))
    few = SearchSettings(data_set=64, at_least=64)
    assert few.run_queries(few.floor_qps) >= few.needed_queries == 459


def test_the_budget_holds_the_longer_run_that_confirms_a_lower_rate() -> None:
    """At 80 QPS a run lasts 604 s; what confirms the 40 that it turns out to be lasts 1,207 s."""
    settings = dataclasses.replace(LARGE, start=80.0, high=81.0, time_budget_s=2000.0)
    over = tuple(Sample(t, int(80 * t), int(40 * t), {"ttft": int(38 * t)}) for t in range(1, 61))
    history = (ProbeRecord(80.0, settings.run_s(80.0), over, "cannot pass", None, 0.0, 70.0),)
    step = next_step(history, settings)
    assert isinstance(step, Probe)
    assert step.rate < 45.0
    assert step.must_finish or step.max_s <= 2000.0 - 70.0 - settings.run_s(step.rate)
    short = next_step(history, dataclasses.replace(settings, time_budget_s=1000.0))
    assert isinstance(short, NoAnswer)
    assert short.kind == "budget"


def test_the_budget_holds_no_run_that_cannot_be_asked_for() -> None:
    """At 0.2 QPS, the lowest, 44 queries take 220 s: an estimate of 0.09 does not make the confirmation 480 s long."""
    settings = SearchSettings(
        20.0, 0.75, 0.15, 0.2, 12.0, 1.5, time_budget_s=600.0, overhead_s=10.0, data_set=44, at_least=44
    )
    assert [confirm_s(settings, rate) for rate in (0.05, 0.2, 1e3)] == [220.0, 220.0, settings.run_s(12.0)]
    history: History = ()
    for rate, t_s, completed, over in (
        (1.5, 11.1, 6, 2),
        (0.97, 17.6, 10, 5),
        (0.84, 20.3, 10, 4),
        (0.335, 49.5, 17, 4),
    ):
        spent = sum(each.cost_s for each in history)
        seen = tuple(
            Sample(t_s * part, int(20 * part), int(completed * part), {"end_to_end": int(over * part)})
            for part in (0.25, 0.5, 0.75, 1)
        )
        history += (ProbeRecord(rate, settings.run_s(rate), seen, "unlikely to pass", None, spent, t_s + 5.0),)
    step = next_step(history, settings)
    assert isinstance(step, Probe)
    assert step.rate == 0.2
    assert step.must_finish or step.max_s == 220.0


def test_endpoints_allows_one_query_fewer() -> None:
    """The t-th highest latency is reported, so that a limit is kept with t - 1 over it; t is 1 from 662 queries on."""
    settings = SearchSettings(rule="endpoints")
    assert settings.needed_queries == 662
    assert (settings.allowed(662), settings.allowed(661)) == (0, -1)
    n = 24_000
    at_edge = Final(valid=True, n=n, over={"ttft": allowed_over_limit(n, 0.99)}, seconds=600.0)
    run = ProbeRecord(40.0, 600.0, (), "complete", at_edge)
    assert certifies(run, SearchSettings())
    assert not certifies(run, settings)


def test_the_same_other_reason_twice_ends_the_search() -> None:
    """Failed requests, a client that is too slow, no proof of KV transfer: full runs are not spent on them again."""

    def refused(rate: float, why: str) -> ProbeRecord:
        final = Final(valid=False, n=24_000, over={"ttft": 0}, seconds=600.0, reasons=(why,))
        return ProbeRecord(rate, 600.0, (), "complete", final, cost_s=615.0)

    settings = SearchSettings(low=10.0, high=100.0)
    history: History = (refused(40.0, "client-limited: ..."), refused(41.0, "failed requests: 1"))
    assert isinstance(next_step(history, settings), Probe)
    step = next_step((*history, refused(39.0, "failed requests: 1")), settings)
    assert isinstance(step, NoAnswer)
    assert (step.kind, "failed requests: 1" in step.reason) == ("invalid", True)
    cut = ProbeRecord(40.0, 600.0, (Sample(5.0, 200, 190, {"ttft": 0}),), "not valid", refused="1 failed requests: 500")
    step = next_step((cut, cut), settings)
    assert isinstance(step, NoAnswer)
    assert "1 failed requests: 500" in step.reason

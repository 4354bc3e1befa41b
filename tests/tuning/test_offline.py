"""Offline: the expected rate is raised until a run lasts long enough."""

from __future__ import annotations

from dataclasses import replace

from dynamo_mlperf.tuning.offline import judge_offline, measured_qps, next_offline_step
from dynamo_mlperf.tuning.probes import Answer, Final, History, NoAnswer, Probe, ProbeRecord, Sample, SearchSettings

SETTINGS = SearchSettings()


def _run(
    probe: Probe, serves: float, settings: SearchSettings = SETTINGS, begin_s: float = 0.0, *, valid: bool = True
) -> ProbeRecord:
    """An Offline run: all of its queries at once, served at a fixed rate, judged line by line."""
    count = round(settings.run_queries(probe.rate))
    lasts_s = count / serves
    samples: list[Sample] = []
    for step in range(1, int(lasts_s / 10) + 1):
        samples.append(Sample(10.0 * step, count, int(serves * 10 * step), {}))
        record = ProbeRecord(probe.rate, probe.planned_s, tuple(samples), "running", begin_s=begin_s)
        verdict = judge_offline(record, settings)
        if verdict.stop:
            return replace(record, ended=verdict.stop, cost_s=10.0 * step)
    final = Final(valid and lasts_s >= probe.planned_s, count, {}, lasts_s)
    return ProbeRecord(probe.rate, probe.planned_s, tuple(samples), "complete", final, cost_s=lasts_s)


def _search(serves: float, settings: SearchSettings = SETTINGS, *, valid: bool = True) -> tuple[object, History]:
    history: History = ()
    while isinstance(step := next_offline_step(history, settings), Probe):
        history += (_run(step, serves, settings, sum(record.cost_s for record in history), valid=valid),)
    return step, history


def test_too_fast_and_too_slow_systems_are_found_with_one_full_run() -> None:
    for serves in (230.0, 2.0, 9.9):
        step, history = _search(serves)
        assert isinstance(step, Answer)
        last = history[step.probe].final
        assert last is not None
        assert last.seconds >= 600.0
        assert last.seconds < 1.1 * 600.0
        assert sum(record.cost_s for record in history) < 1.5 * 600.0


def test_an_invalid_run_is_not_an_answer() -> None:
    step, _ = _search(10.1, valid=False)
    assert isinstance(step, NoAnswer)
    assert step.kind == "invalid"


def test_the_budget_holds() -> None:
    step, history = _search(230.0, SearchSettings(time_budget_s=500.0))
    assert isinstance(step, NoAnswer)
    assert (step.kind, history) == ("budget", ())
    assert "615 s" in step.reason
    step, history = _search(230.0, SearchSettings(time_budget_s=650.0))
    assert isinstance(step, NoAnswer)
    assert (step.kind, [record.ended for record in history]) == ("budget", ["complete"])


def test_no_full_run_is_begun_that_the_budget_does_not_hold() -> None:
    """A whole data set of 48,289 at 14 a second takes 3,449 s: one look shows it, and the rest of the time is saved."""
    large = SearchSettings(data_set=48_289, at_least=48_289, slack=1.1, start=14.0)
    step, history = _search(14.0, large)
    assert isinstance(step, Answer)
    assert (len(history), round(history[0].cost_s)) == (1, 3449)
    step, history = _search(14.0, replace(large, time_budget_s=3000.0))
    assert isinstance(step, NoAnswer)
    assert step.kind == "budget"
    assert "3464 s" in step.reason
    assert ([record.ended for record in history], history[0].cost_s) == (["no more time"], 150.0)


def test_a_run_that_outlasts_the_budget_after_all_is_stopped_with_it() -> None:
    """By its rate it just fits; at the end of the budget it is stopped, whatever it was thought to last."""
    settings = SearchSettings(start=10.0, time_budget_s=615.0)
    step, history = _search(9.6, settings)
    assert isinstance(step, NoAnswer)
    assert step.kind == "budget"
    assert ([record.ended for record in history], history[0].cost_s) == (["no more time"], 620.0)


def test_a_range_that_ends_before_the_rate_is_told_at_once() -> None:
    step, history = _search(230.0, SearchSettings(high=50.0))
    assert isinstance(step, NoAnswer)
    assert (step.kind, [record.rate for record in history]) == ("too few queries", [10.0, 50.0])
    assert "a run of 30000 queries lasts 130 s; 600 s are needed" in step.reason
    step, history = _search(2.0, SearchSettings(low=40.0))
    assert isinstance(step, NoAnswer)
    assert (step.kind, [record.rate for record in history]) == ("impossible", [40.0])


def test_a_probe_that_was_cut_before_its_first_answer_tells_no_rate() -> None:
    settings = SearchSettings(start=230.0)
    cut = ProbeRecord(230.0, 600.0, (Sample(5.0, 138_000, 0, {}),), "interrupted", cost_s=20.0)
    step = next_offline_step((cut,), settings)
    assert isinstance(step, Probe)
    assert step.rate == 230.0
    seen = replace(cut, rate=20.0, samples=(Sample(90.0, 12_000, 9000, {}),), ended="too low")
    step = next_offline_step((seen, cut), settings)
    assert isinstance(step, Probe)
    assert step.rate == 103.0


def test_a_slow_begin_is_no_slow_system() -> None:
    """The first answers of an Offline run come late, and in rounds: what counts is what is completed from then on."""
    answered = tuple(Sample(60.0 + 10.0 * turn, 11_000, 100 + 100 * turn, {}) for turn in range(10))
    record = ProbeRecord(10.0, 600.0, (Sample(50.0, 11_000, 0, {}), *answered), "running")
    assert measured_qps(record) == 10.0
    assert judge_offline(record, SETTINGS).stop is None


def test_the_rate_is_never_below_one_that_was_too_low() -> None:
    low = ProbeRecord(40.0, 600.0, (Sample(80.0, 40_000, 4000, {}),), "too low", cost_s=90.0)
    long = ProbeRecord(52.0, 600.0, (Sample(160.0, 40_000, 160, {}),), "too long", cost_s=170.0)
    step = next_offline_step((low, long), SETTINGS)
    assert isinstance(step, Probe)
    assert 40.0 < step.rate < 52.0

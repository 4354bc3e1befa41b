"""Offline: the expected rate is raised until a run lasts long enough."""

from __future__ import annotations

from dynamo_mlperf.tuning.offline import judge_offline, measured_qps, next_offline_step
from dynamo_mlperf.tuning.probes import Answer, Final, History, NoAnswer, Probe, ProbeRecord, Sample, SearchSettings

SETTINGS = SearchSettings()


def _run(probe: Probe, serves: float, *, valid: bool = True) -> ProbeRecord:
    """An Offline run: all of expected rate x duration at once, served at a fixed rate, judged line by line."""
    count = round(probe.rate * probe.planned_s)
    lasts_s = count / serves
    samples: list[Sample] = []
    for step in range(1, int(lasts_s / 10) + 1):
        samples.append(Sample(10.0 * step, count, int(serves * 10 * step), {}))
        record = ProbeRecord(probe.rate, probe.planned_s, tuple(samples), "running", cost_s=10.0 * step)
        verdict = judge_offline(record, SETTINGS)
        if verdict.stop:
            return ProbeRecord(probe.rate, probe.planned_s, tuple(samples), verdict.stop, cost_s=10.0 * step)
    final = Final(valid and lasts_s >= probe.planned_s, count, {}, lasts_s)
    return ProbeRecord(probe.rate, probe.planned_s, tuple(samples), "complete", final, cost_s=lasts_s)


def _search(serves: float, settings: SearchSettings = SETTINGS, *, valid: bool = True) -> tuple[object, History]:
    history: History = ()
    while isinstance(step := next_offline_step(history, settings), Probe):
        history += (_run(step, serves, valid=valid),)
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
    assert step.kind == "budget"
    assert sum(record.cost_s for record in history) <= 500.0


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

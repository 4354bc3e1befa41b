"""Offline: the expected rate is raised until a run lasts long enough."""

from __future__ import annotations

from dynamo_mlperf.tuning.offline import judge_offline, next_offline_step
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

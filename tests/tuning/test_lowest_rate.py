"""Where even the lowest rate fails: the search says so, in the time that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.probes import Final, NoAnswer, Probe, ProbeRecord, Sample, SearchSettings
from dynamo_mlperf.tuning.search import next_step

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import Ended, History

OVERHEAD_S = 15.0


def probed(step: Probe, share: float, seconds: float, ended: Ended, history: History) -> ProbeRecord:
    """A probe of a steady system with this share over the limit, cut off where its time is over."""
    out = step.max_s < min(seconds, step.planned_s)
    seconds = min(seconds, step.max_s)
    samples = tuple(
        Sample(t_s, round(step.rate * t_s), round(step.rate * t_s), {"ttft": round(step.rate * t_s * share)})
        for t_s in (seconds * turn / 20 for turn in range(1, 21))
    )
    begin_s = sum(record.cost_s for record in history)
    how = "no more time" if out else ended
    last = samples[-1]
    final = Final(share < 0.005, last.completed, last.over, seconds) if how == "complete" else None
    return ProbeRecord(step.rate, step.planned_s, samples, how, final, begin_s, seconds + OVERHEAD_S, step.purpose)


def test_probes_at_and_below_the_lowest_rate_keep_to_the_time_budget() -> None:
    """Every query is over the limit at any rate; the probe program takes no hint to stop, so that two runs are whole."""
    settings = SearchSettings(start=30.0, time_budget_s=1400.0)
    history: History = ()
    while isinstance(step := next_step(history, settings), Probe):
        left_s = 1400.0 - sum(record.cost_s for record in history) - OVERHEAD_S
        assert step.max_s <= left_s, step
        history += (probed(step, 1.0, 600.0, "complete", history),)
    assert isinstance(step, NoAnswer)
    assert history[-1].rate == settings.lowest_qps
    assert sum(record.cost_s for record in history) <= 1400.0


def test_a_short_look_that_seemed_good_does_not_outweigh_two_failures_at_the_lowest_rate() -> None:
    """The end of each run shows what its begin does not, so that the fit goes on trusting the look at the begin."""
    settings = SearchSettings(low=10.0, high=100.0)
    lowest = Probe(10.0, 600.0, 600.0, must_finish=False, purpose="to confirm")
    history: History = (probed(lowest, 0.0, 400.0, "too low", ()),)
    history += (probed(lowest, 0.03, 600.0, "complete", history),)
    assert isinstance(next_step(history, settings), Probe)
    history += (probed(lowest, 0.03, 600.0, "complete", history),)
    step = next_step(history, settings)
    assert isinstance(step, NoAnswer), step
    assert step.kind == "impossible"
    assert "10 QPS, the lowest rate that may be an answer" in step.reason

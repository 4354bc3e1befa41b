"""A system that became slower is noticed by looking again; noise near the edge does not make a bad answer likely."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.tuning.drift import AGAIN, STILL, changed_at
from dynamo_mlperf.tuning.probes import Answer, Final, History, Probe, ProbeRecord, Sample, SearchSettings
from dynamo_mlperf.tuning.progress import Judge
from dynamo_mlperf.tuning.search import next_step
from tests.tuning.test_next_step import RANGE, record

AN_HOUR_AGO: History = (
    record(31.6, 0.0, seconds=60, ended="too low", begin_s=-4400.0),
    record(41.0, 0.03, seconds=200, ended="cannot pass", begin_s=-4325.0),
    record(38.9, 0.005, begin_s=-4110.0),
)
"""Records whose answer was 38.9 QPS, and which are old by now, as a search's that is resumed."""


class System:
    """Passes the limit for 99 % of its queries up to `capacity`; each run has a speed of its own."""

    def __init__(self, capacity: float, sigma: float, seed: int) -> None:
        self.capacity, self.sigma, self.random = capacity, sigma, np.random.default_rng(seed)

    def probe(self, probe: Probe, history: History, settings: SearchSettings) -> ProbeRecord:
        """One probe, judged every five seconds."""
        pace = self.capacity * math.exp(self.random.normal(0.0, self.sigma))
        share = min(1.0, 0.01 * (probe.rate / pace) ** 25)
        judge, samples, over, issued = Judge(history, settings, probe), [], 0, 0
        begin_s = sum(each.cost_s for each in history)
        made = ProbeRecord(probe.rate, probe.planned_s, (), "running", None, begin_s, purpose=probe.purpose)
        for t_s in range(5, int(probe.planned_s) + 1, 5):
            came = int(self.random.poisson(5.0 * probe.rate))
            issued, over = issued + came, over + int(self.random.binomial(came, share))
            samples.append(Sample(float(t_s), issued, issued, {"ttft": over}))
            made = dataclasses.replace(made, samples=tuple(samples), cost_s=t_s + 15.0)
            if (verdict := judge.look(made)).stop:
                return dataclasses.replace(made, ended=verdict.stop)
        final = Final(over <= allowed_over_limit(issued, 0.99), issued, {"ttft": over}, probe.planned_s)
        return dataclasses.replace(made, ended="complete", final=final)

    def passes(self, rate: float, times: int = 200) -> float:
        """How often a full run at this rate passes."""
        pace = self.capacity * np.exp(self.random.normal(0.0, self.sigma, times))
        n = int(600 * rate)
        over = self.random.poisson(n * np.minimum(1.0, 0.01 * (rate / pace) ** 25))
        return float((over <= allowed_over_limit(n, 0.99)).mean())

    def bisect(self, low: float, high: float) -> float:
        """What plain bisection with full runs answers: the last rate that passed."""
        while high / low > 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.passes(middle, 1) == 1.0 else (low, middle)
        return low

    def search(self, settings: SearchSettings, history: History = ()) -> tuple[Answer, History]:
        """The whole search."""
        while isinstance(step := next_step(history, settings), Probe):
            history += (self.probe(step, history, settings),)
        assert isinstance(step, Answer), step
        return step, history


TOP = SearchSettings(low=10.0, high=30.0)
"""The upper end of the range passes."""


def _at_the_top(begin_s: float) -> History:
    return (
        record(17.3, 0.0, seconds=60, ended="too low", begin_s=begin_s - 75.0),
        record(30.0, 0.0005, begin_s=begin_s),
    )


def test_an_old_confirmation_is_looked_at_again_before_it_is_the_answer() -> None:
    assert isinstance(next_step(_at_the_top(0.0), TOP), Answer)
    old = _at_the_top(-3900.0)
    check = next_step(old, TOP)
    assert isinstance(check, Probe)
    assert (check.rate, check.purpose) == (30.0, STILL)
    holds = dataclasses.replace(record(30.0, 0.001, seconds=75, ended="as before", begin_s=690.0), purpose=STILL)
    answer = next_step((*old, holds), TOP)
    assert isinstance(answer, Answer)
    assert answer.rate == 30.0
    # Where nothing has changed a check costs an eighth of a run, and where something has it ends at once.
    assert System(40.0, 0.004, 1).probe(check, old, TOP).ended == "as before"
    assert System(27.0, 0.004, 1).probe(check, old, TOP).ended in {"cannot pass", "unlikely to pass"}


def test_a_slower_system_is_believed_after_a_second_look() -> None:
    old = _at_the_top(-3900.0)
    bad = dataclasses.replace(record(30.0, 0.05, seconds=60, ended="cannot pass", begin_s=690.0), purpose=STILL)
    again = next_step((*old, bad), TOP)
    assert isinstance(again, Probe)
    assert (again.rate, again.purpose) == (30.0, AGAIN)
    history = (*old, bad, dataclasses.replace(bad, begin_s=765.0, purpose=AGAIN))
    assert changed_at(history) == 2
    lower = next_step(history, TOP)
    assert isinstance(lower, Probe)
    assert lower.rate < 0.99 * 30.0


def test_the_answer_is_one_that_the_slower_system_gives() -> None:
    odds = []
    for seed in range(5):
        system = System(37.0, 0.004, seed)  # it was 40 an hour ago
        answer, _ = system.search(RANGE, AN_HOUR_AGO)
        odds.append(system.passes(answer.rate))
        assert answer.rate > 0.94 * 37.0
    assert sum(each < 0.5 for each in odds) <= 1, odds


def test_noise_near_the_edge_seldom_makes_an_answer_that_a_repeat_fails() -> None:
    """A system whose runs differ by 1.2 % passes with probability 0.5 near the edge: one lucky run is no answer."""
    odds, plain = [], []
    for seed in range(10):
        system = System(40.0, 0.012, seed)
        answer, _ = system.search(SearchSettings(low=10.0, high=100.0))
        odds.append(system.passes(answer.rate))
        plain.append(system.passes(system.bisect(10.0, 100.0)))
    assert sum(each < 0.5 for each in odds) <= 2, odds
    assert min(odds) > min(plain), (odds, plain)
    assert float(np.median(odds)) > 0.9 > float(np.median(plain)), (odds, plain)

"""A search, and plain bisection, on simulated systems: what each costs and answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import passes
from dynamo_mlperf.tuning.probes import Final, Probe, ProbeRecord, Sample, SearchSettings, Step
from dynamo_mlperf.tuning.progress import Judge
from dynamo_mlperf.tuning.search import next_step
from tests.performance.simulators.runs import simulate

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import History
    from tests.performance.simulators.systems import System

OVERHEAD_S = 15.0


@dataclass(frozen=True)
class Outcome:
    """How a search ended: its last step, what it cost in engine seconds, in how many probes, and those, where known."""

    step: Step
    cost_s: float
    probes: int
    history: History = ()


@dataclass(frozen=True)
class Told:
    """What one simulated run tells.

    Attributes:
        samples: One each window.
        generated: Queries of the whole run, where it is padded; else None.
    """

    samples: list[Sample]
    generated: int | None


def settings_of(
    system: System, *, low: float | None = None, high: float | None = None, start: float | None = None
) -> SearchSettings:
    """How a system is searched: a padded one as the benchmark whose data set it has."""
    whole = system.data_set if system.data_set > 1 else 0
    return SearchSettings(low=low, high=high, start=start, data_set=system.data_set, at_least=whole)


def stream(
    system: System, rate: float, seconds: float, *, seed: int, start_s: float, until_s: float | None = None
) -> Told:
    """What one simulated run of `seconds`, or as long as it is padded to, tells up to `until_s`."""
    run = simulate(system, rate, seconds, seed=seed, start_s=start_s, until_s=until_s)
    padded, whole = system.data_set > 1, int(run.whole[0])
    windows = len(run.t_s) if until_s is not None else 1 + int(np.argmax(run.completed[0] == run.completed[0, -1]))
    samples = [
        Sample(
            float(t_s),
            int(run.issued[0, index]),
            int(run.completed[0, index]),
            {name: int(counts[0, index]) for name, counts in run.over.items()},
        )
        for index, t_s in enumerate(run.t_s[: windows if padded else None])
    ]
    return Told(samples, whole if padded else None)


def final_of(samples: list[Sample]) -> Final:
    """The last line of a run that went on to its end."""
    last = samples[-1]
    valid = all(passes(last.completed, over, 0.99) for over in last.over.values())
    return Final(valid, last.completed, last.over, last.t_s)


def make_probe(system: System, probe: Probe, history: History, settings: SearchSettings, seed: int) -> ProbeRecord:
    """Run one probe of a search on a system, judged line by line; worked out no further than it is looked at."""
    begin_s = sum(record.cost_s for record in history)
    begun = ProbeRecord(probe.rate, probe.planned_s, (), "running", None, begin_s, purpose=probe.purpose)
    judge, seen, told = Judge(history, settings, probe), 0, Told([], None)
    for until_s in (0.12 * probe.planned_s, 0.4 * probe.planned_s, probe.planned_s):
        whole = until_s == probe.planned_s
        until = None if whole else until_s
        told = stream(system, probe.rate, settings.duration_s, seed=seed, start_s=begin_s, until_s=until)
        samples = told.samples
        for end in range(seen + 1, len(samples) + (not whole)):
            record = replace(begun, samples=tuple(samples[:end]), generated=told.generated)
            verdict = judge.look(record)
            if verdict.stop:
                return replace(record, ended=verdict.stop, cost_s=samples[end - 1].t_s + OVERHEAD_S)
        seen = len(samples)
    return replace(
        begun,
        samples=tuple(told.samples),
        ended="complete",
        final=final_of(told.samples),
        cost_s=told.samples[-1].t_s + OVERHEAD_S,
        generated=told.generated,
    )


def search(system: System, settings: SearchSettings, seed: int) -> Outcome:
    """The whole search."""
    history: History = ()
    while isinstance(step := next_step(history, settings), Probe):
        history += (make_probe(system, step, history, settings, seed * 1000 + len(history)),)
    return Outcome(step, sum(record.cost_s for record in history), len(history), history)


def bisect(system: System, low: float, high: float, seed: int, seconds: float = 600.0) -> tuple[float | None, float]:
    """Plain bisection with full-length runs until the bracket is 1 % wide: the answer and its cost.

    `low` is taken to pass and `high` to fail, as a person would start; a probe that fails at `low` moves it down.
    """
    spent, turn, best = 0.0, 0, None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        final = final_of(stream(system, middle, seconds, seed=seed * 1000 + 500 + turn, start_s=spent).samples)
        turn, spent = turn + 1, spent + final.seconds + OVERHEAD_S
        if final.valid:
            low = best = middle
        else:
            high = middle
    return best, spent

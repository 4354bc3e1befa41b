"""A search, and plain bisection, on simulated systems: what each costs and answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
    """How a search ended: its last step, and what it cost in engine seconds."""

    step: Step
    cost_s: float
    history: History = ()


def stream(
    system: System, rate: float, seconds: float, *, seed: int, start_s: float, until_s: float | None = None
) -> list[Sample]:
    """What one simulated run tells up to `until_s`: a sample each window."""
    run = simulate(system, rate, seconds, seed=seed, start_s=start_s, until_s=until_s)
    return [
        Sample(
            float(t_s),
            int(run.issued[0, index]),
            int(run.completed[0, index]),
            {name: int(counts[0, index]) for name, counts in run.over.items()},
        )
        for index, t_s in enumerate(run.t_s)
    ]


def final_of(samples: list[Sample]) -> Final:
    """The last line of a run that went on to its end."""
    last = samples[-1]
    valid = all(passes(last.completed, over, 0.99) for over in last.over.values())
    return Final(valid, last.completed, last.over, last.t_s)


def make_probe(system: System, probe: Probe, history: History, settings: SearchSettings, seed: int) -> ProbeRecord:
    """Run one probe of a search on a system, judged line by line; worked out no further than it is looked at."""
    begin_s = sum(record.cost_s for record in history)
    judge, seen, samples = Judge(history, settings, probe), 0, []
    for until_s in (0.12 * probe.planned_s, 0.4 * probe.planned_s, probe.planned_s):
        samples = stream(system, probe.rate, probe.planned_s, seed=seed, start_s=begin_s, until_s=until_s)
        whole = until_s == probe.planned_s
        for end in range(seen + 1, len(samples) + (not whole)):
            record = ProbeRecord(
                probe.rate, probe.planned_s, tuple(samples[:end]), "running", None, begin_s, purpose=probe.purpose
            )
            verdict = judge.look(record)
            if verdict.stop:
                return replace(record, ended=verdict.stop, cost_s=samples[end - 1].t_s + OVERHEAD_S)
        seen = len(samples)
    return ProbeRecord(
        probe.rate,
        probe.planned_s,
        tuple(samples),
        "complete",
        final_of(samples),
        begin_s,
        probe.planned_s + OVERHEAD_S,
        probe.purpose,
    )


def search(system: System, settings: SearchSettings, seed: int) -> Outcome:
    """The whole search."""
    history: History = ()
    while isinstance(step := next_step(history, settings), Probe):
        history += (make_probe(system, step, history, settings, seed * 1000 + len(history)),)
    return Outcome(step, sum(record.cost_s for record in history), history)


def bisect(system: System, low: float, high: float, seed: int, seconds: float = 600.0) -> tuple[float | None, float]:
    """Plain bisection with full-length runs until the bracket is 1 % wide: the answer and its cost.

    `low` is taken to pass and `high` to fail, as a person would start; a probe that fails at `low` moves it down.
    """
    spent, turn, best = 0.0, 0, None
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        final = final_of(stream(system, middle, seconds, seed=seed * 1000 + 500 + turn, start_s=spent))
        turn, spent = turn + 1, spent + seconds + OVERHEAD_S
        if final.valid:
            low = best = middle
        else:
            high = middle
    return best, spent

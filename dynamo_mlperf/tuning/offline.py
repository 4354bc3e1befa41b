"""The Offline scenario: raise the expected rate until a run lasts as long as it has to.

LoadGen sends expected rate x duration queries at once, so a run of a system faster than expected ends too early and is
INVALID; one far slower than expected lasts far too long. What a run completes per second is what it is asked to expect
next, with a little room. Whether the run that confirms fits what is left of the time is known as soon as one run has
shown that rate: before it, only that the shortest run has to fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe
from dynamo_mlperf.tuning.progress import GO_ON, Verdict

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings, Step

ROOM = 1.03
"""The expected rate is the measured one with this much room, so that the next run is long enough."""
_FIRST_QPS = 10.0
_AT_END = 1e-4
_LOOK_SHARE, _LONG_LOOK_SHARE = 0.1, 0.25
_TOO_LONG = 2.5
_SURELY = 1.1
"""Factor by which a run must be seen to outlast the time that is left before it is stopped: its rate is an estimate."""
_SETTLED_LINES = 3
_MOST_PROBES = 12
_TOO_SHORT = frozenset({"complete", "too low"})
"""How a run ends that the expected rate was too low for (a VALID one of full length is the answer)."""


def measured_qps(record: ProbeRecord) -> float:
    """Queries that a probe completed per second."""
    if record.final is not None:
        return record.final.n / max(record.final.seconds, 1e-9)
    answered = [each for each in record.samples if each.completed]
    if len(answered) < _SETTLED_LINES:
        return record.samples[-1].completed / max(record.samples[-1].t_s, 1e-9)
    first, last = answered[0], answered[-1]  # until the first answers nothing can be completed
    return (last.completed - first.completed) / max(last.t_s - first.t_s, 1e-9)


def next_offline_step(history: History, settings: SearchSettings) -> Step:
    """The next Offline probe, or the end: the first VALID run that lasted long enough."""
    for index, record in enumerate(history):
        final = record.final
        enough = final and final.n >= settings.min_queries and final.seconds >= settings.duration_s
        if final and final.valid and enough:
            rate = measured_qps(record)
            reason = f"VALID run of {final.n} queries in {final.seconds:.0f} s, {rate:.5g} queries/s"
            return Answer(record.rate, index, located=True, binding=None, pass_probability=1.0, reason=reason)
    if history and (given_up := _given_up(history, settings)) is not None:
        return given_up
    served = next((qps for record in reversed(history) if (qps := measured_qps(record)) > 0.0), 0.0)
    first = settings.start or settings.low or _FIRST_QPS
    probe = _higher(served, history, settings) if served else _probe(first, settings, "first probe")
    return _no_room(served, probe.rate, history, settings) or probe


def _given_up(history: History, settings: SearchSettings) -> NoAnswer | None:
    """When another run would help nothing."""
    last = history[-1]
    if last.ended == "not valid":
        return NoAnswer("invalid", f"a run at {last.rate:.5g} was INVALID: {last.refused}", "read its log")
    if last.final and not last.final.valid and last.final.seconds >= settings.duration_s:
        why = f": {last.final.reasons[0]}" if last.final.reasons else " by its own verdict"
        return NoAnswer("invalid", f"a run of {last.final.seconds:.0f} s was INVALID{why}", "read its log")
    if len(history) >= _MOST_PROBES:
        return NoAnswer("no agreement", f"{len(history)} runs, none long enough", "give --start near the true rate")
    return _out_of_range(last, settings)


def _out_of_range(last: ProbeRecord, settings: SearchSettings) -> NoAnswer | None:
    """When a run at an end of the range shows that the range ends before the rate that is looked for."""
    queries = last.final.n if last.final else settings.run_queries(last.rate)
    lasts_s = last.final.seconds if last.final else queries / max(measured_qps(last), 1e-9)
    told = f"a run of {queries:.0f} queries lasts {lasts_s:.0f} s"
    if settings.high and last.rate >= settings.high * (1.0 - _AT_END) and last.ended in _TOO_SHORT:
        least = f"{settings.duration_s:.0f} s{f' and {settings.min_queries} queries' if settings.min_queries else ''}"
        text = f"at {last.rate:.5g}, the highest expected rate, {told}; {least} are needed"
        return NoAnswer("too few queries", text, "give a higher --high (search: {high: ...})")
    if settings.low and last.rate <= settings.low * (1.0 + _AT_END) and last.ended == "too long":
        text = f"at {last.rate:.5g}, the lowest expected rate, {told}; {settings.duration_s:.0f} s are needed"
        return NoAnswer("impossible", text, "give a lower --low (search: {low: ...})")
    return None


def _no_room(served: float, rate: float, history: History, settings: SearchSettings) -> NoAnswer | None:
    """When what is left of the budget holds no full run at this expected rate; `served` 0: nothing is known yet."""
    if settings.time_budget_s is None:
        return None
    spent = sum(record.cost_s for record in history)
    needed_s = max(settings.duration_s, settings.run_queries(rate) / served if served else 0.0) + settings.overhead_s
    if settings.time_budget_s - spent >= needed_s:
        return None
    at = f" at {served:.4g} queries/s" if served else ""
    return NoAnswer(
        "budget",
        f"{spent:.0f} s of {settings.time_budget_s:.0f} s are spent, and a full run{at} needs {needed_s:.0f} s",
        f"give it {spent + needed_s:.0f} s or more (time_budget_s, or the job's --time)",
    )


def _higher(served: float, history: History, settings: SearchSettings) -> Probe:
    """The next expected rate: what the last run completed per second, and a little room; above all that was too low."""
    too_low = [record.rate for record in history if record.ended in _TOO_SHORT]
    rate = max(served * ROOM, settings.low or 0.0, 1e-3, *(ROOM * each for each in too_low))
    return _probe(min(rate, settings.high) if settings.high else rate, settings, "by what the last probe completed")


def _probe(rate: float, settings: SearchSettings, purpose: str) -> Probe:
    return Probe(float(f"{rate:.5g}"), settings.duration_s, settings.duration_s, must_finish=False, purpose=purpose)


def judge_offline(record: ProbeRecord, settings: SearchSettings, looked: int = 20) -> Verdict:
    """Stop a run that will end too early, last far too long, or not end before the time budget does."""
    last = record.samples[-1]
    if last.t_s < _LOOK_SHARE * settings.duration_s or last.completed < looked:
        return GO_ON
    served = max(measured_qps(record), 1e-9)
    lasts_s = settings.run_queries(record.rate) / served
    if lasts_s < 0.97 * settings.duration_s:
        return Verdict("too low", f"{served:.4g} queries/s: it would end after {lasts_s:.0f} s")
    shortest_s = settings.run_queries(1e-9) / served if settings.padded else 0.0
    late = last.t_s >= _LONG_LOOK_SHARE * settings.duration_s  # a longer run is VALID too: only a far too long one ends
    if late and lasts_s > _TOO_LONG * max(settings.duration_s, shortest_s):
        return Verdict("too long", f"{served:.4g} queries/s: it would last {lasts_s:.0f} s")
    left_s = math.inf if settings.time_budget_s is None else settings.time_budget_s - record.begin_s
    if last.t_s >= left_s or (late and lasts_s > _SURELY * left_s):
        return Verdict(
            "no more time", f"{served:.4g} queries/s: it would last {lasts_s:.0f} s, {left_s:.0f} s are left"
        )
    return GO_ON

"""The Offline scenario: raise the expected rate until a run lasts as long as it has to.

LoadGen sends expected rate x duration queries at once, so a run of a system faster than expected ends too early and is
INVALID; one far slower than expected lasts far too long. What a run completes per second is what it is asked to expect
next, with a little room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe
from dynamo_mlperf.tuning.progress import GO_ON, Verdict

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings, Step

ROOM = 1.03
"""The expected rate is the measured one with this much room, so that the next run is long enough."""
_FIRST_QPS = 10.0
_LOOK_SHARE, _LONG_LOOK_SHARE = 0.1, 0.25
_TOO_LONG = 2.5
_SETTLED_LINES = 3
_MOST_PROBES = 12


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
    if not history:
        return _probe(settings.start or settings.low or _FIRST_QPS, settings, "first probe")
    for index, record in enumerate(history):
        final = record.final
        enough = final and final.n >= settings.min_queries and final.seconds >= settings.duration_s
        if final and final.valid and enough:
            rate = measured_qps(record)
            reason = f"VALID run of {final.n} queries in {final.seconds:.0f} s, {rate:.5g} queries/s"
            return Answer(record.rate, index, located=True, binding=None, pass_probability=1.0, reason=reason)
    return _given_up(history, settings) or _higher(history, settings)


def _given_up(history: History, settings: SearchSettings) -> NoAnswer | None:
    """When another run would help nothing, or there is no time for it."""
    last = history[-1]
    if last.ended == "not valid":
        return NoAnswer("invalid", f"a run at {last.rate:.5g} was INVALID: {last.refused}", "read its log")
    if last.final and not last.final.valid and last.final.seconds >= settings.duration_s:
        why = f": {last.final.reasons[0]}" if last.final.reasons else " by its own verdict"
        return NoAnswer("invalid", f"a run of {last.final.seconds:.0f} s was INVALID{why}", "read its log")
    if len(history) >= _MOST_PROBES:
        return NoAnswer("no agreement", f"{len(history)} runs, none long enough", "give --start near the true rate")
    spent = sum(record.cost_s for record in history)
    if settings.time_budget_s is not None and settings.time_budget_s - spent < settings.duration_s:
        text = f"{spent:.0f} s of {settings.time_budget_s:.0f} s are spent, too little is left for a full run"
        return NoAnswer("budget", text, "resume it with more time")
    return None


def _higher(history: History, settings: SearchSettings) -> Probe:
    """The next expected rate: what the last run completed per second, and a little room; above all that was too low."""
    too_low = [record.rate for record in history if record.ended in {"complete", "too low"}]
    rate = max(measured_qps(history[-1]) * ROOM, settings.low or 0.0, 1e-3, *(ROOM * each for each in too_low))
    return _probe(min(rate, settings.high) if settings.high else rate, settings, "by what the last probe completed")


def _probe(rate: float, settings: SearchSettings, purpose: str) -> Probe:
    return Probe(float(f"{rate:.5g}"), settings.duration_s, settings.duration_s, must_finish=False, purpose=purpose)


def judge_offline(record: ProbeRecord, settings: SearchSettings, looked: int = 20) -> Verdict:
    """Stop a run that will end too early, or last far too long."""
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
    return GO_ON

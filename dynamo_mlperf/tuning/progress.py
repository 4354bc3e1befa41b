"""Whether a running probe goes on: `judge_progress`, asked with each line of its stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.tuning.drift import ABOVE, CHECK_SHARE, STILL
from dynamo_mlperf.tuning.evidence import backlog_grows, shows_failure
from dynamo_mlperf.tuning.fit import Fit
from dynamo_mlperf.tuning.probes import Sample

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import Ended, History, Probe, ProbeRecord, SearchSettings

_LOST_AT, _LOST_BELOW = (0.05, 0.4, 1.0), (0.1, 0.35, 0.2)
"""A run that passes with less than this probability is stopped, by the share of it that was seen: early only when that
is plain, late hardly any more, because little is left to pay."""
_LATE_SHARE, _LATE_ROOM = 0.7, 2.0
_LOOK_SHARE = 0.02
_FIRST_LOOK_SHARE = 0.05
_SEEN_ENOUGH_SHARE = 0.04
_TOO_SHORT_FOR_ANY = 5
_KNOWN_SHARE = 0.5
_NEARLY_DONE, _GOOD = 0.6, 0.9


@dataclass(frozen=True)
class Verdict:
    """Go on, or stop and why.

    Attributes:
        stop: How the probe ends if it is stopped now; None = it goes on.
        text: The reason for people.
    """

    stop: Ended | None
    text: str = ""


GO_ON = Verdict(None)


class Judge:
    """Judges one probe while it runs. The fit of the earlier probes is made once.

    Args:
        history: The probes before it.
        settings: The search.
        probe: The probe as planned.
    """

    def __init__(self, history: History, settings: SearchSettings, probe: Probe) -> None:
        self._settings, self._probe = settings, probe
        self._history = history
        self._now_s = sum(record.cost_s for record in history)
        self._fit: Fit | None = None
        self._looked_s = 0.0
        self._is_the_last = False

    def look(self, record: ProbeRecord) -> Verdict:
        """Judge the probe as far as it has come."""
        if not record.samples:
            return GO_ON
        t_s = record.samples[-1].t_s
        lost = self._cannot_pass(record)
        if lost and t_s >= _SEEN_ENOUGH_SHARE * record.whole_s:  # what it can serve shows only after a while
            return Verdict("cannot pass", lost)
        out = self._probe.max_s < self._probe.planned_s and _is_last_within(self._probe.max_s, record.samples)
        self._is_the_last = self._is_the_last or (out and self._becomes_the_last(record))
        if out and not self._is_the_last:
            return Verdict("no more time", f"{self._probe.max_s:.0f} s are what the time budget leaves for it")
        planned_s = record.whole_s
        early = t_s < _FIRST_LOOK_SHARE * planned_s or t_s - self._looked_s < _LOOK_SHARE * planned_s
        if self._probe.must_finish or early or t_s >= planned_s:
            return GO_ON
        self._looked_s = t_s
        verdict = self._by_fit(record)
        if self._probe.purpose == STILL and not verdict.stop and t_s >= CHECK_SHARE * planned_s:
            return Verdict("as before", "it holds as it did")
        return verdict

    def _becomes_the_last(self, record: ProbeRecord) -> bool:
        """Whether a run whose time is over had better go on and be the confirmation.

        Of padded runs only, whose length jumps with the rate, so that the time kept for another one may not hold it.
        """
        share, budget_s = record.samples[-1].t_s / record.whole_s, self._settings.time_budget_s or math.inf
        fits = self._now_s + record.whole_s + self._settings.overhead_s <= budget_s
        if not self._settings.padded or share < _NEARLY_DONE or not fits:
            return False
        _outlook, _name, chance = self._fitted(record).with_running(record)
        return chance >= _GOOD

    def _cannot_pass(self, record: ProbeRecord) -> str:
        """Why no course of the rest could make this run pass; empty while one could."""
        queries = self._settings.most_queries(record.rate) if record.generated is None else record.generated
        most = self._settings.allowed(round(queries))
        most = (
            most if most >= 0 else _TOO_SHORT_FOR_ANY
        )  # such a probe is no run to pass: it asks whether any rate does
        last = record.samples[-1]
        for name in sorted(last.over):
            over, flying = last.over_of(name), last.over_in_flight.get(name, 0)
            if over > most:
                told = f" ({flying} of them still in flight)" if flying else ""
                return f"{over} queries over the {name} limit{told}; a full run may have {most}"
        return ""

    def _fitted(self, record: ProbeRecord) -> Fit:
        """The fit of the earlier probes, for the constraints that this one counts."""
        if self._fit is None or set(record.constraints) - set(self._fit.names):
            self._fit = Fit((*self._history, _begun(record)), self._settings, self._now_s)
        return self._fit

    def _by_fit(self, record: ProbeRecord) -> Verdict:
        fit = self._fitted(record)
        outlook, name, chance = fit.with_running(record)
        share = record.samples[-1].t_s / record.whole_s
        seen = self._probe.purpose != ABOVE or shows_failure(record, 1.0 - self._settings.percentile)
        if seen and chance < float(np.interp(share, _LOST_AT, _LOST_BELOW)):
            return Verdict("unlikely to pass", f"passes with probability {chance:.2f} if it goes on")
        gap = math.log(outlook.confirm / record.rate)
        if record.rate >= self._settings.highest_qps * 0.9999:
            return GO_ON
        room = 1.25 * outlook.closeness(self._settings.placing) * (1.0 + _LATE_ROOM * share)
        last = record.samples[-1]
        known = last.completed >= _KNOWN_SHARE * last.issued  # the slow ones are those that are not back yet
        late = last.t_s < fit.late_s
        if share < _LATE_SHARE and gap > room and known and not late and not backlog_grows(record):
            return Verdict("too low", f"the {name} limit leaves room for {outlook.confirm:.4g} or more")
        return GO_ON


def _is_last_within(max_s: float, lines: tuple[Sample, ...]) -> bool:
    """Whether another line, as long after this one as this one is after the one before, would come too late."""
    before_s = lines[-2].t_s if len(lines) > 1 else 0.0
    return 2.0 * lines[-1].t_s - before_s > max_s


def _begun(record: ProbeRecord) -> ProbeRecord:
    """The probe as it began: it names the constraints and tells nothing yet."""
    return replace(record, samples=(Sample(0.0, 0, 0, dict.fromkeys(record.constraints, 0)),), final=None)


def judge_progress(record: ProbeRecord, history: History, settings: SearchSettings, probe: Probe) -> Verdict:
    """Judge a probe as far as it has come, from nothing but values."""
    return Judge(history, settings, probe).look(record)

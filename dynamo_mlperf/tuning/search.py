"""The rate search: `next_step(history, settings)` says what to do next, from nothing but values.

Every probe is planned as a full run at the rate that is, by all that was seen, the best one to confirm; while nothing
is known yet that rate is merely the best estimate. A running probe is stopped as soon as it can confirm nothing
(`progress`), so a good one runs on and is the confirmation.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.drift import ABOVE, AGAIN, FAILED, STILL, is_stale
from dynamo_mlperf.tuning.evidence import onset_s, shows_failure
from dynamo_mlperf.tuning.fit import Fit, certifies, otherwise_invalid
from dynamo_mlperf.tuning.lasting import lasting_rate
from dynamo_mlperf.tuning.limits import no_answer_below, no_room, out_of_time
from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe, confirm_rate, confirm_s, extra_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.tuning.fit import Outlook
    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings, Step

_SURE = 1.0
"""Doubt below this many times the closeness that is wanted: the next probe is meant to confirm."""
_HOLDS, _EVEN = 0.9, 0.5
_REACH_SHARE, _REACH_TOLERANCES = 2.8, 1.7
"""A confirmed rate is the answer where the estimate is above it by at most so many times what counts as close, and so
many tolerances more: another full run costs more than what it would gain."""
_GALLOP = 6.0
_EXPECTED_GOOD = 0.985
_PATIENCE, _MOST_CERTIFIED, _MOST_WHOLE, _MOST_PROBES = 10, 3, 5, 40
_MOST_OTHERWISE_INVALID = 3
_CLOSE = 1.25
"""A certified rate this factor or less below one that failed has been looked for closely enough."""
_CLIMB = 2.0
_LOOK_ABOVE = 1.2
"""A look at a rate that must only be seen to fail: the higher, the sooner it is; within `_CLOSE`."""
_PLAIN = 3.0
"""So many times what may be over is no scatter near the limit."""
_HELD_AGAIN = 0.6
"""Share of the full runs at a rate, two at least, that were VALID where repeats have shown that it holds."""
_CUT = frozenset({"interrupted", "no more time"})
"""Ended before they told whether their rate holds: that it has not failed yet is no reason to look further above."""
_DOWN = 0.8
"""By how much at least the rate goes down with each run that failed only late: what came before tells nothing."""


def next_step(history: History, settings: SearchSettings) -> Step:
    """The next probe, or the end of the search."""
    if not history:
        first = _first_rate(settings)
        return no_room(settings, first) or _probe(first, settings, history, "first probe")
    refused = _refused(history, settings)
    if refused is not None and not any(certifies(record, settings) for record in history):
        return refused
    empty = [each for each in history if each.final and each.final.n < 0.5 * settings.needed_queries <= _expected(each)]
    if len(empty) >= _MOST_OTHERWISE_INVALID:
        return NoAnswer(
            "too few queries",
            f"{len(empty)} full runs ended with too few queries for a verdict, {settings.needed_queries} are needed "
            f"(the last one was asked for {empty[-1].rate:.4g} QPS)",
            "look into that probe's own log: it does not issue what it is asked for",
        )
    fit = Fit(history, settings, sum(record.cost_s for record in history))
    outlook, binding = fit.outlook()
    if refused is not None:
        return _best_so_far(history, settings, fit, outlook, binding, refused=refused)
    return (
        _accepted(history, settings, fit, outlook, binding)
        or no_answer_below(history, settings, fit, outlook, binding)
        or out_of_time(history, settings, fit, outlook, binding)
        or _no_agreement(history, settings, fit, outlook, binding)
        or _repeat(history, settings)
        or _next_probe(history, settings, outlook)
    )


def _no_agreement(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str
) -> Answer | NoAnswer | None:
    """After so many probes the end: with the best of what was VALID, where anything was."""
    if len(history) < _MOST_PROBES:
        return None
    end = NoAnswer(
        "no agreement",
        f"{len(history)} probes do not agree on a rate",
        "look for what else uses the machines; probe with a longer --duration-s",
    )
    if not any(certifies(record, settings) for record in history):
        return end
    return _best_so_far(history, settings, fit, outlook, binding, refused=end)


def _best_so_far(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str, *, refused: NoAnswer
) -> Answer:
    """The best certified rate where what is above it is INVALID for a reason that more probes will not mend."""
    certified = [index for index, record in enumerate(history) if certifies(record, settings)]
    even = [index for index in certified if fit.holds_probability(history[index].rate) >= _EVEN]
    index = max(even or certified, key=lambda each: history[each].rate)
    answer = _answer(history, index, fit, outlook, binding, top=False)
    return replace(answer, located=False, reason=f"{answer.reason}; the search ended there: {refused.reason}")


def _refused(history: History, settings: SearchSettings) -> NoAnswer | None:
    """When probes keep being INVALID for another reason than a limit; twice for the very same one is enough."""
    refused = [each for each in history if otherwise_invalid(each, settings)]
    said = [each.final.reasons[0] if each.final and each.final.reasons else each.refused for each in refused]
    same = len(said) > 1 and said[-1] and said[-1] == said[-2]
    if not same and len(refused) < _MOST_OTHERWISE_INVALID:
        return None
    why = said[-1] or "by the probe's own verdict"
    return NoAnswer(
        "invalid",
        f"{len(refused)} probes kept every limit and were INVALID for another reason "
        f"(the last one at {refused[-1].rate:.4g} QPS): {why}",
        "look into that probe's own log: failed requests or a rule other than latency",
    )


def _expected(record: ProbeRecord) -> float:
    """Half of the queries that a run at its rate should have."""
    return 0.5 * record.rate * record.planned_s


def _first_rate(settings: SearchSettings) -> float:
    if settings.start is not None:
        return _within(settings.start, settings)
    if settings.low is not None and settings.high is not None:
        return _within(math.sqrt(settings.low * settings.high), settings)
    return _within(30.0 if settings.low is None else settings.low * 2.0, settings)


def _within(rate: float, settings: SearchSettings) -> float:
    """The rate, brought into the range and to five digits: what is recorded is what is asked for."""
    bounded = min(max(rate, settings.lowest_qps), settings.highest_qps)
    return float(f"{bounded:.5g}") if settings.lowest_qps < bounded < settings.highest_qps else bounded


def _probe(
    rate: float, settings: SearchSettings, history: History, purpose: str, *, confirm_at: float | None = None
) -> Probe:
    """A probe planned as a full run; it is stopped where the confirmation would not fit the budget any more.

    `confirm_at` is the rate that is likely to be confirmed in the end; None = this one.
    """
    run_s = longest = settings.run_s(rate)
    must_finish = False
    if settings.time_budget_s is not None:
        left = settings.time_budget_s - sum(record.cost_s for record in history)
        spare = left - confirm_s(settings, confirm_at or rate) - 2.0 * extra_s(history, settings)
        must_finish = spare < 0.1 * run_s
        if must_finish and run_s > left - settings.overhead_s:  # a little lower a run may hold a data set less
            rate = confirm_rate(settings, confirm_at or rate)
            run_s = longest = settings.run_s(rate)
        if not must_finish:
            longest = min(longest, spare)
    return Probe(rate, run_s, longest, must_finish, purpose)


def _accepted(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str
) -> Answer | Probe | None:
    """The highest certified rate, if a repeat would pass there and nothing higher is in reach.

    One that was confirmed long ago is looked at again first.
    """
    certified = [index for index, record in enumerate(history) if certifies(record, settings)]
    whole = sum(record.ended == "complete" for record in history)
    failed = _failed(history, settings)
    ceiling = min(failed, default=math.inf)
    close = [index for index in certified if history[index].rate * _CLOSE >= ceiling]
    tired = len(history) >= 2 * _PATIENCE
    lasting = lasting_rate(history)
    enough = len(close) >= _MOST_CERTIFIED or bool(close and whole >= _MOST_WHOLE) or tired
    for index in sorted(certified, key=lambda each: (-history[each].rate, each)):
        rate = history[index].rate
        believed = fit.holds_probability(rate) >= (_EVEN if enough else _HOLDS)
        lasts = rate <= lasting * math.exp(-settings.placing) < math.inf
        if not (believed or lasts or _held_again(rate, history, settings)):
            continue
        top = rate >= 0.9999 * settings.highest_qps
        gap = math.log(min(outlook.rate, lasting) / rate)
        near = gap <= _reach(outlook.closeness, settings)
        if not (top or near or enough):
            return None
        bounded = top or rate * _CLOSE >= ceiling
        if not (bounded or tired) and (look := _look_above(rate, settings, history)) is not None:
            return look
        if is_stale(history, index, fit.now_s) and (check := _check(rate, settings, history)) is not None:
            return check
        above = any(rate <= each <= rate * _CLOSE for each in failed)  # one below it bounds nothing
        located = top or (above and gap <= _reach(outlook.claim, settings))
        return replace(_answer(history, index, fit, outlook, binding, top=top), located=located)
    if certified and whole >= 2 * _MOST_WHOLE:  # the system does not repeat itself: the one it kept best
        best = max(certified, key=lambda each: fit.holds_probability(history[each].rate))
        return replace(_answer(history, best, fit, outlook, binding, top=False), located=False)
    return None


def _held_again(rate: float, history: History, settings: SearchSettings) -> bool:
    """Whether repeats have shown that a rate holds, whatever the fit makes of shorter probes."""
    whole = [
        certifies(each, settings) for each in history if each.final and math.isclose(each.rate, rate, rel_tol=1e-6)
    ]
    return sum(whole) > 1 and sum(whole) >= _HELD_AGAIN * len(whole)


def _reach(close: Callable[[float], float], settings: SearchSettings) -> float:
    """How far, in log rate, the estimate may be above a confirmed rate that is the answer.

    Up to the usual tolerance, several of it: what a full run is worth. What a coarser one has beyond is added once.

    Args:
        close: What counts as close to the estimate, for a tolerance.
        settings: The search.
    """
    fine = settings.placing
    return _REACH_SHARE * close(fine) + _REACH_TOLERANCES * fine + settings.tolerance - fine


def _look_above(rate: float, settings: SearchSettings, history: History) -> Probe | None:
    """A look at a higher rate where none near it has failed: what a line says of rates never tried is no evidence.

    None where the rates that hold and those that fail meet above it, or the budget has no room.
    """
    failed = _failed(history, settings)
    lasting = lasting_rate(history)
    told = [each for each in history if each.rate >= rate and each.ended not in _CUT and each.rate not in failed]
    held = max((each.rate for each in told if each.rate <= lasting or each.final), default=rate)
    ceiling = min((each for each in failed if each > held), default=math.inf)
    if held * _CLOSE >= ceiling or held >= settings.highest_qps:
        return None
    first = sum(certifies(record, settings) for record in history) == 1
    above = min(held * (_LOOK_ABOVE if first else _CLIMB), math.sqrt(held * ceiling))
    look = _short_look(_within(above, settings), settings, history, ABOVE)
    return look and replace(look, must_finish=lasting < math.inf)  # there what looks good at first tells nothing


def _check(rate: float, settings: SearchSettings, history: History) -> Probe | None:
    """A look whether a rate still holds, where the budget has room for it."""
    return _short_look(rate, settings, history, STILL)


def _short_look(rate: float, settings: SearchSettings, history: History, purpose: str) -> Probe | None:
    """A probe after a rate is confirmed, where the budget has room for it."""
    run_s = longest_s = settings.run_s(rate)
    if settings.time_budget_s is not None:
        left = settings.time_budget_s - sum(record.cost_s for record in history) - extra_s(history, settings)
        if left < 0.3 * run_s:
            return None
        longest_s = min(longest_s, left)
    return Probe(rate, run_s, longest_s, must_finish=False, purpose=purpose)


def _ceiling(history: History, settings: SearchSettings) -> float:
    """The lowest rate that was seen to fail; without one nothing bounds the answer from above."""
    return min(_failed(history, settings), default=math.inf)


def _failed(history: History, settings: SearchSettings) -> list[float]:
    """Rates that were seen to fail; a probe that was merely unlikely to pass shows it by its own counts."""
    return [
        record.rate
        for record in history
        if record.ended == "cannot pass"
        or (record.ended in FAILED and shows_failure(record, 1.0 - settings.percentile))
        or (record.final and not certifies(record, settings) and not otherwise_invalid(record, settings))
    ]


def _plain_failures(history: History, settings: SearchSettings) -> tuple[float, int]:
    """The lowest rate, above those confirmed, at which far more queries were over than may be, and how often that was.

    The fit may take it for a mishap; that is seen by probing it again, not by probing above it.
    """
    confirmed = max((each.rate for each in history if certifies(each, settings)), default=0.0)
    plain = [
        each.rate
        for each in history
        if each.rate > confirmed
        and (each.ended in FAILED or (each.final and not each.final.valid))
        and shows_failure(each, _PLAIN * (1.0 - settings.percentile), backlog=False)
    ]
    lowest = min(plain, default=math.inf)
    return lowest, plain.count(lowest)


def _answer(history: History, index: int, fit: Fit, outlook: Outlook, binding: str, *, top: bool) -> Answer:
    rate = history[index].rate
    chance = fit.pass_probability(rate)
    above = "the upper end of the range" if top else f"estimated limit {outlook.rate:.4g} QPS by {binding}"
    failed = min((each for each in _failed(history, fit.settings) if each > rate), default=None)
    seen = f"{failed:.5g} QPS was seen to fail" if failed else "no higher rate was seen to fail"
    within = None if top else fit.room_above(rate, failed)
    room = "" if within is None else f"none more than {100 * within:.1f} % higher holds, with probability 0.9; "
    reason = f"full-length VALID run at {rate:.5g} QPS; {above}; {seen}; {room}"
    reason += f"a repeat passes with probability {chance:.2f}"
    lucky = max((each.rate for each in history if certifies(each, fit.settings)), default=rate)
    if lucky > rate:
        reason += f" (at {lucky:.5g} QPS, VALID once, with {fit.pass_probability(lucky):.2f})"
    free = top and outlook.rate > rate
    binds = None if free else binding
    return Answer(rate, index, located=True, binding=binds, pass_probability=chance, reason=reason, within=within)


def _repeat(history: History, settings: SearchSettings) -> Probe | None:
    """One bad probe where a good one was expected is repeated before it is believed."""
    last = history[-1]
    bad = last.ended in FAILED or (last.final and not certifies(last, settings))
    same = [record for record in history if math.isclose(record.rate, last.rate, rel_tol=1e-6)]
    if not bad or (len(same) > 1 and last.purpose != STILL) or len(history) == 1:
        return None
    if lasting_rate(history) < math.inf:  # it failed as the others make likely, whatever the fit expected
        return None
    before = history[:-1]
    expected = Fit(before, settings, sum(record.cost_s for record in before))
    if expected.holds_probability(last.rate) < _EXPECTED_GOOD:
        return None
    return _probe(last.rate, settings, history, AGAIN)


def _between(history: History, settings: SearchSettings, best: float) -> Probe:
    """Where the model would only repeat a good run (it fits some short runs badly): half-way to what failed above it.

    Where that is close above it, there is only one thing left to learn: whether the good run was luck.
    """
    ceiling = min((each for each in _failed(history, settings) if each > best), default=math.inf)
    if ceiling <= best * _CLOSE:
        again = _probe(best, settings, history, "to confirm once more, right below what fails")
        return replace(again, must_finish=True)
    rate = _CLIMB * best if ceiling == math.inf else math.sqrt(best * ceiling)
    purpose = "half-way between a rate that holds and one that fails"
    return _probe(_within(rate, settings), settings, history, purpose, confirm_at=best)


def _next_probe(history: History, settings: SearchSettings, outlook: Outlook) -> Step:
    """The best rate to confirm; while much is unknown, the best estimate."""
    if not any(record.tells for record in history):  # cut off before the first answer
        return _probe(_first_rate(settings), settings, history, "first probe, again")
    certified = [record.rate for record in history if certifies(record, settings)]
    lasting = lasting_rate(history) * math.exp(-settings.placing)
    impatient = -1 if certified else len(history) - _PATIENCE
    if impatient >= 0:  # the model does not fit this system: lower with each probe, and see each through
        rate = min(outlook.confirm * math.exp(-impatient * settings.tolerance), lasting)
        finish = "to confirm, no longer stopped while it can pass"
        probe = _probe(_within(rate, settings), settings, history, finish)
        return replace(probe, must_finish=True)
    sure = outlook.doubt <= _SURE * outlook.closeness(settings.placing)
    rate = outlook.confirm if sure else outlook.rate * math.exp(-settings.placing)
    late = [each.rate for each in history if onset_s(each) > 0.0]
    if not certified and len(late) > 1:
        rate = min(rate, min(late) * _DOWN ** (len(late) - 1))
    rate = min(rate, _GALLOP * max(record.rate for record in history), lasting)
    unbounded = bool(certified) and _ceiling(history, settings) == math.inf
    if unbounded and rate < (_CLIMB if len(certified) > 1 else 1.0) * max(certified):
        # Some systems have a few queries over the limit at any rate: the fitted line is then flat and says little.
        # And where the first run holds but is too short to prove it, a lower one adds less than one that fails.
        rate = _CLIMB * max(certified)
        return _probe(_within(rate, settings), settings, history, ABOVE, confirm_at=outlook.rate)
    if sure and certified and abs(math.log(rate / certified[-1])) < 0.3 * settings.tolerance:
        rate = certified[-1] * math.exp(math.copysign(0.5 * settings.tolerance, rate - certified[-1]))
    if rate > (plain := _plain_failures(history, settings))[0]:
        if plain[1] == 1:
            return _probe(plain[0], settings, history, "once more where it plainly failed", confirm_at=outlook.rate)
        rate = plain[0] * math.exp(-settings.placing)
    if any(math.isclose(_within(rate, settings), each, rel_tol=1e-6) for each in certified):
        return _between(history, settings, max(certified))
    purpose = "to confirm" if sure else f"to locate (within {100 * outlook.doubt:.1f} % so far)"
    probe = _probe(_within(rate, settings), settings, history, purpose, confirm_at=min(rate, outlook.rate))
    # By the fit it would be stopped as too low.
    return replace(probe, must_finish=probe.must_finish or rate == lasting)

"""Where a search ends without the answer it looked for: nothing passes, too few queries, no time left."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.evidence import backlog_grows, gather, served_qps, shows_failure
from dynamo_mlperf.tuning.fit import certifies, within_limits
from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe, confirm_rate, confirm_s, extra_s

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.fit import Fit, Outlook
    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings

_HOPELESS = 0.03
_PLAIN_SHARE = 0.5
_FLAT_PROBES, _FLAT_SPAN, _FLAT_SHARE, _FLAT_FALL = 4, 1.5, 1.3, 0.5
_LEAST_SHARE = 0.1
_DIAGNOSIS = "does any rate pass?"
_LOWER = "give a lower --low (search: {low: ...}) if such a rate is of use; else serve it faster"


def plainly_over(record: ProbeRecord) -> str | None:
    """The constraint that most queries break though the system keeps up: a lower rate will hardly help.

    One such probe may have been too short for its overload to show; two, the second at a lower rate, were not.
    """
    if served_qps(record) is not None or backlog_grows(record):
        return None
    for name in record.constraints:
        each = gather(record, name, 0.0)
        over, queries = each.over + each.ramp_over, each.queries + each.ramp_queries
        if queries and over / queries > _PLAIN_SHARE:
            return name
    return None


def flatly_over(history: History, settings: SearchSettings) -> str:
    """What shows that the share over a limit does not fall with the rate; empty where it may.

    At least four probes that all failed, over rates a factor of 1.5 apart or more, while the system kept up.
    """
    kept_up = [each for each in history if served_qps(each) is None and not backlog_grows(each) and each.samples]
    rates = sorted(each.rate for each in kept_up)
    if len(kept_up) < _FLAT_PROBES or rates[-1] < _FLAT_SPAN * rates[0]:
        return ""
    if not all(_bad(each, settings) for each in history):
        return ""
    for name in kept_up[-1].constraints:
        each = [gather(record, name, 0.0) for record in sorted(kept_up, key=lambda record: record.rate)]
        shares = [(one.over + one.ramp_over) / max(one.queries + one.ramp_queries, 1.0) for one in each]
        middle = len(shares) // 2
        low, high = statistics.mean(shares[:middle]), statistics.mean(shares[middle:])
        if min(shares) > _FLAT_SHARE * (1.0 - settings.percentile) and low > _FLAT_FALL * high:
            return (
                f"from {rates[0]:.4g} to {rates[-1]:.4g} QPS {100 * min(shares):.2g} to {100 * max(shares):.2g} % "
                f"of the queries are over the {name} limit, hardly fewer where the rate is lower"
            )
    return ""


def _fails_twice(at_lowest: list[ProbeRecord], history: History, settings: SearchSettings) -> bool:
    """Whether the last two probes at the lowest rate plainly broke a limit, and nothing else passed.

    That settles it, whatever the fit expects: it may still trust a short look there, or a prediction far above.
    """
    broke = [
        (each.ended == "cannot pass" or (each.final is not None and not within_limits(each, settings)))
        and shows_failure(each, 1.0 - settings.percentile)
        for each in at_lowest[-2:]
    ]
    return broke == [True, True] and not any(certifies(each, settings) for each in history)


def no_answer_below(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str
) -> NoAnswer | Probe | None:
    """When even the lowest rate seems to fail: probe it, look below it, and say which way it fails.

    None also where the time budget holds no such probe that would tell anything.
    """
    step = _below(history, settings, fit, outlook, binding)
    if settings.time_budget_s is None or not isinstance(step, Probe):
        return step
    left_s = settings.time_budget_s - sum(record.cost_s for record in history) - extra_s(history, settings)
    return replace(step, max_s=min(step.max_s, left_s)) if left_s >= _LEAST_SHARE * step.max_s else None


def _below(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str
) -> NoAnswer | Probe | None:
    """The same, with all the time in the world."""
    lowest = settings.lowest_qps
    run_s = settings.run_s(lowest)
    at_lowest = [record for record in history if record.rate <= 1.001 * lowest and record.purpose != _DIAGNOSIS]
    good_one = any(not _bad(record, settings) and record.seconds > 0 for record in history)
    flat = flatly_over(history, settings)
    over = None if good_one or len(history) == 1 else plainly_over(history[-2]) and plainly_over(history[-1])
    twice = _fails_twice(at_lowest, history, settings)
    hopeless = twice or fit.holds_probability(lowest) < _HOPELESS or outlook.even < 0.9 * lowest
    if not hopeless and not flat and not (over and not at_lowest):
        return None
    if not twice and any(not _bad(record, settings) for record in at_lowest):
        return None
    if len(at_lowest) < (1 if over or flat else 2):
        return Probe(lowest, run_s, run_s, must_finish=bool(flat), purpose="the lowest rate")
    last = at_lowest[-1]
    said = f"{last.rate:.4g} QPS, the lowest rate that may be an answer, is over the {over or binding} limit"
    if settings.padded or (settings.low is not None and settings.low > settings.floor_qps):
        return NoAnswer("impossible", f"no rate from {lowest:.4g} QPS up passes: {said}", _LOWER, binding)
    if flat:
        return NoAnswer("impossible", f"{said}; {flat}", "serve it faster, or check the limit", binding)
    return _look_below(history, settings, said, binding)


def _look_below(history: History, settings: SearchSettings, said: str, binding: str) -> NoAnswer | Probe:
    """Tell a system that is too slow for enough queries from one that breaks its limit at any rate."""
    below = [record for record in history if record.purpose == _DIAGNOSIS]
    if not below:
        rate = settings.lowest_qps / 4.0
        run_s = settings.run_s(rate)
        return Probe(rate, run_s, 0.4 * settings.duration_s, must_finish=True, purpose=_DIAGNOSIS)
    each = gather(below[-1], binding, 0.0)
    over, queries = each.over + each.ramp_over, each.queries + each.ramp_queries
    if over >= 3 and over > 5.0 * (1.0 - settings.percentile) * queries:  # noqa: PLR2004 - fewer are chance
        text = f"{said}, and at {below[-1].rate:.4g} QPS still {over:.0f} of {queries:.0f} queries are"
        return NoAnswer("impossible", text, "serve it faster, or check the limit", binding)
    needed_s = settings.needed_queries / below[-1].rate
    return NoAnswer(
        "too few queries",
        f"{said}; a lower rate gives fewer than the {settings.needed_queries} queries that a run of "
        f"{settings.duration_s:.0f} s needs to be VALID",
        f"give full runs more time: --duration-s {needed_s:.0f} or more",
        binding,
    )


def no_room(settings: SearchSettings, rate: float) -> NoAnswer | None:
    """When the budget does not hold one full run (at `rate`, or at the highest): no answer could be confirmed."""
    highest = settings.high or rate
    run_s = min(settings.run_s(highest), confirm_s(settings, highest))
    budget_s, needed_s = settings.time_budget_s, run_s + settings.overhead_s
    if budget_s is None or budget_s >= needed_s:
        return None
    text = f"a full run of {run_s:.0f} s, which confirms the answer, does not fit into {budget_s:.0f} s"
    return NoAnswer(
        "budget",
        text,
        f"give it {needed_s:.0f} s or more (time_budget_s, or the job's --time); a search takes about twice that",
    )


def out_of_time(
    history: History, settings: SearchSettings, fit: Fit, outlook: Outlook, binding: str
) -> Answer | NoAnswer | Probe | None:
    """When the budget holds no other full run: the best certified rate so far; before that, a rate that is safe."""
    if settings.time_budget_s is None:
        return None
    left = settings.time_budget_s - sum(record.cost_s for record in history)
    certified = [index for index, record in enumerate(history) if certifies(record, settings)]
    extra = extra_s(history, settings)
    run_s = confirm_s(settings, outlook.rate)
    if left >= 2.1 * run_s + 3.0 * extra:
        return None
    if left >= run_s + settings.overhead_s:
        if left >= 1.1 * run_s + 2.0 * extra:
            return None  # a short probe still fits before the last full run
        rate = outlook.confirm * math.exp(-min(outlook.doubt, 0.5) if outlook.doubt > settings.tolerance else 0.0)
        fits = settings.lowest_within(left - settings.overhead_s)  # below it a run takes longer than what is left
        bounded = min(max(rate, settings.lowest_qps, fits), settings.high or math.inf)
        if settings.run_s(bounded) > left - settings.overhead_s:
            bounded = confirm_rate(settings, outlook.rate)  # holds a data set less, and fits
        if not certified or bounded > max(history[index].rate for index in certified):
            last_s = settings.run_s(bounded)
            return Probe(bounded, last_s, last_s, must_finish=True, purpose="the last to fit")
    return (
        _best(history, certified, fit, outlook, binding) if certified else _spent(history, settings, outlook, binding)
    )


def _spent(history: History, settings: SearchSettings, outlook: Outlook, binding: str) -> NoAnswer:
    """No time, and nothing certified."""
    spent = sum(record.cost_s for record in history)
    return NoAnswer(
        "budget",
        f"{spent:.0f} s of {settings.time_budget_s:.0f} s are spent and no full run of "
        f"{confirm_s(settings, outlook.rate):.0f} s "
        f"fits any more; best estimate {outlook.rate:.4g} QPS by {binding}, not confirmed",
        "resume it with more time",
        binding,
    )


def _best(history: History, certified: list[int], fit: Fit, outlook: Outlook, binding: str) -> Answer:
    """The best certified rate, named as not located."""
    index = max(certified, key=lambda each: history[each].rate)
    rate = history[index].rate
    chance, within = fit.pass_probability(rate), fit.room_above(rate)
    reason = (
        f"the time budget ended first: {rate:.5g} QPS is the best rate certified so far, by a full-length VALID run; "
        f"estimated limit {outlook.rate:.4g} QPS by {binding}; up to {100 * within:.1f} % more may hold"
    )
    return Answer(rate, index, located=False, binding=binding, pass_probability=chance, reason=reason, within=within)


def _bad(record: ProbeRecord, settings: SearchSettings) -> bool:
    if record.final is not None:
        return not certifies(record, settings)
    return record.ended in {"cannot pass", "unlikely to pass"}

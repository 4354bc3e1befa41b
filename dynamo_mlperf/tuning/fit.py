"""All constraints of a search at once: where the rate would be that passes, how sure that is, which one binds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.tuning.drift import FAILED, changed_at
from dynamo_mlperf.tuning.evidence import gather, onset_s, served_qps
from dynamo_mlperf.tuning.model import Posterior, Prior, quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings

EVEN_ODDS_RISK = 0.08
"""Probability, at most, with which the rate to confirm may be one that a repeat fails with more than even odds."""
_CLAIMED = 0.9
"""Probability with which an answer says how far above it the highest rate may be."""
_UNFORESEEN = 0.1
"""Share of repeats at an answer that fail for what no single run tells (a burst, a stall, a slow start that this one
had the luck to miss): on 362 simulated systems the fit alone promised 0.95 in the mean, and 0.85 passed."""
_FADE_SHARE, _COARSE_MARGIN = 0.7, 0.3
_MOST_FADE, _FADE_BY_CHANCE = 0.04, 2.2
_EXPLORE = 0.43
_BLIND_CENTRE_QPS, _BLIND_SIGMA = 30.0, 2.0
_PREDICTION_SIGMA, _PREDICTION_DOUBT = 0.12, 0.15


@dataclass(frozen=True)
class Outlook:
    """What is believed of one constraint; rates in target_qps.

    Attributes:
        rate: Best estimate of the rate that passes with the wanted probability.
        confirm: Rate to confirm: the estimate, but no higher than the risk of even odds allows.
        doubt: Half the width of the middle 70 % of that estimate, in log rate.
        even: Best estimate of the rate that passes with even odds.
        queries: Queries of a full run near it.
    """

    rate: float
    confirm: float
    doubt: float
    even: float
    queries: float

    def closeness(self, tolerance: float) -> float:
        """How close, in log rate, a rate has to be to the estimate to count as located.

        Where few queries may be over, passing fades out over a range of rates that is wider than any tolerance, and
        no two repeats would agree on a point within it: then it is a share of that range.
        """
        return max(tolerance, min(_FADE_SHARE * math.log(self.even / self.rate), _MOST_FADE))

    def claim(self, tolerance: float) -> float:
        """The same for what is said to be located: no wider than the chance of so many queries makes it.

        Where many queries count and passing seems to fade out slowly all the same, the fitted line is nearly flat:
        that is little knowledge, not a wide range.
        """
        return min(self.closeness(tolerance), max(tolerance, _FADE_BY_CHANCE / math.sqrt(max(self.queries, 1.0))))


def prior_of(settings: SearchSettings) -> Prior:
    """The belief before any probe: a prediction if there is one, else the range, else a guess over decades."""
    low, high = math.log(settings.lowest_qps), math.log(settings.highest_qps)
    if settings.start is not None:
        centre, sigma, wide = math.log(settings.start), _PREDICTION_SIGMA, _PREDICTION_DOUBT
    elif settings.high is not None and settings.low is not None:
        centre, sigma, wide = (low + high) / 2.0, max((high - low) / 2.0, 0.05), 0.5
    else:
        centre = math.log(_BLIND_CENTRE_QPS if settings.low is None else settings.low * 4.0)
        centre, sigma, wide = min(max(centre, low), high), _BLIND_SIGMA, 0.1
    return Prior(low - 1.5, high + 0.5, min(max(centre, low), high), sigma, wide)


class Fit:
    """The posterior of each constraint that a search has met.

    Args:
        history: The probes so far.
        settings: The search.
        now_s: Engine seconds of the search now.

    Attributes:
        late_s: Seconds of a run before which a rate that failed looked good: a shorter probe shows nothing good.
    """

    def __init__(self, history: History, settings: SearchSettings, now_s: float) -> None:
        self.settings = settings
        self.names = tuple(sorted({name for record in history for name in record.constraints})) or ("latency",)
        self.now_s = now_s
        prior = prior_of(settings)
        changed = changed_at(history)
        self.late_s = max((onset_s(record) for record in history), default=0.0)
        served = [found for record in history[changed:] if (found := served_qps(record)) is not None]
        self.posteriors = {
            name: Posterior(
                prior,
                settings,
                [
                    gather(record, name, now_s, changed=index < changed)
                    for index, record in enumerate(history)
                    if record.seconds > 0 and not self._too_short(record)
                ],
                served,
            )
            for name in self.names
        }
        self._weights = {name: posterior.weights() for name, posterior in self.posteriors.items()}

    def _too_short(self, record: ProbeRecord) -> bool:
        """Whether a probe that ended well ended before this system's failures begin."""
        return record.final is None and record.ended not in FAILED and record.seconds < self.late_s

    def _outlook(self, name: str, weights: NDArray[np.float64]) -> Outlook:
        posterior, settings = self.posteriors[name], self.settings
        wanted = posterior.pass_rates(settings.pass_probability, weights)
        even = posterior.pass_rates(0.5, weights)
        rate = quantile(wanted, weights, _EXPLORE)
        spread = (quantile(wanted, weights, 0.85) - quantile(wanted, weights, 0.15)) / 2.0
        confirm = min(rate, quantile(even, weights, EVEN_ODDS_RISK)) - _margin(settings)
        return Outlook(
            math.exp(rate),
            math.exp(confirm),
            spread,
            math.exp(quantile(even, weights, 0.5)),
            settings.run_queries(math.exp(rate)),
        )

    def outlook(self) -> tuple[Outlook, str]:
        """The outlook of the constraint that binds, with its name; the others bound what may be confirmed."""
        each = {name: self._outlook(name, self._weights[name]) for name in self.names}
        return _lowest(each)

    def with_running(self, record: ProbeRecord) -> tuple[Outlook, str, float]:
        """The same with a probe that is still running, and the probability that it passes if it goes on."""
        each, chance = {}, 1.0
        for name, posterior in self.posteriors.items():
            evidence = gather(record, name, self.now_s)
            weights = posterior.weights(np.log(posterior.likelihood(evidence) + 1e-300))
            each[name] = self._outlook(name, weights)
            chance = min(chance, posterior.finish_probability(evidence, record.whole_queries, weights))
        return (*_lowest(each), chance)

    def pass_probability(self, rate: float) -> float:
        """Probability that a full run at this rate passes every constraint, as people are told it."""
        fitted = (post.pass_probability(rate, self._weights[name]) for name, post in self.posteriors.items())
        return (1.0 - _UNFORESEEN) * min(fitted)

    def room_above(self, rate: float, failed: float | None = None) -> float:
        """How far above a rate, as a share of it, the highest one that passes may be, with probability 0.9.

        To a tenth of a percent, upwards, so that it claims no more than is known; no further than `failed`, a rate
        above it that was seen to fail.
        """
        wanted = self.settings.pass_probability
        tops = (
            quantile(posterior.pass_rates(wanted, self._weights[name]), self._weights[name], _CLAIMED)
            for name, posterior in self.posteriors.items()
        )
        top = min(math.exp(min(tops)), failed or math.inf)
        return math.ceil(1000.0 * max(top / rate - 1.0, 0.0)) / 1000.0

    def holds_probability(self, rate: float) -> float:
        """Probability that a repeat at this rate passes with even odds or better."""
        shares = []
        for name, posterior in self.posteriors.items():
            weights = self._weights[name]
            even = posterior.pass_rates(0.5, weights)
            shares.append(float(weights[even >= math.log(rate)].sum()))
        return min(shares)


def _margin(settings: SearchSettings) -> float:
    """How far below the estimate a rate is confirmed: one tolerance, of a coarser one than usual only a part."""
    return settings.placing + _COARSE_MARGIN * (settings.tolerance - settings.placing)


def _lowest(each: dict[str, Outlook]) -> tuple[Outlook, str]:
    """The outlook with the lowest estimate, its rate to confirm bounded by all."""
    name = min(each, key=lambda key: (each[key].rate, key))
    best = each[name]
    confirm = min(outlook.confirm for outlook in each.values())
    return replace(best, confirm=confirm), name


def within_limits(record: ProbeRecord, settings: SearchSettings) -> bool:
    """Whether a complete probe keeps every limit by the early-stopping rule."""
    final = record.final
    return final is not None and all(over <= settings.allowed(final.n) for over in final.over.values())


def otherwise_invalid(record: ProbeRecord, settings: SearchSettings) -> bool:
    """Whether a probe kept every limit and is not valid all the same: another rule was broken."""
    if record.final is None:
        return record.ended == "not valid"
    return not record.final.valid and within_limits(record, settings)


def certifies(record: ProbeRecord, settings: SearchSettings) -> bool:
    """Whether a probe is a full-length VALID run: by its own verdict, by every limit, long enough, queries enough."""
    final = record.final
    return (
        final is not None
        and final.valid
        and final.n >= settings.needed_queries
        and final.seconds >= 0.98 * settings.duration_s
        and within_limits(record, settings)
    )

"""The fitted model: share of queries over a limit against the rate, and what a full run would do.

Near the knee the logarithm of the share over the limit is taken as linear in the logarithm of the rate:
`log share = log(1 - percentile) + slope x (log rate - knee)`. Unknown are the knee, the slope and the scatter of the
system's speed from run to run; a grid over all three holds their probabilities, so that every statement (which rate
passes with probability 0.9, how sure that is) comes with what is not known yet. Far from the knee the line is wrong,
so the further a probe's share is from what is allowed, the less it weighs. Older probes are shifted by an unknown
drift, and any probe may be an outlier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynamo_mlperf.tuning.evidence import Evidence
    from dynamo_mlperf.tuning.probes import SearchSettings

    Array = NDArray[np.float64]

_SLOPES = np.exp(np.linspace(math.log(0.8), math.log(600.0), 11))
_SLOPE_WEIGHTS = np.exp(-0.5 * ((np.log(_SLOPES) - math.log(28.0)) / 0.9) ** 2)
_CHANCE = np.array([0.6, 1.3, 2.0, 3.0, 1.5])
_RUN_SIGMA = np.array([0.003, 0.005, 0.005, 0.006, 0.015])
_SCATTER_WEIGHTS = np.array([0.2, 0.3, 0.25, 0.1, 0.15])
"""Kinds of scatter. What n queries show is off in speed by a deviation of chance / sqrt(n), because arrivals and
service times of that stretch are a draw that queues do not average out, and by the run's own speed."""
_NODES = np.array([-2.02, -0.96, 0.0, 0.96, 2.02])
_NODE_WEIGHTS = np.array([0.0113, 0.2221, 0.5332, 0.2221, 0.0113])
"""Five points of Gauss-Hermite quadrature for a standard normal deviation."""
_OUTLIERS = np.array([-0.1, -0.04, 0.04])
_OUTLIER_SHARE = 0.03
_DRIFT_PER_S = 0.015 / 3600.0
_LINE_ERROR, _SHORT_ERROR = 0.25, 0.35
_USUAL_DISPERSION, _OWN_COUNTS = 3.0, 20.0
_OVERLOAD_SIGMA, _OVERLOAD_DOUBT = 0.012, 0.01
_SHARE_LOGS = np.linspace(-6.0, 2.0, 49)
_MOST_LOG = 50.0


def normal(z: Array) -> Array:
    """Distribution function of the standard normal, within 0.0003."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.7978846 * (z + 0.044715 * z**3))))


def within_allowed(allowed: float, mean: Array, spread: float) -> Array:
    """Probability that a count of this mean and dispersion is at most `allowed` (square-root approximation)."""
    if allowed < 0:
        return np.zeros_like(mean)
    room = 2.0 * (math.sqrt((allowed + 0.75) / spread) - np.sqrt(mean / spread))
    return normal(np.clip(room, -6.0, 6.0))


@dataclass(frozen=True)
class Prior:
    """What is believed of the knee before any probe: a mixture of a prediction and a wide range, in log rate."""

    low: float
    high: float
    centre: float
    sigma: float
    wide: float

    def log_weights(self, knees: Array) -> Array:
        """Log of the prior weights, not normalised."""
        near = np.exp(-0.5 * ((knees - self.centre) / self.sigma) ** 2) / self.sigma
        return np.asarray(np.log((1.0 - self.wide) * near + self.wide / (self.high - self.low) + 1e-300))


class Posterior:
    """Probabilities of knee, slope and scatter for one constraint, shape (knees, slopes, scatters).

    Args:
        prior: Belief before any probe.
        settings: The search: percentile, rule and length of a full run.
        evidence: What the probes said.
        served: Rates that the system completed when it was overloaded, with the standard error as a share.
        knees: Grid of log rates; None = found by a coarse pass.
    """

    def __init__(
        self,
        prior: Prior,
        settings: SearchSettings,
        evidence: Sequence[Evidence],
        served: Sequence[tuple[float, float]] = (),
        knees: Array | None = None,
    ) -> None:
        self._share = 1.0 - settings.percentile
        self._settings = settings
        if knees is None:
            coarse = Posterior(prior, settings, evidence, served, np.linspace(prior.low, prior.high, 320))
            knees = coarse.finer(prior)
        self.knees = knees
        logs = prior.log_weights(knees)[:, None, None] + np.log(_SLOPE_WEIGHTS[:, None] * _SCATTER_WEIGHTS[None, :])
        for each_served in served:
            logs = logs + self._overload(each_served)[:, None, None]
        self.spread = pooled_dispersion(evidence, self._share)
        for each in evidence:
            logs = logs + np.log(self.likelihood(each) + 1e-300)
        self.logs = logs

    def finer(self, prior: Prior) -> Array:
        """A finer grid over the knees that are still likely."""
        mass = self.weights().sum(axis=(1, 2)).cumsum()
        low = self.knees[int(np.searchsorted(mass, 3e-4))]
        high = self.knees[min(int(np.searchsorted(mass, 1.0 - 3e-4)), len(self.knees) - 1)]
        step = self.knees[1] - self.knees[0]
        return np.linspace(max(prior.low, low - step - 0.03), min(prior.high, high + step + 0.03), 90)

    def _overload(self, served: tuple[float, float]) -> Array:
        """Log likelihood of the knees given what an overloaded system completed: the knee is hardly above it."""
        rate, error = served
        away = self.knees - math.log(rate)
        above = np.maximum(away - 0.01, 0.0) / math.hypot(_OVERLOAD_SIGMA, error)
        below = np.maximum(-away, 0.0)
        near = 0.7 * np.exp(-below / 0.08) / 0.08 + 0.3 * np.exp(-below / 0.7) / 0.7
        return np.asarray(np.log(np.exp(-0.5 * above**2) * near + _OVERLOAD_DOUBT))

    def _shares(self, rate: float, shift: Array) -> Array:
        """Share over the limit at `rate` for a system faster or slower by `shift` (in log rate)."""
        away = math.log(rate) - self.knees[:, None, None, None] + shift
        return np.asarray(np.minimum(self._share * np.exp(np.minimum(_SLOPES[:, None, None] * away, 7.0)), 1.0))

    def _by_shift(self, each: Evidence, shift: Array) -> Array:
        """Likelihood of a probe's counts for each shift of the speed; last axis: shifts."""
        away = math.log(each.fraction / self._share)
        error = (_LINE_ERROR * away) ** 2 + (_SHORT_ERROR * (1.0 - each.share_run)) ** 2
        own = (each.dispersion * each.over + self.spread * _OWN_COUNTS) / (each.over + _OWN_COUNTS)
        spread = own + each.over * error
        mean = each.queries * self._shares(each.rate, shift) + 1e-12
        best = each.over * math.log(each.over) - each.over if each.over else 0.0
        return np.asarray(np.exp((each.over * np.log(mean) - mean - best) / spread))

    def _scatter(self, queries: float, age_s: float = 0.0, moved: float = 0.0) -> Array:
        """Standard deviation of the speed that `queries` queries show against that of now, shape (scatters, 1)."""
        chance = _CHANCE / math.sqrt(max(queries, 1.0))
        return np.asarray(np.sqrt(chance**2 + _RUN_SIGMA**2 + (_DRIFT_PER_S * age_s) ** 2 + moved**2)[:, None])

    def likelihood(self, each: Evidence) -> Array:
        """Likelihood of a probe's counts, the scatter of its speed and outliers taken in."""
        usual = self._by_shift(each, self._scatter(each.queries, each.age_s, each.moved) * _NODES) @ _NODE_WEIGHTS
        odd = self._by_shift(each, np.broadcast_to(_OUTLIERS, (len(_CHANCE), len(_OUTLIERS)))).mean(axis=-1)
        return np.asarray((1.0 - _OUTLIER_SHARE) * usual + _OUTLIER_SHARE * odd)

    def weights(self, extra: Array | float = 0.0) -> Array:
        """Normalised probabilities; `extra` is the log likelihood of a probe that is still running."""
        logs = self.logs + extra
        weights = np.exp(logs - logs.max())
        return np.asarray(weights / weights.sum())

    def pass_rates(self, probability: float, weights: Array) -> Array:
        """Log of the rate at which a full run passes with this probability, for every point of the grid."""
        middle = float((weights.sum(axis=(1, 2)) * self.knees).sum())
        queries = max(self._settings.run_queries(math.exp(middle)), 1.0)
        allowed = self._settings.allowed(round(queries))
        scale = _SLOPES[:, None] * self._scatter(queries)[:, 0]
        logs = _SHARE_LOGS[:, None, None, None] + scale[..., None] * _NODES  # of few queries: in the hundreds
        mean = queries * self._share * np.exp(np.minimum(logs, _MOST_LOG))
        passing = within_allowed(allowed, mean, self.spread) @ _NODE_WEIGHTS
        offsets = np.empty(passing.shape[1:])
        for index in np.ndindex(offsets.shape):
            offsets[index] = np.interp(-probability, -passing[(slice(None), *index)], _SHARE_LOGS)
        return np.asarray(self.knees[:, None, None] + (offsets / _SLOPES[:, None])[None])

    def pass_probability(self, rate: float, weights: Array) -> float:
        """Probability that a full run at `rate` passes, over all that is not known."""
        queries = round(self._settings.run_queries(rate))
        mean = queries * self._shares(rate, self._scatter(queries) * _NODES)
        passing = within_allowed(self._settings.allowed(queries), mean, self.spread) @ _NODE_WEIGHTS
        return float((weights * passing).sum())

    def finish_probability(self, each: Evidence, total: float, weights: Array) -> float:
        """Probability that the run which `each` describes so far passes when it goes on to `total` queries.

        Args:
            each: The run so far.
            total: Queries of the whole run.
            weights: Probabilities of the grid, the run so far taken in.
        """
        rest = max(total - each.queries - each.ramp_queries, 0.0)
        mean = rest * self._shares(each.rate, self._scatter(rest) * _NODES)
        room = self._settings.allowed(round(total)) - each.over - each.ramp_over
        return float((weights * (within_allowed(room, mean, self.spread) @ _NODE_WEIGHTS)).sum())


def pooled_dispersion(evidence: Sequence[Evidence], share: float) -> float:
    """Dispersion of the counts near the knee: the mean over the probes, each weighing what it counted there."""
    total, weight = _USUAL_DISPERSION * _OWN_COUNTS, _OWN_COUNTS
    for each in evidence:
        near = math.exp(-0.5 * (math.log(each.fraction / share) / 1.5) ** 2) * min(each.over, 100.0)
        total, weight = total + near * each.dispersion, weight + near
    return total / weight


def quantile(values: Array, weights: Array, share: float) -> float:
    """Weighted quantile of the values of a grid."""
    flat, mass = values.ravel(), weights.ravel()
    order = np.argsort(flat)
    return float(flat[order[min(int(np.searchsorted(mass[order].cumsum(), share)), len(order) - 1)]])

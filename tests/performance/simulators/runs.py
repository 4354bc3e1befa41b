"""Runs of simulated systems, many at once: what a probe's stream would say, in windows of five seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.performance.simulators.systems import System

WINDOW_S = 5.0
_STEP_S = 0.25
UNPADDED = 2**62
"""Queries that no run reaches."""
_LUCK = 4.0
"""Standard deviations by which a number of random arrivals may be late."""
_erf = np.vectorize(math.erf, otypes=[float])
_TABLE_Z = np.linspace(-8.0, 8.0, 3201)
_TABLE_TAIL = 0.5 * (1.0 - _erf(_TABLE_Z / math.sqrt(2.0)))


@dataclass(frozen=True)
class Runs:
    """Cumulative counts of `repeats` runs at the end of each window.

    Attributes:
        t_s: Ends of the windows in seconds, shape (windows,).
        issued: Queries issued, shape (repeats, windows).
        completed: Queries completed, shape (repeats, windows).
        over: Constraint -> completed queries over its limit, shape (repeats, windows). The last window holds all queries.
        whole: Queries of each run where it is padded to whole data sets, shape (repeats,); `UNPADDED` where it is not.
    """

    t_s: NDArray[np.float64]
    issued: NDArray[np.int64]
    completed: NDArray[np.int64]
    over: dict[str, NDArray[np.int64]]
    whole: NDArray[np.int64]


def simulate(
    system: System,
    rate: float | NDArray[np.float64],
    seconds: float,
    *,
    seed: int,
    repeats: int = 1,
    start_s: float = 0.0,
    until_s: float | None = None,
) -> Runs:
    """Runs of `seconds` at `rate` (or at one rate each), begun `start_s` after the system was first used (drift).

    Those of a padded system go on to the end of a data set, as LoadGen's do: it draws arrivals at random until `seconds`
    are reached, and pads what came of it. With `until_s` only the windows up to there are worked out; they are those of the whole run.
    """
    rates = np.broadcast_to(np.asarray(rate, float), (repeats,))
    key = [seed, round(float(rates[0]) * 1e6), round(start_s)]
    rng = np.random.default_rng(key)
    whole = np.full(repeats, UNPADDED)
    if system.data_set > 1:
        sets = np.ceil(np.random.default_rng([*key, 1]).poisson(rates * seconds) / system.data_set)
        whole = np.maximum(sets, 1).astype(int) * system.data_set
        seconds = max(seconds, float(((whole + _LUCK * np.sqrt(whole)) / rates).max()))
    steps = math.ceil(seconds / _STEP_S)
    speed = _speed(system, rng, steps, repeats, start_s)
    run = _exact if system.exact else _stepped
    complete = until_s is None or until_s >= seconds
    runs = run(system, _Course(rates, whole, seconds, seconds if until_s is None else until_s), rng, speed)
    if complete:
        return runs
    kept = int((until_s or 0.0) / WINDOW_S)
    over = {name: counts[:, :kept] for name, counts in runs.over.items()}
    return Runs(runs.t_s[:kept], runs.issued[:, :kept], runs.completed[:, :kept], over, whole)


@dataclass(frozen=True)
class _Course:
    """What is sent: at which rates, how many queries at most, for how long, and how far that is worked out."""

    rates: NDArray[np.float64]
    whole: NDArray[np.int64]
    seconds: float
    until_s: float


def _speed(system: System, rng: np.random.Generator, steps: int, repeats: int, start_s: float) -> NDArray[np.float64]:
    """Speed of the system in each time step, shape (steps, repeats)."""
    t_s = np.arange(steps) * _STEP_S
    course = 1.0 - system.drift_per_h * (t_s + start_s) / 3600.0
    if system.warm_s:
        course = course * (1.0 - system.warm_loss * np.exp(-t_s / system.warm_s))
    speed = course[:, None] * np.exp(rng.normal(0.0, system.run_sigma, repeats))[None, :]
    if system.stalls_per_h:
        begins = rng.random((steps, repeats)) < system.stalls_per_h * _STEP_S / 3600.0
        length = int(5.0 / _STEP_S)
        total = np.cumsum(begins.astype(int), axis=0)
        total[length:] -= total[:-length].copy()
        speed = np.where(total > 0, 0.6 * speed, speed)
    return np.asarray(speed, float)


def _arrival_factor(system: System, rng: np.random.Generator, steps: int, repeats: int) -> NDArray[np.float64]:
    """Slowly varying factor on the arrival rate, mean about 1, correlation time 20 s."""
    factor = np.ones((steps, repeats))
    if not system.burst:
        return factor
    keep = math.exp(-_STEP_S / 20.0)
    state = rng.normal(0.0, system.burst, repeats)
    for step in range(steps):
        state = keep * state + math.sqrt(1.0 - keep * keep) * rng.normal(0.0, system.burst, repeats)
        factor[step] = np.exp(state)
    return factor


def _tail(limit: NDArray[np.float64], typical: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Probability that a lognormal time of this median is over the limit; 1 where the limit is already spent."""
    z = np.log(np.maximum(limit, 1e-9) / typical) / sigma
    return np.asarray(np.interp(z, _TABLE_Z, _TABLE_TAIL))


def _stepped(system: System, course: _Course, rng: np.random.Generator, speed: NDArray[np.float64]) -> Runs:
    """Time steps: backlog and occupancy are the state; what a step's arrivals meet decides who is over."""
    steps, repeats = speed.shape
    windows = math.ceil(course.seconds / WINDOW_S)
    arrivals = rng.poisson(course.rates * _STEP_S * _arrival_factor(system, rng, steps, repeats))
    arrivals = np.diff(np.minimum(arrivals.cumsum(axis=0), course.whole), axis=0, prepend=0)
    noise = rng.normal(0.0, 1.0, (steps, repeats))
    cv = math.sqrt(math.expm1(system.prefill_spread**2))
    backlog, busy = np.zeros(repeats), np.zeros(repeats)
    issued, completed = np.zeros((repeats, windows), int), np.zeros((repeats, windows), int)
    over = {name: np.zeros((repeats, windows), int) for name in system.limits}
    rows = np.arange(repeats)
    for step in range(min(steps, math.ceil(course.until_s / _STEP_S))):
        pace, come = speed[step], arrivals[step]
        wait = backlog / (system.servers * pace)
        tpot = system.tpot_s * (1.0 + system.tpot_slope * np.minimum(busy / system.slots, 1.0)) / pace
        leave = np.minimum(busy, system.slots) / (system.tokens * tpot)
        queued = np.maximum(busy - system.slots, 0.0) / np.maximum(leave, 1e-9)
        prefill = system.prefill_s / pace
        met = {
            "ttft": (wait, prefill, math.hypot(system.tail, system.prefill_spread)),
            "tpot": (np.zeros(repeats), tpot, system.tail),
            "latency": (wait + queued, prefill + system.tokens * tpot, system.tail),
        }
        latency = wait + queued + prefill + system.tokens * tpot
        window = np.minimum(((step * _STEP_S + latency) / WINDOW_S).astype(int), windows - 1)
        now = int(step * _STEP_S / WINDOW_S)
        issued[:, now] += come
        completed[rows, window] += come
        for name, limit in system.limits.items():
            gone, typical, sigma = met[name]
            over[name][rows, window] += rng.binomial(come, _tail(limit - gone, typical, sigma))
        work = system.prefill_s * np.maximum(come + cv * np.sqrt(come) * noise[step], 0.0)
        done_work = np.minimum(backlog + work, system.servers * _STEP_S * pace)
        backlog = backlog + work - done_work
        busy = np.maximum(busy + done_work / system.prefill_s - leave * _STEP_S, 0.0)
    return _cumulative(course, issued, completed, over)


def _exact(system: System, course: _Course, rng: np.random.Generator, speed: NDArray[np.float64]) -> Runs:
    """Request by request: first come, first served by the prefill servers, then by the decode slots."""
    rates, (steps, repeats) = course.rates, speed.shape
    queries = np.minimum(course.whole, np.round(rates * course.seconds))
    count = max(1, int(queries.max()))
    gaps = rng.exponential(1.0, (count, repeats)) / rates
    if system.burst:
        factor = _arrival_factor(system, rng, steps, repeats)
        at = np.arange(count)[:, None] / rates / _STEP_S
        gaps /= factor[np.minimum(at.astype(int), steps - 1), np.arange(repeats)]
    arrive = np.cumsum(gaps, axis=0)
    arrive[np.arange(count)[:, None] >= queries] = np.inf  # slower ones have fewer queries
    spread = system.prefill_spread
    prefill = system.prefill_s * np.exp(rng.normal(-0.5 * spread**2, spread, (count, repeats)))
    factors = np.exp(rng.normal(0.0, system.tail, (count, repeats)))
    pool, slots = np.zeros((repeats, system.servers)), np.zeros((repeats, system.slots))
    rows = np.arange(repeats)
    ttft, tpot, latency = (np.full((count, repeats), np.inf) for _ in range(3))
    for query in range(count):
        now = arrive[query]
        if course.until_s < course.seconds and now.min() > course.until_s:
            break
        now = np.minimum(now, 1e9)
        pace = speed[np.minimum((now / _STEP_S).astype(int), steps - 1), rows]
        server = pool.argmin(axis=1)
        first = np.maximum(pool[rows, server], now) + prefill[query] / pace
        pool[rows, server] = first
        slot = slots.argmin(axis=1)
        begin = np.maximum(slots[rows, slot], first)
        load = (slots > begin[:, None]).mean(axis=1)
        each = system.tpot_s * (1.0 + system.tpot_slope * load) * factors[query] / pace
        end = begin + system.tokens * each
        slots[rows, slot] = end
        ttft[query], tpot[query], latency[query] = first - now, each, end - now
    return _in_windows(system, course, arrive, {"ttft": ttft, "tpot": tpot, "latency": latency})


def _in_windows(
    system: System, course: _Course, arrive: NDArray[np.float64], times: dict[str, NDArray[np.float64]]
) -> Runs:
    """Counts per window from the times of each request."""
    repeats = arrive.shape[1]
    windows = math.ceil(course.seconds / WINDOW_S)
    last = windows - 1
    rows = np.broadcast_to(np.arange(repeats), arrive.shape)
    began = np.minimum(arrive / WINDOW_S, last).astype(int)
    real = np.isfinite(arrive)
    ended = np.minimum((arrive + times["latency"]) / WINDOW_S, last).astype(int)

    def count(window: NDArray[np.int64], chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        flat = rows[chosen] * windows + window[chosen]
        return np.bincount(flat, minlength=repeats * windows).reshape(repeats, windows)

    over = {name: count(ended, real & (times[name] > limit)) for name, limit in system.limits.items()}
    return _cumulative(course, count(began, real), count(ended, real), over)


def _cumulative(
    course: _Course, issued: NDArray[np.int64], completed: NDArray[np.int64], over: dict[str, NDArray[np.int64]]
) -> Runs:
    t_s = np.arange(1, issued.shape[1] + 1, dtype=float) * WINDOW_S
    summed = {name: each.cumsum(axis=1) for name, each in over.items()}
    return Runs(t_s, issued.cumsum(axis=1), completed.cumsum(axis=1), summed, course.whole)

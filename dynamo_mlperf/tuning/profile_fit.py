"""A profile from a user's own measurements: prefill time over prompt length, step time over batch and context.

What it needs is in each run's record of queries (`queries.csv`: times of issue, first token and end, tokens of prompt
and answer) and its plan (how many workers of each role). Runs at a low rate show a prompt's own prefill time, since
nothing waits; runs at higher rates show how a step slows down as more sequences decode together. Both are needed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.tuning.profiles import Profile, checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dynamo_mlperf.load.queries import Queries

    Array = NDArray[np.float64]

MIN_ALONE = 30
"""Fewest queries whose prefill shared nothing with another's."""
MIN_STEPS = 100
"""Fewest queries that a step time is taken from."""
_LEAST_OUTPUTS = 8
"""Answers that are shorter say little about the time of a step."""
_LEAST_BATCH_RATIO = 2.0
_LEAST_PROMPT_RATIO = 1.5
_TRIMMED = 4.0
_LONGEST, _MOST_BATCH = 66_000.0, 1_024.0
_NEEDS = "measure at two rates or more: one so low that requests hardly overlap, one near the limit"


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """One test's queries, and how many workers shared them.

    Attributes:
        name: For people.
        queries: The record of each query.
        prefill_workers: Workers that computed prompts.
        decode_workers: Workers that generated; the same ones in an aggregated deployment.
    """

    name: str
    queries: Queries
    prefill_workers: int
    decode_workers: int


@dataclass(frozen=True)
class Law:
    """A fitted law: coefficients of its terms, each 0 or more, and how well it holds.

    Attributes:
        coefficients: In ms, one per term.
        error: Median of the absolute relative error.
        held_out: The same of queries that a law was not fitted to: every second one told by the law of the others.
        points: Queries that it was fitted to.
        span: Least and greatest of what the law is over, as seen.
    """

    coefficients: tuple[float, ...]
    error: float
    held_out: float
    points: int
    span: tuple[float, float]


def measured_profile(name: str, runs: Sequence[MeasuredRun], facts: Mapping[str, Any]) -> Profile:
    """The profile that the runs show; beyond what they show it is the law's own extrapolation, and says so.

    Raises:
        ConfigError: Too few usable queries, or all of one kind; the error says which and what to measure.
    """
    prefill, steps = fit_prefill(runs), fit_steps(runs)
    prompts = np.unique(np.geomspace(16.0, _LONGEST, 64).round())
    context = np.unique(np.geomspace(64.0, _LONGEST, 16).round())
    loads = np.unique(np.geomspace(64.0, _MOST_BATCH * 8_192.0, 64).round())
    batch = np.clip(loads[:, None] / context[None, :], 1.0, _MOST_BATCH)
    kv = np.maximum(loads[:, None], context[None, :])
    itl = _law_value(step_terms(batch, kv), steps)
    profile = Profile(
        name,
        prompts,
        _law_value(prefill_terms(prompts), prefill),
        loads,
        context,
        itl,
        {
            "origin": "measured",
            **facts,
            "source": ", ".join(run.name for run in runs),
            "seen": {
                "prompt_tokens": [round(each) for each in prefill.span],
                "batch": [round(each, 2) for each in steps.span],
            },
            "fit_error_percent": {"prefill": round(100 * prefill.error, 2), "itl": round(100 * steps.error, 2)},
            "held_out_error_percent": {
                "prefill": round(100 * prefill.held_out, 2),
                "itl": round(100 * steps.held_out, 2),
            },
        },
    )
    return checked(profile, "the measured profile", _NEEDS)


def prefill_terms(tokens: Array) -> Array:
    """Terms of the prefill law: what a request costs anyway, its tokens, its tokens squared (attention)."""
    return np.stack([np.ones_like(tokens), tokens / 1e3, (tokens / 1e3) ** 2], axis=-1)


def step_terms(batch: Array, kv_tokens: Array) -> Array:
    """Terms of the step law: the step itself, the root of the batch (experts that are touched), batch, KV cache."""
    return np.stack([np.ones_like(batch), np.sqrt(batch), batch, kv_tokens / 1e4], axis=-1)


def fit_prefill(runs: Sequence[MeasuredRun]) -> Law:
    """Prefill time over prompt length, from queries whose prefill overlapped no other.

    Raises:
        ConfigError: Too few such queries, no prompt lengths on record, or all prompts of one length.
    """
    tokens, times = [], []
    for run in runs:
        issued, first = run.queries.issued_ms, run.queries.first_token_ms
        usable = run.queries.succeeded & (first <= run.queries.known_until_ms) & (run.queries.prompt_tokens > 0)
        alone = usable & (_others(issued, first) == 0)
        tokens.append(run.queries.prompt_tokens[alone].astype(np.float64))
        times.append((first - issued)[alone])
    length, took = np.concatenate(tokens), np.concatenate(times)
    if len(length) < MIN_ALONE:
        total = sum(len(run.queries) for run in runs)
        raise ConfigError(
            f"{len(length)} of {total} queries had a prefill of their own, {MIN_ALONE} are needed",
            "add a run at a much lower rate (queries whose tokens are not on record do not count)",
        )
    low, high = float(length.min()), float(length.max())
    if high < _LEAST_PROMPT_RATIO * low:
        raise ConfigError(
            f"prompts of {low:.0f} to {high:.0f} tokens say nothing about other lengths",
            "measure with the benchmark's data set, whose prompts differ",
        )
    terms = prefill_terms(length)
    coefficients, error = _fit(terms, took)
    return Law(coefficients, error, _held_out(terms, took), len(length), (low, high))


def fit_steps(runs: Sequence[MeasuredRun]) -> Law:
    """Step time over batch and KV cache, from each query's mean time per token and what decoded meanwhile.

    Raises:
        ConfigError: Too few answers of some length, or all at one load.
    """
    batches, caches, times = [], [], []
    for run in runs:
        queries = run.queries
        first, end = queries.first_token_ms, queries.completed_ms
        usable = queries.succeeded & np.isfinite(first) & (queries.output_tokens >= _LEAST_OUTPUTS) & (end > first)
        context = queries.prompt_tokens + queries.output_tokens / 2.0
        active = _mean_active(first[usable], end[usable], np.ones(int(usable.sum())))
        tokens = _mean_active(first[usable], end[usable], context[usable])
        workers = run.decode_workers
        known = end[usable] <= queries.known_until_ms
        batches.append(np.maximum(active / workers, 1.0)[known])
        caches.append(np.maximum(tokens / workers, context[usable])[known])
        times.append(((end - first)[usable] / (queries.output_tokens[usable] - 1))[known])
    batch, cache, took = np.concatenate(batches), np.concatenate(caches), np.concatenate(times)
    if len(batch) < MIN_STEPS:
        raise ConfigError(
            f"{len(batch)} answers of {_LEAST_OUTPUTS} tokens or more, {MIN_STEPS} are needed", "add longer runs"
        )
    low, high = (float(np.quantile(batch, share)) for share in (0.02, 0.98))
    if high < _LEAST_BATCH_RATIO * low:
        raise ConfigError(f"all steps held {low:.1f} to {high:.1f} sequences: nothing shows what more of them cost",
                          _NEEDS)  # fmt: skip
    terms = step_terms(batch, cache)
    coefficients, error = _fit(terms, took)
    return Law(coefficients, error, _held_out(terms, took), len(batch), (low, high))


def _others(begins: Array, ends: Array) -> NDArray[np.int64]:
    """How many other intervals overlap each one; intervals without an end overlap none."""
    whole = np.isfinite(begins) & np.isfinite(ends)
    starts, stops = np.sort(begins[whole]), np.sort(ends[whole])
    found = np.full(len(begins), 1, dtype=np.int64)
    begun = np.searchsorted(starts, ends[whole], side="left")
    over = np.searchsorted(stops, begins[whole], side="right")
    found[whole] = begun - over - 1
    return found


def _mean_active(begins: Array, ends: Array, weights: Array) -> Array:
    """For each interval, the mean over it of the weights of all intervals that are open."""
    if not len(begins):
        return np.zeros(0)
    marks = np.concatenate([begins, ends])
    changes = np.concatenate([weights, -weights])
    order = np.argsort(marks, kind="stable")
    at, level = marks[order], np.cumsum(changes[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return np.asarray((np.interp(ends, at, area) - np.interp(begins, at, area)) / (ends - begins))


def _fit(terms: Array, values: Array) -> tuple[tuple[float, ...], float]:
    """Coefficients of 0 or more with the least relative squares; what is far off is left out in a second round."""
    keep = np.ones(len(values), dtype=bool)
    found = np.zeros(terms.shape[1])
    for _ in range(3):
        found = _not_negative(terms[keep] / values[keep, None], np.ones(int(keep.sum())))
        errors = np.abs(terms @ found / values - 1.0)
        keep = errors <= max(_TRIMMED * float(np.median(errors)), 1e-6)
    errors = np.abs(terms @ found / values - 1.0)
    return tuple(float(each) for each in found), float(np.median(errors))


def _held_out(terms: Array, values: Array) -> float:
    """Median absolute relative error of either half, told by the law that is fitted to the other; halves by turns."""
    errors = []
    for turn in range(2):
        own = np.arange(len(values)) % 2 == turn
        found, _ = _fit(terms[~own], values[~own])
        errors.append(np.abs(terms[own] @ np.array(found) / values[own] - 1.0))
    return float(np.median(np.concatenate(errors)))


def _not_negative(terms: Array, values: Array) -> Array:
    """Least squares with coefficients of 0 or more; the terms are few, so every set of them is tried."""
    best, left = np.zeros(terms.shape[1]), np.inf
    for count in range(1, terms.shape[1] + 1):
        for chosen in itertools.combinations(range(terms.shape[1]), count):
            columns = list(chosen)
            solved = np.linalg.lstsq(terms[:, columns], values, rcond=None)[0]
            rest = float(np.sum((terms[:, columns] @ solved - values) ** 2))
            if (solved >= 0).all() and rest < left * (1.0 - 1e-9):
                best, left = np.zeros(terms.shape[1]), rest
                best[columns] = solved
    return best


def _law_value(terms: Array, law: Law) -> Array:
    return np.asarray(terms @ np.array(law.coefficients))

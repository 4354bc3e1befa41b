"""The sweep over splits: which one is next, which cannot win, which has won. Pure steps over what was measured.

A role's measured capacity bounds the whole: rate <= min(P * p, D * d). What p and d are is known where a search named
the role that limits: with n workers of it the split held at most its answer's ceiling. They are no constants of the
engine, though: `bound_of` leaves room for what other splits change of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from dynamo_mlperf.tuning.bottleneck import CLEAR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.topology.role_splits import RoleSplit

ALLOWANCE = 0.1
"""More workers of a role share their queue better: a larger pool may hold this much more per worker than a smaller."""
ALIKE = 1.05
"""Predictions within this factor of the best say nothing of who wins: among those, fewest restarts decide."""
ROOM_S = 60.0
"""What a split that is up needs of the allocation's time beyond a full-length run: coming to rest, probes' starts."""
NO_TIME = "the allocation's time was over; resume the sweep in a longer one"
FAILED = "failed"
"""The `kind` of a split that did not measure."""
_EXACT_PATH = 10
"""Splits up to which the order with the fewest restarts is found exactly; beyond, always the nearest is next."""


@dataclass(frozen=True)
class SplitResult:
    """What was measured of one split.

    Attributes:
        split: The split.
        rate_qps: The highest rate at which a full-length run was VALID; None where none was.
        ceiling_qps: A rate above which it is known not to hold; None where that is not known.
        bottleneck: The role that limits; None where the engines do not tell.
        share: Its part of the growth of time per request at that rate, 0 to 1; from CLEAR on it bounds other splits.
        why: What the engines told of it, for people.
    """

    split: RoleSplit
    rate_qps: float | None
    ceiling_qps: float | None = None
    bottleneck: str | None = None
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class SweepState:
    """What a sweep knows.

    Attributes:
        splits: All splits, in the order of the file.
        results: Of those that were measured, in the order of time.
        running: The split that is up; None before the first.
        first: The split to begin with where nothing else says; None where there is no such.
        predicted: Predicted rates by split name.
        prune: Whether what cannot win is left out.
    """

    splits: tuple[RoleSplit, ...]
    results: tuple[SplitResult, ...] = ()
    running: RoleSplit | None = None
    first: RoleSplit | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    prune: bool = True

    @property
    def best(self) -> SplitResult | None:
        """The winner so far; of equal rates the split with fewer GPUs, then the earlier."""
        held = [result for result in self.results if result.rate_qps is not None]
        return max(held, key=lambda one: (one.rate_qps or 0.0, -gpus_of(one.split)), default=None)


@dataclass(frozen=True)
class Bound:
    """An upper bound of a split's rate, and where it comes from.

    Attributes:
        qps: The bound.
        role: The role that gives it.
        source: The measured split.
    """

    qps: float
    role: str
    source: SplitResult


def gpus_of(split: RoleSplit) -> int:
    """GPUs of a split by TP alone."""
    return sum(count.workers * count.tensor_parallel for count in split.counts)


def restarts_between(before: RoleSplit | None, after: RoleSplit) -> int:
    """Workers that have to start at least on the way from one split to another; all of them from nothing."""
    known = {} if before is None else {count.role: count for count in before.counts}
    started = 0
    for count in after.counts:
        old = known.get(count.role)
        stays = min(old.workers, count.workers) if old and old.tensor_parallel == count.tensor_parallel else 0
        started += count.workers - stays
    return started


def bound_of(split: RoleSplit, results: Sequence[SplitResult]) -> Bound | None:
    """The lowest bound of a split's rate that the measured ones give; None where they give none.

    A worker of the limiting role may hold more in another split than it did where it was measured:
    - Roles share the time that a request may take. Where the limiting role had `share` of its growth, it has all of it
      at most where the other roles are idle. What a worker holds is concave in that time (a queue's or a batch's
      figures alike), so it holds at most 1 / `share` as much.
    - A larger pool shares its queue better: ALLOWANCE.
    Prefix caches, of which a pool of another size would hold another part, are off in every engine.
    """
    bounds = []
    for result in results:
        if result.bottleneck is None or result.ceiling_qps is None or result.share < CLEAR:
            continue
        there, here = result.split.of(result.bottleneck), split.of(result.bottleneck)
        if there.tensor_parallel != here.tensor_parallel:
            continue
        margin = (1.0 + ALLOWANCE if here.workers > there.workers else 1.0) / min(result.share, 1.0)
        qps = result.ceiling_qps * here.workers / there.workers * margin
        bounds.append(Bound(qps, result.bottleneck, result))
    return min(bounds, key=lambda bound: bound.qps, default=None)


def pruned(state: SweepState) -> dict[str, str]:
    """Splits that were not measured and cannot win, each with the evidence."""
    best = state.best
    if not state.prune or best is None or best.rate_qps is None:
        return {}
    measured = {result.split.name for result in state.results}
    found = {}
    for split in state.splits:
        bound = bound_of(split, state.results) if split.name not in measured else None
        if bound is not None and bound.qps < best.rate_qps:
            found[split.name] = _reason(split, bound, best)
    return found


def _reason(split: RoleSplit, bound: Bound, best: SplitResult) -> str:
    there, here = bound.source.split.of(bound.role), split.of(bound.role)
    workers = f"{there.workers} {bound.role} worker{'s' if there.workers > 1 else ''}"
    return (
        f"{bound.role} bounds it: {workers} held at most {bound.source.ceiling_qps:.4g} QPS "
        f"at {bound.source.split.name} ({bound.source.why}), so {here.workers} can hold {bound.qps:.4g} at most; "
        f"{best.split.name} holds {best.rate_qps:.4g}"
    )


def next_split(state: SweepState) -> RoleSplit | None:
    """The split to measure next; None when all are measured or cannot win.

    By prediction first; without one, after the first split, towards more of the role that limits. Among those that are
    left the order is the one with the fewest restarts.
    """
    done = {result.split.name for result in state.results} | pruned(state).keys()
    left = [split for split in state.splits if split.name not in done]
    if not left:
        return None
    return _path(state.running, tuple(_promising(left, state)))[0]


def without_time(state: SweepState, left_s: float | None, run_s: float, way_s: float) -> dict[str, str]:
    """Splits that are open and for which no time is left, each with the figures; empty while there is time.

    Args:
        state: What is known.
        left_s: Seconds that the allocation leaves; None where it has no end.
        run_s: Seconds that a full-length run takes at least.
        way_s: Seconds that the workers of a split which is not up needed the last time until they served.
    """
    shortest_s = run_s + ROOM_S + (0.0 if next_split(state) == state.running else way_s)
    if left_s is None or left_s >= shortest_s:
        return {}
    done = {result.split.name for result in state.results} | pruned(state).keys()
    return {
        split.name: f"{left_s:.0f} s left, {shortest_s:.0f} s needed and more where a run at a low rate is padded to a "
        f"whole data set: {NO_TIME}"
        for split in state.splits
        if split.name not in done
    }


def _promising(left: Sequence[RoleSplit], state: SweepState) -> Sequence[RoleSplit]:
    rated = [split for split in left if split.name in state.predicted]
    if rated:
        highest = max(state.predicted[split.name] for split in rated)
        return [split for split in rated if state.predicted[split.name] * ALIKE >= highest]
    if not state.prune:
        return left
    if not state.results:
        return [split for split in left if split == state.first] or left
    last = state.results[-1]
    if last.bottleneck is None:
        return left
    had = last.split.of(last.bottleneck)
    relieving = [split for split in left if _more(split, last.bottleneck, had.workers * had.tensor_parallel)]
    return relieving or left


def _more(split: RoleSplit, role: str, gpus: int) -> bool:
    count = split.of(role)
    return count.workers * count.tensor_parallel > gpus


def _path(running: RoleSplit | None, splits: tuple[RoleSplit, ...]) -> list[RoleSplit]:
    """These splits in the order with the fewest restarts in all, from what runs on."""
    if len(splits) > _EXACT_PATH:
        return [min(splits, key=lambda split: restarts_between(running, split))]
    numbers = range(len(splits))
    # Where nothing runs yet the first start is the same work whichever is first: only the ways between count.
    first = [0 if running is None else restarts_between(running, split) for split in splits]
    ways = [[restarts_between(one, other) for other in splits] for one in splits]

    @cache
    def rest(at: int, left: frozenset[int]) -> tuple[int, tuple[int, ...]]:
        options = ((ways[at][other], other) for other in sorted(left))
        found = [(cost + (after := rest(other, left - {other}))[0], (other, *after[1])) for cost, other in options]
        return min(found, key=lambda one: one[0], default=(0, ()))

    def whole(number: int) -> tuple[int, bool, int]:
        after = rest(number, frozenset(numbers) - {number})
        return first[number] + after[0], splits[number] != running, number

    best = min(numbers, key=whole)
    return [splits[number] for number in (best, *rest(best, frozenset(numbers) - {best})[1])]


def next_rate(rates: Sequence[float], outcomes: Mapping[float, bool]) -> float | None:
    """Of given rates the next one to run, by halving; None when the highest that holds is known.

    Args:
        rates: All of them.
        outcomes: Those that were run, and whether the run was VALID. A rate below one that holds holds too.
    """
    held = max((rate for rate, valid in outcomes.items() if valid), default=0.0)
    failed = min((rate for rate, valid in outcomes.items() if not valid and rate > held), default=float("inf"))
    open_rates = sorted(rate for rate in rates if held < rate < failed)
    return open_rates[len(open_rates) // 2] if open_rates else None

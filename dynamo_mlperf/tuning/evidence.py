"""What one probe says about one constraint: counts of the settled part, how noisy they are, what a full run would show.

Requests in a queue share their fate, so counts are not binomial. The dispersion (variance over mean of the counts) is
estimated by batch means: the counts of neighbouring windows, in batches of about 10 s and 40 s, against their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.tuning.drift import DRIFT_SIGMA, FAILED, STALE_S

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynamo_mlperf.tuning.probes import ProbeRecord

RAMP_SHARE = 0.03
"""Share of a full run that is taken for ramp-up and tells nothing of the settled state."""
_BATCHES_S = (10.0, 40.0)
_PRIOR_DISPERSION, _PRIOR_BATCHES = 3.0, 4.0
_LEAST_DISPERSION, _MOST_DISPERSION = 2.0, 5.0
_FEW_COUNTS = 5
_PLAINLY = 1.3
_FEWEST_SERVED = 40
_LATE_SHARE, _LATE_COUNTS, _BEFORE = 0.6, 10, 0.1


@dataclass(frozen=True)
class Evidence:
    """One probe, one constraint.

    Attributes:
        rate: target_qps.
        queries: Queries of the settled part whose side of the limit is certain: completed ones, and some in flight (all
            of the run, for one that ran to its end).
        over: Those of them over the limit.
        dispersion: Variance over mean of the counts.
        share_run: Share of the planned run that was seen.
        ramp_over: Queries of the ramp-up over the limit.
        ramp_queries: Completed queries of the ramp-up.
        age_s: Engine seconds between this probe and now.
        complete: Whether the probe ran to its planned end.
        moved: Deviation of the system's speed, in log rate, by which it may have changed since.
    """

    rate: float
    queries: float
    over: float
    dispersion: float
    share_run: float
    ramp_over: float = 0.0
    ramp_queries: float = 0.0
    age_s: float = 0.0
    complete: bool = False
    moved: float = 0.0

    @property
    def fraction(self) -> float:
        """Share of queries over the limit, kept off zero."""
        return min(1.0, (self.over + 0.5) / (self.queries + 1.0))


def dispersion(t_s: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Variance over mean of the counts per window, by batch means, drawn towards 3 where there are few; 2 to 5.

    What is beyond comes from stretches of the run that differ, which the model takes for scatter of the speed.

    Args:
        t_s: Ends of the windows in seconds.
        counts: Queries over the limit in each window.
    """
    if counts.sum() < _FEW_COUNTS:
        return _PRIOR_DISPERSION
    found = []
    for batch_s in _BATCHES_S:
        sums = np.bincount(((t_s - t_s[0]) / batch_s).astype(int), counts)[:-1]
        if len(sums) > 2:  # noqa: PLR2004 - the variance of fewer says nothing
            ratio = float(sums.var(ddof=1) / max(sums.mean(), 1e-9))
            drawn = (_PRIOR_DISPERSION * _PRIOR_BATCHES + ratio * (len(sums) - 1)) / (_PRIOR_BATCHES + len(sums) - 1)
            found.append(drawn)
    return min(max(_LEAST_DISPERSION, *found), _MOST_DISPERSION) if found else _PRIOR_DISPERSION


def gather(record: ProbeRecord, constraint: str, now_s: float, *, changed: bool = False) -> Evidence:
    """The evidence of a probe for one constraint; `changed`: the system was seen to be another one since."""
    age_s = max(0.0, now_s - record.begin_s - record.cost_s)
    moved = DRIFT_SIGMA if changed or age_s > STALE_S else 0.0
    table = np.array([(each.t_s, each.known(constraint), each.over_of(constraint)) for each in record.samples], float)
    table = table.reshape(-1, 3)
    table[:, 1:] = np.minimum.accumulate(table[::-1, 1:])[::-1]  # what a later line takes back never was
    ramp = table[table[:, 0] <= RAMP_SHARE * record.whole_s + 1e-9] if len(table) else table
    if len(ramp) == len(table):  # stopped within the ramp: that is all there is
        ramp = ramp[:0]
    settled = table[len(ramp) :]
    start = ramp[-1] if len(ramp) else np.zeros(3)
    steps = np.diff(np.vstack([start, settled]), axis=0)
    spread = dispersion(settled[:, 0], steps[:, 2]) if len(settled) else _PRIOR_DISPERSION
    if record.final is not None:
        over = float(record.final.over.get(constraint, 0))
        return Evidence(record.rate, record.final.n, over, spread, 1.0, age_s=age_s, complete=True, moved=moved)
    end = settled[-1] if len(settled) else start
    return Evidence(
        record.rate,
        float(end[1] - start[1]),
        float(end[2] - start[2]),
        spread,
        min(1.0, float(end[0]) / record.whole_s),
        float(start[2]),
        float(start[1]),
        age_s,
        moved=moved,
    )


def onset_s(record: ProbeRecord) -> float:
    """Seconds of a failed run before which hardly a query was over a limit; 0 where that was not late in the run."""
    if record.ended not in FAILED and (record.final is None or record.final.valid):
        return 0.0
    latest_s = 0.0
    for name in record.constraints:
        over = record.samples[-1].over_of(name) if record.samples else 0
        if over >= _LATE_COUNTS:
            before = (each.t_s for each in record.samples if each.over_of(name) <= _BEFORE * over)
            latest_s = max(latest_s, *before, 0.0)
    return latest_s if latest_s >= _LATE_SHARE * record.whole_s else 0.0


def backlog_grows(record: ProbeRecord) -> bool:
    """Whether queries in flight still become more: such a run has not shown yet what it will end like."""
    late = [each for each in record.samples if each.t_s > RAMP_SHARE * record.whole_s]
    third = len(late) // 3
    if third < 1:
        return False
    flying = np.array([each.issued - each.completed for each in late], float)
    before, after = float(flying[:third].mean()), float(flying[-third:].mean())
    return after - before > 2.5 * np.sqrt(max(before, 1.0) / min(third, 4)) and after > 1.1 * before


def shows_failure(record: ProbeRecord, share: float, *, backlog: bool = True) -> bool:
    """Whether a probe's own counts say that its rate fails, whatever the others make likely.

    Args:
        record: The probe.
        share: Share of queries that may be over a limit.
        backlog: Whether queries in flight that become more, or an overload, say so, too.
    """
    if backlog and (backlog_grows(record) or served_qps(record) is not None):
        return True
    each = [gather(record, name, 0.0) for name in record.constraints]
    return any(one.over + one.ramp_over > _PLAINLY * share * (one.queries + one.ramp_queries) for one in each)


def served_qps(record: ProbeRecord) -> tuple[float, float] | None:
    """What an overloaded system completes, in queries per second, and its standard error as a share of it.

    Overloaded is a system that completes clearly less than comes in and no more of late than before: one that is
    still filling up (requests that take minutes) completes more and more.

    Returns:
        None where the system is not overloaded, or was seen too briefly to tell.
    """
    late = [each for each in record.samples if each.t_s > RAMP_SHARE * record.whole_s / 2]
    if len(late) < 4:  # noqa: PLR2004 - two spans need as many lines
        return None
    first, middle, last = late[0], late[len(late) // 2], late[-1]
    before = (middle.completed - first.completed) / max(middle.t_s - first.t_s, 1e-9)
    after = (last.completed - middle.completed) / max(last.t_s - middle.t_s, 1e-9)
    span = last.t_s - first.t_s
    done, came = (last.completed - first.completed) / span, (last.issued - first.issued) / span
    counted = last.completed - first.completed
    if counted < _FEWEST_SERVED or after > before * (1.02 + 2.0 * math.sqrt(4.0 / counted)):
        return None
    lag = (last.issued - last.completed) - (first.issued - first.completed)
    noise = 1.0 / math.sqrt(counted)
    if lag < 4.0 * math.sqrt(last.issued - first.issued) or done > 0.985 * came:
        return None
    return done, noise

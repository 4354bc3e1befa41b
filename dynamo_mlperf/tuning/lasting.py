"""Rates that hold for minutes and not for a whole run: how long a queue takes to reach a limit tells how fast it grows.

Above its capacity a system fails the later in a run the nearer its rate is to it. A probe that is stopped then seems to
be right above what holds, and so does the next one, a percent lower.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.tuning.drift import FAILED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynamo_mlperf.tuning.probes import History, ProbeRecord

_NEAREST = (6, 5, 4, 3)
"""How many of the lowest rates that failed have to agree: those far above are timed too roughly."""
_COUNTS, _BEFORE = 20, 0.1
"""Queries over a limit below which nothing is timed, and the share of them that were over when it began to fail."""
_SPREAD, _DISORDER = 1.4, 0.9
"""By how much the lowest rate has to outlast the highest, and how much shorter any may last than the next higher."""
_FIT = 0.015
"""How far a rate may be off the line, as a share."""
_FURTHEST = 0.82
"""No rate further below the lowest that failed, as a share of it, is taken from the line: a nearer one shows more."""


def failed_after_s(record: ProbeRecord) -> float:
    """Seconds in which a failed run had a tenth of what was over in the end; 0 where that tells nothing."""
    if record.ended not in FAILED and (record.final is None or record.final.valid):
        return 0.0
    found = [_begins_s(record, name) for name in record.constraints]
    return min((each for each in found if each > 0.0), default=0.0)


def _begins_s(record: ProbeRecord, name: str) -> float:
    """The same for one constraint."""
    over = [float(each.over_of(name)) for each in record.samples]
    if not over or over[-1] < _COUNTS:
        return 0.0
    few = _BEFORE * over[-1]
    after = next(index for index, count in enumerate(over) if count > few)
    times_s, counts = [0.0, *(each.t_s for each in record.samples)], [0.0, *over]
    return float(np.interp(few, counts[after : after + 2], times_s[after : after + 2]))


def lasting_rate(history: History) -> float:
    """The rate whose queue takes a whole run to reach the limit; infinite where failures do not look like that.

    A queue that is served at c queries per second and fails once it holds K has after t seconds had rates of c + K / t.
    At least three rates that failed, the lower the later, have to agree with that.
    """
    times: dict[float, list[float]] = {}
    for record in history:
        if (after_s := failed_after_s(record)) > 0.0:
            times.setdefault(record.rate, []).append(after_s)
    whole_s = max((record.whole_s for record in history), default=0.0)
    for nearest in _NEAREST:
        rates = sorted(times)[:nearest]
        if len(rates) == nearest:
            mean_s = [float(np.mean(times[rate])) for rate in rates]
            if (found := _by_line(np.array(rates), np.array(mean_s), whole_s)) is not None:
                return found
    return math.inf


def _by_line(rates: NDArray[np.float64], after_s: NDArray[np.float64], whole_s: float) -> float | None:
    """The rate that fails after `whole_s`, by those that failed sooner, lowest first; None where they do not agree."""
    if after_s[0] < _SPREAD * after_s[-1] or any(after_s[:-1] < _DISORDER * after_s[1:]):
        return None
    held, served = np.polyfit(1.0 / after_s, rates, 1)
    off = np.abs(served + held / after_s - rates) / rates
    if held <= 0.0 or off.max() > _FIT:
        return None
    return max(float(served + held / whole_s), _FURTHEST * float(rates[0]))

"""A system that is slower (or faster) than it was when it was probed: noticed by probing again, then believed.

Two things make a search look again: a confirming run that is more than an hour old when its rate is to be the answer,
and a bad probe where a good one was expected. Where the second look is bad too, what was seen before tells less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamo_mlperf.tuning.probes import History, ProbeRecord

STALE_S = 3600.0
"""Engine seconds after which a confirmed rate is looked at again before it is the answer."""
STILL = "does it still hold?"
AGAIN = "repeat of a bad probe where a good one was expected"
ABOVE = "to find a rate that fails"
CHECK_SHARE = 0.12
"""Share of a full run that a check for drift lasts where nothing has changed."""
DRIFT_SIGMA = 0.03
"""How far, in log rate, a system may have moved that was seen to be another one than before."""
FAILED = frozenset({"cannot pass", "unlikely to pass"})


def changed_at(history: History) -> int:
    """Index of the first probe that saw the system as it is now; 0 where it never changed."""
    for index in range(len(history) - 1, 0, -1):
        if history[index].purpose == AGAIN and history[index].ended in FAILED:
            return index - 1
    return 0


def is_stale(history: History, index: int, now_s: float) -> bool:
    """Whether the rate of a confirming run was last seen to hold more than an hour ago."""
    run = history[index]
    seen = [each for each in history[index:] if each is run or _holds(each, run.rate)]
    return now_s - max(each.begin_s + each.cost_s for each in seen) > STALE_S


def _holds(record: ProbeRecord, rate: float) -> bool:
    """Whether a probe shows that a rate still holds."""
    good = record.ended in {"too low", "as before"} or (record.final is not None and record.final.valid)
    return good and record.rate >= 0.998 * rate

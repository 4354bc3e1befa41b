"""What is certain of queries in flight: over a limit already, though they have not ended.

A long answer shows its time to first token minutes before its end, and one that has waited for longer than a limit
will be over it however it ends. For a running test that is to be stopped early; a verdict counts what has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping

_NS_PER_MS = 1e6
TOLD_WITHIN_NS = 1_000_000_000
"""An end or a first token that has happened is on the books within this time; before, its absence proves nothing."""


@dataclass(frozen=True)
class EarlyCounts:
    """Queries in flight whose side of a limit is certain.

    Attributes:
        over: Constraint -> those that are over it however they end.
        known: Constraint -> those of which it is certain, either way.
    """

    over: dict[str, int]
    known: dict[str, int]


def early_counts(
    times_ns: tuple[array[int], array[int], array[int]],
    now_ns: int,
    limits_ms: Mapping[str, float],
    max_tokens: int | None = None,
) -> EarlyCounts:
    """Count by constraint.

    Args:
        times_ns: Of each query the times of its issue (0 = it still waits for its turn), of its first token (0 = none
            is on the books) and of its end (0 = it is in flight).
        now_ns: Now, on the same clock.
        limits_ms: Limits in milliseconds: any of `end_to_end`, `ttft`, `tpot`.
        max_tokens: Longest answer that any of them may have; None = unknown, so that nothing is certain of TPOT.
    """
    issued, first, done = (np.frombuffer(column, dtype=np.int64) for column in times_ns)
    flying = (issued > 0) & (done == 0)
    issued, first = issued[flying], first[flying]
    told_ns = now_ns - TOLD_WITHIN_NS
    over: dict[str, int] = {}
    known: dict[str, int] = {}
    for name, limit_ms in limits_ms.items():
        limit_ns = limit_ms * _NS_PER_MS
        if name == "ttft":
            late = np.where(first > 0, first, told_ns) - issued > limit_ns
            sure = late | (first > 0)
        elif name == "end_to_end":
            sure = late = told_ns - issued > limit_ns
        elif max_tokens is not None:
            sure = late = (first > 0) & (told_ns - first > limit_ns * max(max_tokens - 1, 1))
        else:
            continue
        over[name], known[name] = int(late.sum()), int(sure.sum())
    return EarlyCounts(over, known)

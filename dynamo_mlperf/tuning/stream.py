"""The lines of a probe's stream, read strictly: what is not as agreed is named with its line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import RepeatedKeyError, strict_json
from dynamo_mlperf.tuning.probes import Final, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 120
_FEW_SHARE = 0.5
_MOST_S, _MOST_COUNT = 1e9, 10**15
_KEYS = {"t_s", "issued", "completed", "over_limit", "done", "valid", "n", "seconds"}


class ProbeFault(Exception):
    """A probe did not measure: it crashed, hung, printed what is no stream, or ended without its last line."""


def parse_line(line: str, number: int) -> Sample | Final | None:
    """One line of a stream; None for an empty one, and for an object that says nothing of the run.

    Raises:
        ProbeFault: The line is no JSON object, or lacks a key, or holds what is no count.
    """
    if not line.strip():
        return None
    try:
        value = strict_json(line)
    except RepeatedKeyError as twice:
        raise ProbeFault(f"line {number} of its stdout: {twice}: {line.strip()[:_SHOWN]!r}") from None
    except (ValueError, RecursionError):
        raise ProbeFault(f"line {number} of its stdout is no JSON: {line.strip()[:_SHOWN]!r}") from None
    if not isinstance(value, dict):
        raise ProbeFault(f"line {number} of its stdout is no JSON object: {line.strip()[:_SHOWN]!r}")
    if _KEYS.isdisjoint(value):  # a header, or another note of the program
        return None
    try:
        return _final(value) if value.get("done") else _sample(value)
    except KeyError as missing:
        raise ProbeFault(f"line {number} of its stdout lacks {missing}: {line.strip()[:_SHOWN]!r}") from None
    except ValueError as wrong:
        raise ProbeFault(f"line {number} of its stdout: {wrong}: {line.strip()[:_SHOWN]!r}") from None


def _sample(value: dict[str, Any]) -> Sample:
    issued, completed = _count(value["issued"], "issued"), _count(value["completed"], "completed")
    over, flying = _counts(value["over_limit"]), _counts(value.get("over_in_flight", {}), "over_in_flight")
    known = _counts(value["known_in_flight"], "known_in_flight") if "known_in_flight" in value else dict(flying)
    for name, count in over.items():
        # Some count a query as soon as it is over, at its first token for example: more than have ended are in flight.
        if completed < count <= issued and name not in known:
            over[name], flying[name], known[name] = completed, count - completed, count - completed
    return Sample(_seconds(value["t_s"], "t_s"), issued, completed, over, flying, known)


def _final(value: dict[str, Any]) -> Final:
    percentiles = value.get("percentiles") or {}
    if value["valid"] not in (0, 1):  # as C prints them, or true and false
        raise ValueError("valid is neither true nor false")
    if not isinstance(percentiles, dict):
        raise ValueError("percentiles is no object")  # noqa: TRY004 - a fault of the stream
    return Final(
        bool(value["valid"]),
        _count(value["n"], "n"),
        _counts(value["over_limit"]),
        _seconds(value["seconds"], "seconds"),
        percentiles,
    )


def check_final(final: Final, rate: float, planned_s: float) -> None:
    """The last line agrees with itself and with what was asked for.

    Raises:
        ProbeFault: More queries were over a limit than there were, or there were far fewer than the rate gives.
    """
    for name, count in final.over.items():
        if count > final.n:
            raise ProbeFault(f"its last line says {count} over {name} of {final.n} queries")
    expected = rate * planned_s
    if final.n < _FEW_SHARE * expected - 4.0 * math.sqrt(expected):
        raise ProbeFault(
            f"its last line says {final.n} queries, and {rate:g} QPS for {planned_s:g} s are about {expected:.0f}: "
            "it does not issue what it is asked for"
        )


def _seconds(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_S:
        raise ValueError(f"{name} is no time in seconds")
    return float(value)


def _count(value: object, name: str) -> int:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MOST_COUNT or value != int(value):  # type: ignore[operator, call-overload]
        raise ValueError(f"{name} is no count")
    return int(value)  # type: ignore[call-overload, no-any-return]


def _counts(value: object, key: str = "over_limit") -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError(f"{key} is no object of constraint and count")  # noqa: TRY004 - a fault of the stream
    return {str(name): _count(count, f"{key} of {name}") for name, count in value.items()}


def check_order(before: Sample | None, now: Sample) -> None:
    """Counts and time of a stream only grow, and agree with each other.

    Raises:
        ProbeFault: They went back, or more queries ended than were issued, or were over a limit than ended.
    """
    if now.completed > now.issued:
        raise ProbeFault(f"at {now.t_s:g} s it says {now.completed} completed of {now.issued} issued")
    for name, count in now.over.items():
        if count > now.completed:
            raise ProbeFault(f"at {now.t_s:g} s it says {count} over {name} of {now.completed} completed")
    _check_in_flight(now)
    if before is None:
        return
    back = now.t_s < before.t_s or now.issued < before.issued or now.completed < before.completed
    if back or any(now.over.get(name, 0) < count for name, count in before.over.items()):
        raise ProbeFault(f"its stream goes back: counts at {now.t_s:g} s are below those at {before.t_s:g} s")


def check_kept(before: Sample, over: Mapping[str, int], where: str) -> None:
    """What was said to be over a limit stays over it, in flight or not.

    Of a program's stream only: our own load client calls a query over that it has heard nothing of for a while, and
    takes that back in the rare case that the client itself was held up (`load/early_counts.py`).

    Args:
        before: The line before.
        over: Constraint -> queries that are over it now.
        where: Begins what is told.

    Raises:
        ProbeFault: There are fewer than before.
    """
    for name in sorted(before.over):
        said, now, flying = before.over_of(name), over.get(name, 0), before.over_in_flight.get(name, 0)
        if now < said:
            early = f", {flying} of them in flight and over however they end" if flying else ""
            raise ProbeFault(f"{where} {now} over {name}; at {before.t_s:g} s it said {said}{early}")


def _check_in_flight(now: Sample) -> None:
    """What is certain of queries in flight is said of constraints that are counted, and of no more than there are."""
    flying = now.issued - now.completed
    for name in sorted({*now.over_in_flight, *now.known_in_flight}):
        over, known = now.over_in_flight.get(name, 0), now.known_in_flight.get(name, 0)
        if not over <= known <= flying or name not in now.over:
            raise ProbeFault(f"at {now.t_s:g} s it says {over} over {name} of {known} known of {flying} in flight")

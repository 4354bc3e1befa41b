"""How long a rate lasted before it failed, and what that says of the rate that lasts for a whole run."""

from __future__ import annotations

import math

import pytest

from dynamo_mlperf.tuning.lasting import failed_after_s, lasting_rate
from dynamo_mlperf.tuning.probes import ProbeRecord, Sample

SERVED, HELD = 40.0, 240.0
"""Queries per second that are served, and what the queue may hold."""


def _failed(rate: float, after_s: float, *, line_s: float = 1.0) -> ProbeRecord:
    """A probe that was good until then, and was stopped when nearly all queries of ten seconds had been over."""
    lines = range(1, math.ceil((after_s + 10.0) / line_s) + 1)
    over = [round(max(0.0, line * line_s - after_s) * rate) for line in lines]
    samples = (
        Sample(line * line_s, round(rate * line * line_s), round(SERVED * line * line_s), {"ttft": count})
        for line, count in zip(lines, over, strict=True)
    )
    return ProbeRecord(rate, 600.0, tuple(samples), "cannot pass", None, 0.0, after_s + 25.0)


def _queue(rate: float, *, line_s: float = 1.0) -> ProbeRecord:
    return _failed(rate, HELD / (rate - SERVED), line_s=line_s)


@pytest.mark.parametrize("line_s", [1.0, 5.0])
@pytest.mark.parametrize(
    "rates", [(60.0, 50.0, 45.0), (48.0, 46.0, 44.0, 43.0), (50.0, 48.0, 46.0, 45.0, 44.0, 43.0, 42.0)]
)
def test_a_queue_is_followed_to_the_end_of_the_run(rates: tuple[float, ...], line_s: float) -> None:
    history = tuple(_queue(rate, line_s=line_s) for rate in rates)
    assert lasting_rate(history) == pytest.approx(SERVED + HELD / 600.0, rel=0.012)
    assert failed_after_s(history[-1]) == pytest.approx(HELD / (rates[-1] - SERVED), abs=1.0 + line_s)


def test_two_rates_are_a_line_whatever_they_are_and_tell_nothing() -> None:
    assert lasting_rate((_queue(50.0), _queue(45.0))) == math.inf
    assert lasting_rate((_queue(50.0), _queue(45.0), _queue(45.0))) == math.inf
    assert lasting_rate(()) == math.inf


@pytest.mark.parametrize(
    "after_s",
    [(30.0, 30.0, 30.0), (120.0, 60.0, 30.0), (60.0, 20.0, 60.0), (11.0, 100.0, 101.0)],
    ids=["at once", "sooner", "by chance", "off the line"],
)
def test_failures_that_are_no_queue_tell_nothing(after_s: tuple[float, ...]) -> None:
    history = tuple(_failed(rate, seconds) for rate, seconds in zip((60.0, 50.0, 45.0), after_s, strict=True))
    assert lasting_rate(history) == math.inf


def test_a_probe_that_did_not_fail_or_hardly_tells_no_time() -> None:
    few = ProbeRecord(45.0, 600.0, (Sample(50.0, 2250, 2250, {"ttft": 19}),), "cannot pass")
    good = ProbeRecord(45.0, 600.0, (Sample(50.0, 2250, 2250, {"ttft": 900}),), "too low")
    assert (failed_after_s(few), failed_after_s(good)) == (0.0, 0.0)
    assert failed_after_s(ProbeRecord(45.0, 600.0, (), "cannot pass")) == 0.0

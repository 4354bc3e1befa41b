"""A load client that is alive but does nothing is noticed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.job.measurement import Pulse

LOG = Path("logs/loadgen.log")


def test_no_progress_for_too_long_is_an_error_that_says_for_how_long() -> None:
    pulse = Pulse(0.05)
    pulse.feel({"t_s": 1.0, "completed": 3}, LOG)
    time.sleep(0.1)
    with pytest.raises(MeasureError, match=r"loadgen runs but has shown no progress for 0\.05 s") as raised:
        pulse.feel({"t_s": 1.0, "completed": 3}, LOG)
    assert str(LOG) in raised.value.action


def test_silence_from_the_start_counts_too() -> None:
    pulse = Pulse(0.05)
    pulse.feel(None, LOG)
    time.sleep(0.1)
    with pytest.raises(MeasureError, match="no progress"):
        pulse.feel(None, LOG)


def test_a_clock_that_goes_on_after_the_last_end_is_no_sign_of_life() -> None:
    pulse = Pulse(0.05)
    ended = {"completed": 3, "generated_queries": 3}
    pulse.feel({"t_s": 1.0, **ended}, LOG)
    time.sleep(0.1)
    with pytest.raises(MeasureError, match="no progress"):
        pulse.feel({"t_s": 2.0, **ended}, LOG)


def test_any_change_is_a_sign_of_life() -> None:
    pulse = Pulse(0.05)
    for second in range(4):
        pulse.feel({"t_s": float(second), "completed": 3}, LOG)
        time.sleep(0.04)
    pulse.feel({"t_s": 4.0, "completed": 3}, LOG)

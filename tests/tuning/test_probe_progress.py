"""When a running probe is stopped, and when it is not."""

from __future__ import annotations

import dataclasses

from dynamo_mlperf.tuning.probes import Probe, ProbeRecord, Sample, SearchSettings
from dynamo_mlperf.tuning.progress import judge_progress
from tests.tuning.test_next_step import record

SETTINGS = SearchSettings(low=10.0, high=100.0)
PROBE = Probe(40.0, 600.0, 600.0, must_finish=False, purpose="to confirm")
NEAR = (
    record(31.6, 0.0, seconds=60, ended="too low"),
    record(41.5, 0.03, seconds=200, ended="cannot pass", begin_s=75.0),
)


def _running(seconds: float, over: int, *, rate: float = 40.0, served: float | None = None) -> ProbeRecord:
    """A probe that so far has `over` queries over the limit, spread evenly."""
    samples = tuple(
        Sample(float(t_s), int(rate * t_s), int((served or rate) * t_s), {"ttft": round(over * t_s / seconds)})
        for t_s in range(5, int(seconds) + 1, 5)
    )
    return ProbeRecord(rate, 600.0, samples, "running", None, 290.0)


def test_nothing_is_judged_before_the_first_line_or_within_the_ramp() -> None:
    assert judge_progress(ProbeRecord(40.0, 600.0, (), "running"), (), SETTINGS, PROBE).stop is None
    assert judge_progress(_running(20, 800), (), SETTINGS, PROBE).stop is None


def test_a_run_that_cannot_pass_is_stopped() -> None:
    """A full run of 24,000 queries may have 204 over; of what may come by luck of the arrivals, 210."""
    verdict = judge_progress(_running(300, 260), NEAR, SETTINGS, PROBE)
    assert verdict.stop == "cannot pass"
    assert "260 queries over the ttft limit" in verdict.text
    last = dataclasses.replace(PROBE, must_finish=True)
    assert judge_progress(_running(300, 260), NEAR, SETTINGS, last).stop == "cannot pass"


def test_a_run_that_may_hold_a_data_set_more_is_not_lost_yet() -> None:
    """24,000 queries may have 204 over, 32,000 more: LoadGen issued 32,000 at this rate, by the luck of its arrivals."""
    settings = SearchSettings(data_set=8000, at_least=8000)
    probe = Probe(39.9, settings.run_s(39.9), settings.run_s(39.9), must_finish=True, purpose="to confirm")
    samples = (Sample(300.0, 12_000, 11_990, {"ttft": 102}), Sample(598.0, 23_860, 23_800, {"ttft": 205}))
    running = ProbeRecord(39.9, probe.planned_s, samples, "running")
    assert judge_progress(running, (), settings, probe).stop is None
    assert judge_progress(dataclasses.replace(running, generated=32_000), (), settings, probe).stop is None
    verdict = judge_progress(dataclasses.replace(running, generated=24_000), (), settings, probe)
    assert (verdict.stop, "a full run may have 204" in verdict.text) == ("cannot pass", True)
    more = dataclasses.replace(running, samples=(Sample(598.0, 23_860, 23_800, {"ttft": 400}),))
    assert judge_progress(more, (), settings, probe).stop == "cannot pass"
    alike = dataclasses.replace(settings, slack=1.1, rule="endpoints")  # pads by the rate alone
    short = dataclasses.replace(running, rate=36.3)
    assert judge_progress(short, (), alike, dataclasses.replace(probe, rate=36.3)).stop == "cannot pass"


def test_what_was_generated_says_how_long_a_run_lasts() -> None:
    planned = ProbeRecord(40.0, 800.0, (), "running")
    assert (planned.whole_queries, planned.whole_s) == (32_000, 800.0)
    shorter = dataclasses.replace(planned, generated=24_000)
    assert (shorter.whole_queries, shorter.whole_s) == (24_000, 600.0)


def test_a_run_that_would_hardly_pass_is_stopped_unless_it_is_the_last() -> None:
    assert judge_progress(_running(300, 190), NEAR, SETTINGS, PROBE).stop == "unlikely to pass"
    last = dataclasses.replace(PROBE, must_finish=True)
    assert judge_progress(_running(300, 190), NEAR, SETTINGS, last).stop is None


def test_a_good_run_near_the_knee_goes_on() -> None:
    assert judge_progress(_running(300, 60), NEAR, SETTINGS, PROBE).stop is None


def test_a_run_far_below_the_knee_is_stopped() -> None:
    low = dataclasses.replace(PROBE, rate=12.0)
    verdict = judge_progress(_running(60, 0, rate=12.0), NEAR, SETTINGS, low)
    assert verdict.stop == "too low"


def test_a_good_run_is_not_stopped_before_another_began_to_fail() -> None:
    late = tuple(Sample(float(t), 60 * t, 60 * t, {"ttft": max(0, 60 * (t - 450))}) for t in range(5, 461, 5))
    failed = ProbeRecord(60.0, 600.0, late, "cannot pass", None, 0.0, 475.0)
    low = dataclasses.replace(PROBE, rate=12.0)
    assert judge_progress(_running(60, 0, rate=12.0), (failed,), SETTINGS, low).stop is None


def test_a_growing_backlog_is_not_taken_for_a_good_run() -> None:
    low = dataclasses.replace(PROBE, rate=20.0)
    assert judge_progress(_running(60, 0, rate=20.0), NEAR, SETTINGS, low).stop == "too low"
    assert judge_progress(_running(60, 0, rate=20.0, served=18.0), NEAR, SETTINGS, low).stop != "too low"


def test_a_probe_ends_when_the_confirmation_would_not_fit_any_more() -> None:
    short = dataclasses.replace(PROBE, max_s=173.0)
    assert judge_progress(_running(165, 60), NEAR, SETTINGS, short).stop is None
    assert judge_progress(_running(170, 60), NEAR, SETTINGS, short).stop == "no more time", "the next line is too late"


def test_a_good_padded_run_that_is_nearly_done_becomes_the_confirmation_where_its_rest_fits() -> None:
    """What was kept for another one may not hold it: how long a padded run lasts jumps with the rate."""
    padded = dataclasses.replace(SETTINGS, data_set=24_000, at_least=24_000, time_budget_s=1300.0)
    short = dataclasses.replace(PROBE, max_s=420.0)
    good, poor = _running(420, 20), _running(420, 135)
    assert judge_progress(good, NEAR, padded, short).stop is None
    assert judge_progress(poor, NEAR, padded, short).stop == "no more time"
    assert judge_progress(good, NEAR, dataclasses.replace(SETTINGS, time_budget_s=1300.0), short).stop == "no more time"
    less = dataclasses.replace(padded, time_budget_s=900.0)
    assert judge_progress(good, NEAR, less, short).stop == "no more time", "600 s do not fit beside the 290 s before"
    early = dataclasses.replace(PROBE, max_s=300.0)
    assert judge_progress(_running(300, 15), NEAR, padded, early).stop == "no more time"


def _flying(seconds: float, over: int) -> ProbeRecord:
    """Answers that take longer than the probe so far: none has ended; `over` of those in flight are over for certain."""
    issued = int(40 * seconds)
    samples = tuple(
        Sample(float(t_s), 40 * t_s, 0, {"ttft": 0}, {"ttft": over * t_s // int(seconds)}, {"ttft": 40 * t_s})
        for t_s in range(5, int(seconds) + 1, 5)
    )
    assert samples[-1].known("ttft") == issued
    return ProbeRecord(40.0, 600.0, samples, "running", None, 290.0)


def test_queries_in_flight_that_are_over_for_certain_stop_a_run_that_cannot_pass() -> None:
    verdict = judge_progress(_flying(60, 260), NEAR, SETTINGS, PROBE)
    assert verdict.stop == "cannot pass"
    assert "260 queries over the ttft limit (260 of them still in flight)" in verdict.text


def test_what_is_known_of_queries_in_flight_tells_how_a_run_will_end() -> None:
    """80 of 2,400 over are 800 of a whole run, where 204 may be; 4 are 40."""
    assert judge_progress(_flying(60, 80), NEAR, SETTINGS, PROBE).stop == "unlikely to pass"
    assert judge_progress(_flying(60, 4), NEAR, SETTINGS, PROBE).stop is None

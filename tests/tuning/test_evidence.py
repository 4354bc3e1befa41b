"""What a probe says: settled counts, dispersion, growing backlogs, what an overloaded system serves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamo_mlperf.tuning.evidence import backlog_grows, dispersion, gather, onset_s, served_qps
from dynamo_mlperf.tuning.probes import Final, ProbeRecord, Sample


def _record(
    rate: float, seconds: float, *, served: float | None = None, over_after: float = 1e9, final: Final | None = None
) -> ProbeRecord:
    """A steady stream at `rate` of which at most `served` a second complete; all are over from `over_after` on."""
    samples = []
    for t_s in range(5, int(seconds) + 1, 5):
        done = int(min(rate, served or rate) * t_s)
        over = int(max(0.0, t_s - over_after) * min(rate, served or rate))
        samples.append(Sample(float(t_s), int(rate * t_s), done, {"ttft": over}))
    return ProbeRecord(rate, 600.0, tuple(samples), "running", final)


def test_the_ramp_is_kept_apart_from_what_is_settled() -> None:
    each = gather(_record(40.0, 60.0, over_after=0.0), "ttft", 0.0)
    assert (each.ramp_queries, each.queries, each.over) == (600.0, 1800.0, 1800.0)
    assert each.share_run == pytest.approx(0.1)
    assert not each.complete


def test_a_probe_stopped_within_the_ramp_still_tells_something() -> None:
    each = gather(_record(40.0, 15.0, over_after=0.0), "ttft", 0.0)
    assert (each.ramp_queries, each.queries, each.over) == (0.0, 600.0, 600.0)


def test_a_run_that_ended_counts_whole() -> None:
    final = Final(valid=True, n=24_100, over={"ttft": 130}, seconds=600.0)
    each = gather(_record(40.0, 600.0, final=final), "ttft", 900.0)
    assert (each.queries, each.over, each.complete, each.age_s) == (24_100, 130.0, True, 900.0)
    assert gather(_record(40.0, 600.0, final=final), "tpot", 0.0).over == 0.0


def test_a_run_that_fails_only_late_tells_from_when_on() -> None:
    late = dataclasses.replace(_record(40.0, 500.0, over_after=450.0), ended="cannot pass")
    assert onset_s(late) == 455.0
    assert onset_s(dataclasses.replace(_record(40.0, 200.0, over_after=150.0), ended="cannot pass")) == 0.0
    assert onset_s(dataclasses.replace(_record(40.0, 500.0, over_after=0.0), ended="cannot pass")) == 0.0
    assert onset_s(dataclasses.replace(late, ended="too low")) == 0.0


def test_counts_that_come_in_bursts_are_more_dispersed_than_chance() -> None:
    rng = np.random.default_rng(5)
    t_s = np.arange(5, 605, 5).astype(float)
    even = rng.poisson(4.0, t_s.size).astype(float)
    bursts = np.where(np.arange(t_s.size) % 24 < 4, 24.0, 0.0)
    assert dispersion(t_s, even) == 2.0
    assert dispersion(t_s, bursts) == 5.0


def test_an_overloaded_system_shows_what_it_can_serve() -> None:
    found = served_qps(_record(60.0, 60.0, served=50.0))
    assert found is not None
    assert found[0] == pytest.approx(50.0, rel=0.02)
    assert served_qps(_record(60.0, 60.0)) is None
    assert served_qps(_record(60.0, 10.0, served=50.0)) is None


def test_a_system_that_still_fills_up_is_not_overloaded() -> None:
    """Requests that take minutes: nothing completes at first, then ever more."""
    samples = tuple(
        Sample(float(t_s), int(20 * t_s), int(20 * max(0.0, t_s - 60) ** 2 / (t_s + 1)), {"ttft": 0})
        for t_s in range(5, 205, 5)
    )
    assert served_qps(ProbeRecord(20.0, 600.0, samples, "running")) is None


def test_a_growing_backlog_is_seen() -> None:
    assert backlog_grows(_record(60.0, 60.0, served=50.0))
    assert not backlog_grows(_record(60.0, 60.0))


def test_what_a_later_line_takes_back_was_never_over() -> None:
    """Our own client may call queries in flight over and hear within the next second that they are not."""
    samples = (Sample(5.0, 200, 0, {"ttft": 0}, {"ttft": 40}), Sample(90.0, 3600, 3590, {"ttft": 3}))
    each = gather(ProbeRecord(40.0, 600.0, samples, "running"), "ttft", 0.0)
    assert (each.over, each.ramp_over) == (0.0, 3.0)

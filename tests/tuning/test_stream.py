"""Lines of a probe's stream: what is taken, and how each fault is named."""

from __future__ import annotations

import pytest

from dynamo_mlperf.tuning.probes import Final, Sample
from dynamo_mlperf.tuning.stream import ProbeFault, check_kept, check_order, parse_line


def test_lines_as_agreed() -> None:
    line = '{"t_s": 5, "issued": 200, "completed": 190.0, "over_limit": {"ttft": 1}, "more": "is left alone"}'
    assert parse_line(line, 1) == Sample(5.0, 200, 190, {"ttft": 1})
    flying = '{"t_s": 5, "issued": 9, "completed": 1, "over_limit": {"ttft": 1}, "over_in_flight": {"ttft": 2}'
    assert parse_line(flying + "}", 1) == Sample(5.0, 9, 1, {"ttft": 1}, {"ttft": 2}, {"ttft": 2})
    both = parse_line(flying + ', "known_in_flight": {"ttft": 5}}', 1)
    assert isinstance(both, Sample)
    assert (both.over_of("ttft"), both.known("ttft")) == (3, 6)
    last = (
        '{"done": true, "valid": false, "n": 9, "over_limit": {"ttft": 3}, "percentiles": {"p99": 2}, "seconds": 6.5}'
    )
    assert parse_line(last, 2) == Final(valid=False, n=9, over={"ttft": 3}, seconds=6.5, percentiles={"p99": 2})
    assert parse_line(last.replace("false", "0"), 2) == parse_line(last, 2)
    assert parse_line("  \n", 3) is None
    assert parse_line('{"event": "start", "target_qps": 30}', 1) is None


def test_queries_may_be_counted_as_soon_as_they_are_over() -> None:
    """More over a limit than have ended are in flight; no more than were issued."""
    line = '{"t_s": 5, "issued": 90, "completed": 50, "over_limit": {"ttft": 58, "tpot": 3}}'
    early = parse_line(line, 1)
    assert early == Sample(5.0, 90, 50, {"ttft": 50, "tpot": 3}, {"ttft": 8}, {"ttft": 8})
    assert isinstance(early, Sample)
    check_order(None, early)
    assert (early.over_of("ttft"), early.known("ttft"), early.over_of("tpot")) == (58, 58, 3)
    later = Sample(6.0, 110, 70, {"ttft": 60, "tpot": 3})
    check_order(early, later)
    check_kept(early, later.over, "at 6 s it says")
    wrong = parse_line(line.replace("58", "91"), 1)
    assert isinstance(wrong, Sample)
    with pytest.raises(ProbeFault, match="91 over ttft of 50 completed"):
        check_order(None, wrong)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (
            '{"t_s": 5, "issued": 9, "issued": 2, "completed": 1, "over_limit": {}}',
            'line 4 of its stdout: the key "issued" stands there twice: ',
        ),
        ("Loading model ...", "line 4 of its stdout is no JSON: 'Loading model ...'"),
        ("[1]", "is no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ('{"t_s": 1e308, "issued": 2, "completed": 1, "over_limit": {}}', "t_s is no time"),
        ('{"t_s": 5, "issued": 1' + "0" * 400 + ', "completed": 1, "over_limit": {}}', "issued is no count"),
        ("null", "is no JSON object"),
        ('{"t_s": 5, "issued": 2, "completed": 1}', "lacks 'over_limit'"),
        ('{"t_s": NaN, "issued": 2, "completed": 1, "over_limit": {}}', "t_s is no time"),
        ('{"t_s": true, "issued": 2, "completed": 1, "over_limit": {}}', "t_s is no time"),
        ('{"t_s": 5, "issued": -2, "completed": 1, "over_limit": {}}', "issued is no count"),
        ('{"t_s": 5, "issued": 2, "completed": 1.5, "over_limit": {}}', "completed is no count"),
        ('{"t_s": 5, "issued": 2, "completed": 1, "over_limit": 3}', "over_limit is no object"),
        ('{"t_s": 5, "issued": 2, "completed": 1, "over_limit": {"ttft": "3"}}', "over_limit of ttft is no count"),
        (
            '{"t_s": 5, "issued": 2, "completed": 1, "over_limit": {}, "over_in_flight": 3}',
            "over_in_flight is no object",
        ),
        ('{"done": true, "valid": "yes", "n": 2, "over_limit": {}, "seconds": 5}', "valid is neither true nor false"),
        ('{"done": true, "valid": true, "n": 2, "over_limit": {}}', "lacks 'seconds'"),
    ],
)
def test_faults_are_named(line: str, named: str) -> None:
    with pytest.raises(ProbeFault) as found:
        parse_line(line, 4)
    assert named in str(found.value)


@pytest.mark.parametrize(
    "now", [Sample(4.0, 9, 9, {"a": 1}), Sample(6.0, 7, 7, {"a": 1}), Sample(6.0, 9, 7, {"a": 1}), Sample(6.0, 9, 9)]
)
def test_a_stream_does_not_go_back(now: Sample) -> None:
    before = Sample(5.0, 8, 8, {"a": 1})
    check_order(None, now)
    check_order(before, Sample(5.0, 8, 8, {"a": 1}))
    with pytest.raises(ProbeFault, match="goes back"):
        check_order(before, now)


@pytest.mark.parametrize(
    "now",
    [
        Sample(5.0, 8, 6, {"a": 1}, {"a": 3}, {"a": 3}),
        Sample(5.0, 8, 6, {"a": 1}, {"a": 2}, {"a": 1}),
        Sample(5.0, 8, 6, {"a": 1}, {"b": 1}, {"b": 1}),
    ],
)
def test_no_more_is_known_of_queries_in_flight_than_there_are(now: Sample) -> None:
    check_order(None, Sample(5.0, 8, 6, {"a": 1}, {"a": 2}, {"a": 2}))
    with pytest.raises(ProbeFault, match="in flight"):
        check_order(None, now)


def test_what_is_over_however_it_ends_stays_over() -> None:
    before = Sample(5.0, 80, 60, {"a": 1, "b": 0}, {"a": 12}, {"a": 12})
    check_kept(before, {"a": 13, "b": 0}, "at 6 s it says")
    with pytest.raises(ProbeFault, match="at 6 s it says 12 over a; at 5 s it said 13, 12 of them in flight"):
        check_kept(before, {"a": 12, "b": 0}, "at 6 s it says")
    with pytest.raises(ProbeFault, match="its last line says 0 over a"):
        check_kept(before, {"b": 0}, "its last line says")

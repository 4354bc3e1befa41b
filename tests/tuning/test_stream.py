"""Lines of a probe's stream: what is taken, and how each fault is named."""

from __future__ import annotations

import pytest

from dynamo_mlperf.tuning.probes import Final, Sample
from dynamo_mlperf.tuning.stream import ProbeFault, check_order, parse_line


def test_lines_as_agreed() -> None:
    line = '{"t_s": 5, "issued": 200, "completed": 190.0, "over_limit": {"ttft": 1}, "more": "is left alone"}'
    assert parse_line(line, 1) == Sample(5.0, 200, 190, {"ttft": 1})
    last = (
        '{"done": true, "valid": false, "n": 9, "over_limit": {"ttft": 3}, "percentiles": {"p99": 2}, "seconds": 6.5}'
    )
    assert parse_line(last, 2) == Final(valid=False, n=9, over={"ttft": 3}, seconds=6.5, percentiles={"p99": 2})
    assert parse_line("  \n", 3) is None


@pytest.mark.parametrize(
    ("line", "named"),
    [
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
        ('{"done": true, "valid": 1, "n": 2, "over_limit": {}, "seconds": 5}', "valid is neither true nor false"),
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

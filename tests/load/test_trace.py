"""LoadGen's trace: latencies from the scheduled time, and whatever else is in it passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.load.trace import TRACE, traced_latencies_ms

TEXT = """\
{"traceEvents":[
{"name":"Scheduling","ph":"X","pid":1,"tid":1,"ts":94.291,"dur":0.060,"args":{}},
{"name":"Token_Latency","ph": "C","pid":1,"ts":94.130,"args":{ "issue_delay":1000000,"issue_to_done":4000000}},
{"name":"Latency","ph": "C","pid":1,"ts":94.130,"args":{ "issue_delay":1000000,"issue_to_done":9000000}},
{"name":"Sample","cat":"default","ph":"b","pid":1,"id":0,"ts":94.130,"args":{"sample_seq":0,"issue_start_ns":191}},
{"name":"Latency","ph": "C","pid":1,"ts":95.130,"args":{ "issue_delay":-500000,"issue_to_done":3500000}},
{"name":"LogDetail","ph":"X","pid":1,"tid":2,"ts":9763.603,"dur":12.158,"args":{"key":""loadgen_version""}},
"""


def test_latencies_count_from_the_schedule(tmp_path: Path) -> None:
    (tmp_path / TRACE).write_text(TEXT)
    found = traced_latencies_ms(tmp_path / TRACE)
    assert {name: values.tolist() for name, values in found.items()} == {"ttft": [5.0], "end_to_end": [3.0, 10.0]}


def test_no_trace_has_no_latencies(tmp_path: Path) -> None:
    assert traced_latencies_ms(tmp_path / TRACE) == {}
    (tmp_path / TRACE).write_text("")
    assert traced_latencies_ms(tmp_path / TRACE) == {}


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / TRACE).open("wb") as out:
        out.write(TEXT.encode())
        out.truncate(1_000_000_000_000)
    with pytest.raises(ValueError, match="has a line of 1 MB and more"):
        traced_latencies_ms(tmp_path / TRACE)

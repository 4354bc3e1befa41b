"""What a running probe tells: its stream on disk, when it is stopped, and what its verdict says to the search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynamo_mlperf.job.probe import Seen, final_of
from dynamo_mlperf.record import ConstraintLatency, Reason, Verdict
from dynamo_mlperf.serving.gauges import above, parse_gauges
from dynamo_mlperf.tuning.probes import Probe, ProbeRecord
from dynamo_mlperf.tuning.progress import GO_ON
from dynamo_mlperf.tuning.progress import Verdict as Look

PROBE = Probe(40.0, 600.0, 600.0, must_finish=False, purpose="to confirm")
PAGE = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 1
vllm:kv_cache_usage_perc{engine="0"} 0.25
dynamo_component_inflight_requests{dynamo_endpoint="generate"} 3
dynamo_component_inflight_requests{dynamo_endpoint="clear_kv_blocks"} 9
"""


def _progress(t_s: float, completed: int, over: int, failed: int = 0, late: int = 0) -> dict[str, Any]:
    return {
        "t_s": t_s,
        "issued": completed + 5,
        "completed": completed,
        "over": {"ttft": over},
        "over_in_flight": {"ttft": 2},
        "known_in_flight": {"ttft": 4},
        "failed": failed,
        "failed_late": late,
        "first_failure": "HTTP 500" if failed else "",
    }


def test_each_new_progress_is_a_line_and_asks_the_search(tmp_path: Path) -> None:
    asked: list[ProbeRecord] = []

    def look(record: ProbeRecord) -> Look:
        asked.append(record)
        return GO_ON if len(asked) < 3 else Look("cannot pass", "too many")

    seen = Seen(PROBE, tmp_path, 12.0, look)
    assert not seen.take(_progress(1.0, 40, 0))
    assert not seen.take(_progress(1.0, 40, 0))  # the file has not changed yet
    assert not seen.take(_progress(2.0, 80, 1, failed=1, late=1))  # one that timed out is over its limit, no more
    assert seen.take(_progress(3.0, 120, 9))
    assert (len(asked), seen.record.ended, seen.record.begin_s) == (3, "cannot pass", 12.0)
    lines = [json.loads(line) for line in (tmp_path / "stream.jsonl").read_text().splitlines()]
    assert [(line["t_s"], line["completed"], line["over_limit"]) for line in lines] == [
        (1.0, 40, {"ttft": 0}),
        (2.0, 80, {"ttft": 1}),
        (3.0, 120, {"ttft": 9}),
    ]


def test_what_loadgen_has_generated_and_a_claim_that_is_taken_back(tmp_path: Path) -> None:
    """A client that was held up calls queries over that are not: no fault of the probe, and the next line is right."""
    seen = Seen(PROBE, tmp_path, 0.0, lambda _record: GO_ON)
    assert not seen.take(_progress(1.0, 40, 0))
    assert seen.record.generated is None
    held_up = {"over_in_flight": {"ttft": 5}, "known_in_flight": {"ttft": 5}, "generated_queries": 32_000}
    assert not seen.take(_progress(2.0, 80, 0) | held_up)
    assert not seen.take(_progress(3.0, 120, 0) | {"generated_queries": 32_000})
    assert [sample.over_of("ttft") for sample in seen.record.samples] == [2, 5, 2]
    assert seen.record.generated == 32_000
    lines = [json.loads(line) for line in (tmp_path / "stream.jsonl").read_text().splitlines()]
    assert [line["generated"] for line in lines] == [None, 32_000, 32_000]


def test_a_request_that_failed_for_another_reason_ends_the_probe(tmp_path: Path) -> None:
    seen = Seen(PROBE, tmp_path, 0.0, lambda _record: GO_ON)
    assert seen.take(_progress(1.0, 40, 1, failed=3, late=1))
    assert (seen.record.ended, seen.record.refused) == ("not valid", "2 failed requests: HTTP 500")


def test_the_verdict_of_a_whole_run_becomes_its_last_line() -> None:
    latency = ConstraintLatency(1.0, 1.0, None, 2.0, 0.99, over_limit=7, over_limit_allowed=5)
    reason = Reason("failed requests", "0", "1", "look")
    verdict = Verdict(
        "INVALID",
        "official",
        "b",
        "Server",
        "d",
        (reason,),
        requests=900,
        duration_s=601.0,
        latency_p99_ms={"ttft": latency},
    )
    final = final_of(verdict)
    assert (final.valid, final.n, final.over, final.seconds) == (False, 900, {"ttft": 7}, 601.0)
    assert final.reasons == (reason.text(),)


def test_gauges_are_summed_and_held_against_their_baseline() -> None:
    now = parse_gauges(PAGE)
    assert now == {"running": 3.0, "kv_share": 0.25, "in_flight": 3.0}
    assert above(now, {"running": 3.0, "kv_share": 0.249}, 0.002) == {"in_flight": 3.0}
    assert above(now, {"running": 3.0, "in_flight": 3.0, "kv_share": 0.2}, 0.002) == {"kv_share": 0.25}

"""Counters from real metric names, and what their differences prove."""

from __future__ import annotations

from collections import Counter

import pytest

from dynamo_mlperf.serving.counters import difference, parse_counters, transfer_evidence, worker_id

LABELS = 'dynamo_component="backend",dynamo_endpoint="generate",engine="0",model="tiny",worker_id="2040a228194a130a"'
DECODE_PAGE = f"""# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{{{LABELS},source="local_compute"}} 0.0
vllm:prompt_tokens_by_source_total{{{LABELS},source="external_kv_transfer"}} 162.0
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{{{LABELS},le="1.0"}} 0.0
vllm:nixl_bytes_transferred_count{{{LABELS}}} 1.0
vllm:nixl_bytes_transferred_sum{{{LABELS}}} 1.048576e+06
# TYPE vllm:request_success_total counter
vllm:request_success_total{{{LABELS},finished_reason="length"}} 1.0
vllm:request_success_total{{{LABELS},finished_reason="stop"}} 2.0
vllm:request_success_total{{{LABELS},finished_reason="abort"}} 7.0
# TYPE dynamo_component_requests_total counter
dynamo_component_requests_total{{{LABELS}}} 3
"""


def test_a_page_is_read_by_name_and_label() -> None:
    counts = parse_counters(DECODE_PAGE)
    assert counts["external_tokens"] == 162
    assert counts["local_tokens"] == 0
    assert counts["kv_bytes"] == 1048576
    assert counts["transfers"] == 1
    assert counts["finished"] == 3, "an aborted request has not finished"
    assert counts["served"] == 3
    assert worker_id(DECODE_PAGE) == 0x2040A228194A130A


def test_a_page_without_a_worker_has_no_id() -> None:
    assert worker_id("# TYPE up gauge\nup 1\n") is None


def test_difference_counts_what_came_between() -> None:
    assert difference(Counter(a=1, b=2), Counter(a=5, c=1)) == {"a": 4, "b": -2, "c": 1}


def decode(**counts: int) -> dict[str, Counter[str]]:
    return {"prefill": Counter(finished=20, served=20), "decode": Counter({"finished": 20, "served": 20, **counts})}


@pytest.mark.parametrize(
    ("counts", "remote"),
    [
        ({"external_tokens": 2000}, 20),
        ({"external_tokens": 0, "local_tokens": 2000}, 0),
        ({"external_tokens": 1999, "local_tokens": 1}, 19),
        ({"external_tokens": 1900, "cached_tokens": 100}, 19),
    ],
)
def test_remote_prefills_never_say_more_than_happened(counts: dict[str, int], remote: int) -> None:
    evidence = transfer_evidence("vllm", decode(**counts))
    assert evidence.remote_prefills == remote
    assert evidence.proof == "kv-counters"
    assert evidence.prompt_tokens == 2000


def test_remote_prefills_need_prefill_workers_that_prefilled() -> None:
    roles = decode(external_tokens=2000)
    roles["prefill"]["finished"] = 7
    assert transfer_evidence("vllm", roles).remote_prefills == 7


def test_failures_of_both_sides_count() -> None:
    roles = decode(external_tokens=2000, failed_transfers=2, failed_notifications=1)
    roles["prefill"]["expired_transfers"] = 4
    assert transfer_evidence("vllm", roles).failed_transfers == 7


def test_without_counters_there_is_no_proof() -> None:
    assert transfer_evidence("vllm", decode()).proof == "none"


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_engines_whose_counters_prove_nothing_say_so_but_count_their_requests(engine: str) -> None:
    roles = {"prefill": Counter(served=20), "decode": Counter(served=20)}
    evidence = transfer_evidence(engine, roles)
    assert (evidence.disaggregated, evidence.proof, evidence.requests, evidence.remote_prefills) == (
        True,
        "none",
        20,
        0,
    )


def test_the_mocker_proves_routing_only() -> None:
    evidence = transfer_evidence("mocker", decode())
    assert (evidence.proof, evidence.remote_prefills, evidence.kv_bytes) == ("routing only", 20, 0)


def test_aggregated_workers_transfer_nothing() -> None:
    evidence = transfer_evidence("vllm", {"aggregated": Counter(finished=5, prompt_tokens=50, local_tokens=50)})
    assert (evidence.disaggregated, evidence.requests, evidence.remote_prefills) == (False, 5, 0)

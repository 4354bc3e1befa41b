"""What the readiness gate and the canary read out of answers, by the texts that real Dynamo 1.6.1 sends."""

from __future__ import annotations

import json

import pytest

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.process.allocation import Node
from dynamo_mlperf.serving.canary import CANARY_TOKENS, greedy
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.errands import answer_text
from dynamo_mlperf.serving.http import Response
from dynamo_mlperf.serving.loading import shortened
from dynamo_mlperf.serving.readiness import (
    Gate,
    check_addresses,
    directed_headers,
    listed_ids,
    serves_requests,
    worker_pairs,
)
from dynamo_mlperf.topology.plan import Slot, Worker, make_plan
from dynamo_mlperf.topology.spec import parse_topology
from tests.topology.topology_texts import role, topology_text

HEALTH = {
    "status": "healthy",
    "instances": [
        {"component": "backend", "endpoint": "clear_kv_blocks", "instance_id": 11},
        {
            "component": "backend",
            "endpoint": "generate",
            "instance_id": 11,
            "transport": {"tcp": "10.0.0.7:34605/b/t/backend/generate"},
        },
        {"component": "prefill", "endpoint": "generate", "instance_id": 2324035700829852424},
    ],
}


def response(body: object, status: int = 200, problem: str = "") -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, raw, problem, 0.1)


def worker(role: str, index: int) -> Worker:
    return Worker(role, index, (Slot(0, index),), 4, 10)  # type: ignore[arg-type]


def events(*pieces: object) -> bytes:
    return b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces) + b"data: [DONE]\n\n"


def chunk(text: str | None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]}


def test_only_generate_endpoints_count_as_workers() -> None:
    assert listed_ids(response(HEALTH)) == {11: "10.0.0.7:34605", 2324035700829852424: ""}
    assert listed_ids(response(HEALTH, status=503)) == {}


@pytest.mark.parametrize(
    ("body", "status", "ready"),
    [
        ({"status": "ready", "endpoints": {"generate": "ready"}}, 200, True),
        ({"status": "notready", "endpoints": {"generate": "ready"}}, 503, True),
        ({"status": "notready", "endpoints": {"generate": "notready"}}, 503, False),
        ({"status": "ready", "endpoints": {}}, 200, False),
        (b"<html>", 200, False),
        (b"[]", 200, False),
    ],
)
def test_a_worker_is_healthy_when_its_generate_endpoint_is(body: object, status: int, ready: bool) -> None:  # noqa: FBT001
    assert serves_requests(response(body, status)) is ready


def test_no_answer_is_not_healthy() -> None:
    assert serves_requests(response(b"", 0, "Connection refused")) is False


def test_pairs_name_every_worker() -> None:
    workers = [
        worker("prefill", 0),
        worker("prefill", 1),
        worker("prefill", 2),
        worker("decode", 0),
        worker("decode", 1),
    ]
    pairs = worker_pairs(workers)
    assert pairs == [("prefill-0", "decode-0"), ("prefill-1", "decode-1"), ("prefill-2", "decode-0")]
    assert {name for pair in pairs for name in pair} == {one.name for one in workers}
    assert worker_pairs([worker("aggregated", 0), worker("aggregated", 1)]) == [
        (None, "aggregated-0"),
        (None, "aggregated-1"),
    ]


def test_a_disaggregated_request_names_both_workers() -> None:
    ids = {"prefill-0": 7, "decode-0": 9}
    assert directed_headers(ids, "prefill-0", "decode-0") == {
        "x-dynamo-worker-instance-id": "9",
        "x-dynamo-prefill-instance-id": "7",
    }
    assert directed_headers(ids, None, "decode-0") == {"x-dynamo-worker-instance-id": "9"}


TOPOLOGY = topology_text(nodes=2, gpus=1, engine="mocker", prefill=role(1), decode=role(1))


def gate_of(lost: set[str]) -> Gate:
    nodes = tuple(Node(position, f"n{position}", f"10.0.0.{position}", "eth0", "d") for position in range(2))
    endpoints = Endpoints(make_plan(parse_topology(TOPOLOGY)), nodes, 20000, "ns", "m")
    return Gate(None, endpoints, None, "mocker", print, 1.0, 1.0, lost)  # type: ignore[arg-type]


def test_a_worker_that_advertises_another_address_than_its_own_is_named() -> None:
    ids = {"prefill-0": 7, "decode-0": 9}
    check_addresses(gate_of(set()), ids, {7: "10.0.0.0:4000", 9: "10.0.0.1:4000"})
    check_addresses(gate_of(set()), ids, {7: "10.0.0.0:4000"})
    with pytest.raises(ServingError, match=r"decode-0 advertises 127.0.0.1:4000, its node's address is 10.0.0.1"):
        check_addresses(gate_of(set()), ids, {7: "10.0.0.0:4000", 9: "127.0.0.1:4000"})


def test_lost_workers_do_not_count() -> None:
    assert [worker.name for worker in gate_of({"prefill-0"}).workers] == ["decode-0"]


def test_long_lists_are_shortened() -> None:
    assert shortened(["a", "b"]) == "a, b"
    assert shortened(list("abcdef")) == "a, b, c, d ..."


def test_an_answer_is_put_together() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    assert answer_text(response(events(chunk(None), chunk("Hel"), chunk("lo"), usage)), "decode-0") == "Hello"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (response(b"busy", 503), "HTTP 503: busy"),
        (response(b"", 0, "Connection refused"), "Connection refused"),
        (response(events(chunk("Hel"), {"error": {"message": "KV lost"}})), "KV lost"),
        (response(events(chunk(None), {"choices": [], "usage": {"completion_tokens": 0}})), "without a single token"),
    ],
)
def test_an_answer_that_is_none_says_why(answer: Response, said: str) -> None:
    with pytest.raises(ServingError, match=said) as raised:
        answer_text(answer, "decode-0")
    assert raised.value.what.startswith("decode-0")


def test_the_canary_is_greedy_and_short() -> None:
    body = greedy(b'{"model": "m", "messages": [], "max_tokens": 150, "stream": true}')
    assert json.loads(body) == {
        "model": "m",
        "messages": [],
        "max_tokens": CANARY_TOKENS,
        "stream": True,
        "temperature": 0.0,
    }

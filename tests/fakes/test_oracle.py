"""The oracle answers what its script and the request's cues say, to any client, and records what it sent."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import pytest

from dynamo_mlperf.load.bodies import chat_body
from tests.fakes.oracle import FIRST_TOKEN_ID, Oracle, Script


def ask(oracle: Oracle, text: str, *, token_ids: bool = False) -> tuple[int, list[dict[str, Any]], bytes]:
    """Status, events without [DONE], and the whole body, by a client that is not ours."""
    body = chat_body("m", [{"role": "user", "content": text}], 9, token_ids=token_ids)
    with closing(http.client.HTTPConnection("127.0.0.1", oracle.port, timeout=60)) as connection:
        connection.request("POST", "/v1/chat/completions", body)
        with connection.getresponse() as answer:
            raw = answer.read()
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ") and line != b"data: [DONE]"]
    return answer.status, [json.loads(line) for line in lines], raw


def contents(events: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def test_script_decides_tokens_and_usage() -> None:
    with Oracle(Script(ttft_ms=1, tpot_ms=0, tokens=3, prompt_tokens=11)) as oracle:
        status, events, raw = ask(oracle, "sample 5")
    assert (status, contents(events)) == (200, "ü€ " * 3)
    assert events[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    assert raw.endswith(b"data: [DONE]\n\n")
    assert oracle.truth().sample.tolist() == [5]


def test_cue_changes_one_answer_and_nothing_comes_early() -> None:
    with Oracle(Script(tokens=3)) as oracle:
        _, events, _ = ask(oracle, "sample 1 cue:tokens=6,ttft_ms=40,tpot_ms=5,stall_ms=30")
        ask(oracle, "sample 2")
    assert contents(events) == "ü€ " * 6
    assert events[-1]["usage"]["completion_tokens"] == 6
    truth = oracle.truth()
    assert truth.tokens.tolist() == [6, 3]
    assert truth.ttft_ms()[0] >= 40
    assert truth.tpot_ms()[0] >= (5 * 5 + 30) / 5


def test_ids_come_with_the_tokens_where_they_are_asked_for() -> None:
    with Oracle(Script(tokens=3)) as oracle:
        _, events, _ = ask(oracle, "hello", token_ids=True)
        _, without, _ = ask(oracle, "hello")
    ids = [number for event in events for number in event.get("nvext", {}).get("completion_token_ids", [])]
    assert ids == [FIRST_TOKEN_ID, FIRST_TOKEN_ID + 1, FIRST_TOKEN_ID + 2]
    assert not any("nvext" in event for event in without)


def test_a_request_in_pieces_is_one_request() -> None:
    body = chat_body("m", [{"role": "user", "content": "x" * 200_000}], 9)
    request = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with Oracle(Script(ttft_ms=0, tokens=1)) as oracle, socket.create_connection(("127.0.0.1", oracle.port)) as client:
        for at in (0, 10, 30, 50, 60, 100_000):
            following = {0: 10, 10: 30, 30: 50, 50: 60, 60: 100_000}.get(at, len(request))
            client.sendall(request[at:following])
        seen = b""
        while not seen.endswith(b"0\r\n\r\n"):
            seen += client.recv(65_536)
    assert (oracle.stats().requests, oracle.stats().answers) == (1, 1)


@pytest.mark.parametrize("fault", ["drop", "close", "error", "error-event"])
def test_what_breaks_off_is_no_answer(fault: str) -> None:
    with Oracle() as oracle:
        try:
            _, _, raw = ask(oracle, f"fault={fault}")
        except (http.client.HTTPException, ConnectionError):
            raw = b""
    stats = oracle.stats()
    assert (stats.requests, stats.answers, stats.in_flight) == (1, 0, 0)
    assert (b"the oracle fails on cue" in raw) is fault.startswith("error")
    assert len(oracle.truth().sample) == 0


def test_stats_and_truth_are_told_over_http() -> None:
    with Oracle(Script(tokens=2)) as oracle:
        ask(oracle, "sample 3")
        with urlopen(f"http://127.0.0.1:{oracle.port}/stats") as answer:
            stats = json.load(answer)
        with urlopen(f"http://127.0.0.1:{oracle.port}/truth") as answer:
            truth = json.load(answer)
    assert (stats["requests"], stats["answers"]) == (1, 1)
    assert (truth["sample"], truth["tokens"]) == ([3], [2])
    assert truth["arrived_ns"][0] < truth["first_ns"][0] < truth["last_ns"][0]

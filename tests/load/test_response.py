"""One streamed answer, byte by byte: framing, first token, usage, errors, ends."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.load.response import Response
from tests.load.both_forms import plain

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
TEXT = {"choices": [{"index": 0, "delta": {"content": "schön €"}}], "usage": None}
STOP = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 17, "completion_tokens": 3}}
DONE = b"data: [DONE]\n\n"


def sse(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n" for value in values)


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def read(*pieces: bytes, keep_text: bool = False) -> Response:
    """Feed pieces at the times 1, 2, 3, ... ns."""
    response = Response(keep_text=keep_text)
    for at, piece in enumerate(pieces, start=1):
        response.feed(piece, at)
    return response


GOOD = HEAD + chunked(sse(ROLE), sse(TEXT), sse(TEXT, TEXT), sse(STOP), sse(USAGE), DONE)


def outcome(response: Response) -> tuple[object, ...]:
    return (
        response.done,
        response.ended,
        response.error,
        response.prompt_tokens,
        response.output_tokens,
        response.keep_alive,
        response.text,
    )


WHOLE = (True, True, "", 17, 3, True, "schön €" * 3)


@pytest.mark.parametrize("at", range(1, len(GOOD)))
def test_split_at_every_byte(at: int) -> None:
    assert outcome(read(GOOD[:at], GOOD[at:], keep_text=True)) == WHOLE


def test_one_byte_at_a_time() -> None:
    response = read(*(bytes([byte]) for byte in GOOD), keep_text=True)
    assert outcome(response) == WHOLE
    first_text = GOOD.index(b"\n", GOOD.index(b"sch"))
    assert response.first_ns == first_text + 1


@given(cuts=st.lists(st.integers(0, len(GOOD)), max_size=12))
def test_split_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(GOOD)]
    pieces = [GOOD[start:end] for start, end in pairwise(edges)]
    assert outcome(read(*pieces, keep_text=True)) == WHOLE


@pytest.mark.parametrize("size", range(1, 60))
def test_chunks_that_cut_events_and_characters(size: int) -> None:
    body = sse(ROLE, TEXT, TEXT, TEXT, STOP, USAGE) + DONE
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert outcome(read(HEAD + chunked(*pieces), keep_text=True)) == WHOLE


def test_role_only_chunk_is_no_token() -> None:
    response = read(HEAD, chunked(sse(ROLE))[:-5])
    assert response.first_ns == 0
    response.feed(chunked(sse(TEXT)), 9)
    assert response.first_ns == 9


@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning"])
def test_any_generated_text_is_a_token(key: str) -> None:
    assert read(HEAD, chunked(sse({"choices": [{"delta": {key: "x"}}]}))[:-5]).first_ns == 2


def test_tokens_without_text_count_where_they_finish() -> None:
    response = read(HEAD, chunked(sse(ROLE))[:-5], chunked(sse(STOP))[:-5], chunked(sse(USAGE), DONE))
    assert (response.error, response.first_ns, response.output_tokens) == ("", 3, 3)


def test_done_is_enough_and_the_end_comes_later() -> None:
    response = read(HEAD, chunked(sse(TEXT, USAGE), DONE)[:-5])
    assert (response.done, response.ended, response.error) == (True, False, "")
    response.feed(b"0\r\n\r\n", 9)
    assert response.ended


def test_end_of_body_is_enough_without_done() -> None:
    response = read(HEAD + chunked(sse(TEXT, USAGE)))
    assert (response.done, response.ended, response.error) == (True, True, "")


def test_last_event_without_a_newline() -> None:
    assert outcome(read(HEAD + chunked(sse(TEXT, TEXT, TEXT), sse(USAGE).rstrip()), keep_text=True)) == WHOLE


def test_text_that_looks_like_the_end_is_text() -> None:
    sly = {"choices": [{"delta": {"content": '[DONE] "usage" "error"'}}]}
    response = read(HEAD + chunked(sse(TEXT, sly))[:-5])
    assert (response.done, response.error) == (False, "")
    response.feed(chunked(sse(USAGE), DONE), 2)
    assert (response.done, response.error, response.output_tokens) == (True, "", 3)


def test_event_in_several_lines_with_comments_and_crlf() -> None:
    body = b": keep-alive\n\n" + sse(TEXT, USAGE).replace(b"\n", b"\r\n") + b"data:[DONE]\r\n\r\n"
    assert (read(HEAD + chunked(body)).error, read(HEAD + chunked(body)).done) == ("", True)


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (HEAD + chunked(sse(TEXT, {"error": {"message": "no KV"}})), "error in the stream"),
        (HEAD + chunked(sse(TEXT, {"object": "error", "message": "no KV"})), "error in the stream"),
        (HEAD + chunked(sse(TEXT) + b'event: error\n: "no KV"\n\n'), 'error in the stream: "no KV"'),
        (HEAD + chunked(sse(TEXT) + b"event: error\ndata: no KV\n\n"), "error in the stream: no KV"),
        (HEAD + chunked(sse(ROLE, STOP, {"choices": [], "usage": {"completion_tokens": 0}}), DONE), "zero tokens"),
        (HEAD + chunked(sse(TEXT), DONE), "without usage"),
        (HEAD + chunked(sse(TEXT)), "without usage"),
        (HEAD + chunked(), "without an event stream"),
        (HEAD + chunked(b'{"error": "x"}'), "without an event stream: {"),
        (HEAD + chunked(b"data: {nonsense\n\n"), "no chat completion chunk"),
        (HEAD + chunked(b"data: [1]\n\n"), "no chat completion chunk"),
        (HEAD + chunked(sse({"choices": ["x"]})), "no chat completion chunk"),
        (HEAD + b"zz\r\n", "size is 'zz'"),
        (HEAD + b"-5\r\n", "size is '-5'"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 503: busy"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP 404"),
        (b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"bad", b"ly"), "HTTP 500: badly"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP response"),
    ],
)
def test_failures_have_a_cause(raw: bytes, cause: str) -> None:
    assert cause in read(raw).error
    byte_by_byte = read(*(bytes([byte]) for byte in raw))
    assert cause in byte_by_byte.error
    assert byte_by_byte.done


@pytest.mark.parametrize("why", ["abort", "error", "cancelled", "timeout"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
@pytest.mark.parametrize("skims", [True, False])
def test_an_answer_that_the_engine_gave_up_has_failed(why: str, separators: tuple[str, str], *, skims: bool) -> None:
    finish = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": why}]}
    last = b"data: " + json.dumps(finish, separators=separators).encode() + b"\n\n"
    pieces = [sse(ROLE), sse(TEXT), sse(TEXT), last, sse(USAGE), DONE]
    reads = [HEAD, *(chunked(piece)[:-5] for piece in pieces), b"0\r\n\r\n"] if skims else [HEAD + chunked(*pieces)]
    response = Response()
    for at, data in enumerate(reads, start=1):
        if not (response.skims and plain(data)):
            response.feed(data, at)
    assert (response.done, response.ended) == (True, True)
    assert response.error.startswith("the engine gave the request up: ")
    assert f'"{why}"' in response.error


def test_head_without_end_is_cut_off() -> None:
    assert "64 KiB" in read(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000).error


def test_interim_answers_are_passed_over() -> None:
    assert outcome(read(b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD, keep_text=True)) == WHOLE


def test_known_length() -> None:
    body = sse(TEXT, TEXT, TEXT, USAGE) + DONE
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    assert outcome(read(raw, keep_text=True)) == WHOLE
    assert outcome(read(*(bytes([byte]) for byte in raw), keep_text=True)) == WHOLE


def test_body_until_the_connection_closes() -> None:
    response = read(b"HTTP/1.1 200 OK\r\n\r\n", sse(TEXT, USAGE))
    assert not response.done
    response.connection_closed(9)
    assert (response.done, response.error, response.keep_alive) == (True, "", False)


def test_connection_lost_inside_the_answer() -> None:
    response = read(HEAD, chunked(sse(TEXT), sse(TEXT))[:-12])
    response.connection_closed(9, "Connection reset by peer")
    assert response.done
    assert "connection lost after" in response.error
    assert "Connection reset by peer" in response.error


def test_connection_lost_after_done_changes_nothing() -> None:
    response = read(HEAD, chunked(sse(TEXT, USAGE), DONE)[:-5])
    response.connection_closed(9)
    assert (response.error, response.output_tokens) == ("", 3)


@pytest.mark.parametrize(
    ("head", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    ],
)
def test_whether_the_connection_can_be_used_again(*, head: bytes, keeps: bool) -> None:
    assert read(head + chunked(sse(TEXT, USAGE), DONE)).keep_alive is keeps


def test_bytes_after_the_end_spoil_the_connection() -> None:
    response = read(GOOD + b"x")
    assert (response.error, response.keep_alive) == ("", False)


@given(raw=st.binary(max_size=400))
def test_garbage_never_raises(raw: bytes) -> None:
    read(HEAD + raw)
    read(HEAD + chunked(b"data: " + raw + b"\n\n"))
    read(raw)


DYNAMO_IDS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "nvext": {"completion_token_ids": [1982]}},
    {"choices": [{"index": 0, "delta": {"content": "Nor"}}], "nvext": {"completion_token_ids": [1995, 1269]}},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "nvext": {"completion_token_ids": []}},
)
"""As Dynamo 1.6.1 sends them: a token whose text is not whole yet has an id and no content."""

VLLM_IDS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": [1, 2]},
    {"choices": [{"index": 0, "delta": {"content": "N"}, "token_ids": [1982]}]},
    {"choices": [{"index": 0, "delta": {"content": "or"}, "finish_reason": "stop", "token_ids": [1995, 1269]}]},
)


@pytest.mark.parametrize(("chunks", "first"), [(DYNAMO_IDS, 2), (VLLM_IDS, 3)])
def test_token_ids_are_kept_where_they_are_asked_for(chunks: tuple[dict[str, Any], ...], first: int) -> None:
    pieces = [HEAD, *(chunked(sse(chunk))[:-5] for chunk in chunks), chunked(sse(USAGE), DONE)]
    response = Response(keep_ids=True)
    for at, piece in enumerate(pieces, start=1):
        response.feed(piece, at)
    assert (response.error, response.first_ns) == ("", first)
    assert array("i", response.token_ids).tolist() == [1982, 1995, 1269]
    assert read(*pieces).token_ids == b""


def test_no_ids_where_they_were_asked_for_is_a_failure() -> None:
    response = Response(keep_ids=True)
    response.feed(GOOD, 1)
    assert "no token ids" in response.error

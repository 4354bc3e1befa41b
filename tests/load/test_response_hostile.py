"""Answers that no proper server gives: each fails its own request at most, and however it comes in, with one outcome."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_mlperf.load.channel import Event, Kind, pack_event
from dynamo_mlperf.load.response import Response
from tests.load.both_forms import plain
from tests.load.client_in_thread import ClientInThread
from tests.load.scripted_server import ScriptedServer

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _event(value: object) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def _token(content: object = "x", finish: str | None = None) -> bytes:
    return _event({"choices": [{"delta": {"content": content}, "finish_reason": finish}]})


def _usage(output: object, prompt: object = 17) -> bytes:
    return _event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


_REST = [_usage(3), _event(b"[DONE]")]


def _wire(*bodies: bytes, tail: bytes = b"0\r\n\r\n") -> bytes:
    return HEAD + b"".join(map(_chunk, bodies)) + tail


GOOD = _wire(_token(), *_REST)

ODD = {
    "fewer tokens than none": (_wire(_token(), _usage(-5)), "no chat completion chunk"),
    "fewer prompt tokens than none": (_wire(_token(), _usage(3, -1)), "no chat completion chunk"),
    "more tokens than a number holds": (_wire(_token(), _usage(2**32)), "no chat completion chunk"),
    "as many as none can be": (_wire(_token(), _usage(1e300)), "no chat completion chunk"),
    "JSON without end of depth": (_wire(_event(b"[" * 100_000)), "no chat completion chunk"),
    "JSON deep in its keys": (_wire(_event(b'{"a":' * 100_000)), "no chat completion chunk"),
    "content that is a list": (_wire(_token(["x"])), "no chat completion chunk"),
    "content that is a number": (_wire(_token(5)), "no chat completion chunk"),
    "a status of many digits": (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", "no HTTP response"),
    "a status that is none": (b"HTTP/1.1 2000 OK\r\n\r\n", "no HTTP response"),
    "a head of one word": (b"HTTP/1.1\r\n\r\n", "no HTTP response"),
    "a chunk size without end": (HEAD + b"0" * 70_000, "a chunk size of more than 64 KiB"),
    "a trailer without end": (HEAD + b"0\r\n" + b"x" * 70_000, "a trailer of more than 64 KiB"),
    "a reason spelled with spaces": (
        _wire(_token(), _token().replace(b'"finish_reason": null', b'"finish_reason" : "abort"'), *_REST),
        "the engine gave the request up",
    ),
}


@pytest.mark.parametrize("keep_text", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_fails_its_request_with_a_cause(name: str, *, keep_text: bool) -> None:
    wire, cause = ODD[name]
    response = Response(keep_text=keep_text)
    response.feed(wire, 1)
    assert cause in response.error
    assert response.done


def test_a_length_of_many_digits_is_read_to_the_end_of_the_connection() -> None:
    response = Response()
    body = _token() + b"".join(_REST)
    response.feed(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n" + body, 1)
    response.connection_closed(2)
    assert (response.error, response.output_tokens, response.keep_alive) == ("", 3, False)


@pytest.mark.parametrize(
    "tail", [b"zz\r\n", b"0" * 70_000, b"0\r\n" + b"x" * 70_000, b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"]
)
def test_what_follows_the_end_costs_the_connection_and_not_the_request(tail: bytes) -> None:
    wire = _wire(_token(), *_REST, tail=b"")
    for reads in ((wire, tail), (wire + tail,)):
        response = Response()
        for read in reads:
            response.feed(read, 1)
        assert (response.done, response.error, response.output_tokens, response.keep_alive) == (True, "", 3, False)


def test_a_client_survives_odd_answers_and_answers_for_each(tmp_path: Path) -> None:
    names = [*ODD, "good"]
    wires = {"good": GOOD, **{name: wire for name, (wire, _) in ODD.items()}}
    with ScriptedServer(wires) as server, ClientInThread(tmp_path, server.port, names) as client:
        client.issue(*((order, order % len(names)) for order in range(3 * len(names))))
        ended = {event.order: event for event in client.ended(3 * len(names))}
    for order, event in ended.items():
        name = names[order % len(names)]
        expected = (Kind.DONE, "") if name == "good" else (Kind.FAILED, ODD[name][1])
        assert event.kind == expected[0], (name, event)
        assert expected[1].encode() in event.tail, (name, event)


LINES = st.one_of(
    st.builds(_token, st.sampled_from(["x", "[DONE]", '"error"', "event: error", "\r\n", '"finish_reason":"stop"'])),
    st.builds(_token, st.just("x"), st.sampled_from(["stop", "abort", "ABORT", ""])),
    st.builds(_usage, st.sampled_from([3, 0, -5, 2**40, "5", None]), st.sampled_from([17, -1, 2**33])),
    st.sampled_from([b": ping\n\n", b"event: error\n", b"event:error\n", b"event: message\n", b"id: 5\n", b"data\n\n"]),
    st.sampled_from(
        [b"data:\n\n", b'data: {\ndata: "choices":[]}\n\n', b"\r\r", b"data: x\r\r", b"\xef\xbb\xbf", b"\0\n"]
    ),
    st.sampled_from([b'data:{"error":{}}\n\n', b'data: {"error": "x"}\n\n', b'data: {"object":"error"}\n\n']),
    st.sampled_from([b"data: [DONE]\n\n", b"data:[DONE]\n\n", b'data: {"\\u0065rror":"x"}\n\n']),
)
SPELLINGS = st.sampled_from([(b",", b":"), (b", ", b": "), (b" ,", b" : "), (b",", b":\t")])
TAILS = st.sampled_from([b"0\r\n\r\n", b"0\r\nX: 1\r\n\r\n", b"0;x\r\n\r\n", b"", b"zz\r\n", b"0\r\n\r\nHTTP/1.1 200"])


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """The chunks of an answer with its head and its tail, each as it is on the wire."""
    comma, colon = draw(SPELLINGS)
    lines = [_token(), *draw(st.lists(LINES, max_size=7)), *draw(st.sampled_from([[], _REST, _REST]))]
    lines = [line.replace(b'": ', b'"' + colon).replace(b'", "', b'"' + comma + b'"') for line in lines]
    if draw(st.booleans()):
        body = b"".join(lines)
        cuts = draw(st.lists(st.integers(1, len(body) - 1), max_size=8, unique=True))
        lines = [body[start:end] for start, end in pairwise([0, *sorted(cuts), len(body)])]
    size = draw(st.sampled_from([b"%x", b"%x", b"%X", b"%04x", b"%x;a=b", b" %x"]))
    return [HEAD, *(size % len(line) + b"\r\n" + line + b"\r\n" for line in lines), draw(TAILS)]


def _outcome(reads: list[bytes], *, passes_over: bool) -> tuple[object, ...]:
    response = Response()
    for read in filter(None, reads):
        if passes_over and response.skims and plain(read):
            response.received_bytes += len(read)
        else:
            response.feed(read, 1)
    response.connection_closed(1)
    kind = Kind.FAILED if response.error else Kind.DONE
    pack_event(Event(kind, 0, prompt_tokens=response.prompt_tokens, output_tokens=response.output_tokens))
    return response.error, response.ended, response.prompt_tokens, response.output_tokens, response.received_bytes


@settings(max_examples=300)
@given(stream=streams(), together=st.integers(1, 4), cuts=st.lists(st.integers(0, 1500), max_size=10))
def test_what_is_passed_over_and_how_it_is_cut_changes_no_outcome(
    stream: list[bytes], together: int, cuts: list[int]
) -> None:
    wire = b"".join(stream)
    whole = _outcome([wire], passes_over=False)
    chunks = [b"".join(stream[at : at + together]) for at in range(0, len(stream), together)]
    pieces = [wire[start:end] for start, end in pairwise([0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)])]
    for reads in (stream, chunks, pieces):
        assert _outcome(reads, passes_over=True) == _outcome(reads, passes_over=False) == whole

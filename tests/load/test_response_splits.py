"""Any stream, in any HTTP chunks, in any reads: the fast parser says what a slow one says that sees it whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo_mlperf.load.response import Response
from tests.load.both_forms import plain

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Outcome:
    """What a verdict needs of an answer; `first_at` is the byte that completes the first token."""

    first_at: int
    prompt_tokens: int
    output_tokens: int
    text: str

    @property
    def without_text(self) -> Outcome:
        """The same where no text is kept."""
        return replace(self, text="")


FAILED = Outcome(-1, 0, 0, "")


def reference(wire: bytes) -> Outcome:
    """A plain parser of a whole chunked answer: no state between reads, JSON of every event."""
    body = bytearray()
    at_wire: list[int] = []
    at = wire.index(b"\r\n\r\n") + 4
    while True:
        line = wire.index(b"\r\n", at)
        size = int(wire[at:line].split(b";")[0], 16)
        if size == 0:
            break
        body += wire[line + 2 : line + 2 + size]
        at_wire += range(line + 2, line + 2 + size)
        at = line + 2 + size + 2
    first_at = finish_at = usage = None
    text, error_event, at = "", False, 0
    for raw in bytes(body).split(b"\n"):
        end, at = at + len(raw), at + len(raw) + 1
        line_text = raw.strip()
        if line_text.startswith(b"event:"):
            error_event = line_text == b"event: error"
        elif error_event and line_text:
            return FAILED
        if not line_text.startswith(b"data:"):
            continue
        payload = line_text[5:].strip()
        if payload == b"[DONE]":
            break
        event = json.loads(payload)
        if "error" in event:
            return FAILED
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            content = choice["delta"].get("content") or ""
            text += content
            if content and first_at is None:
                first_at = at_wire[end]
            if choice.get("finish_reason") and finish_at is None:
                finish_at = at_wire[end]
    if usage is None or not usage["completion_tokens"]:
        return FAILED
    first_at = first_at or finish_at
    return Outcome(-1 if first_at is None else first_at, usage["prompt_tokens"], usage["completion_tokens"], text)


def fast(wire: bytes, cuts: list[int], *, keep_text: bool) -> Outcome:
    """Our parser, fed as a connection feeds it; the time of a read is the position of its last byte."""
    response = Response(keep_text=keep_text)
    for start, end in pairwise([0, *sorted(cut for cut in cuts if 0 < cut < len(wire)), len(wire)]):
        read = wire[start:end]
        if response.skims and plain(read):
            response.received_bytes += len(read)
        else:
            response.feed(read, end - 1)
    assert response.done
    assert response.received_bytes == len(wire)
    if response.error:
        return FAILED
    assert response.ended
    first_at = response.first_ns
    return Outcome(first_at, response.prompt_tokens, response.output_tokens, response.text)


def choice(content: str | None, finish: str | None = None, **more: object) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""} if content is None else {"content": content}
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


SLY = [
    "[DONE]",
    '"error"',
    "completion_tokens",
    "event: error",
    "0\r\n\r\n",
    "\r\n",
    "}\n\ndata: [DONE]\n\n",
    '"usage":{"',
]
TEXTS = st.one_of(st.sampled_from(["schön ", "€", " x", "𝄞", *SLY]), st.text(min_size=1, max_size=6))
USAGE = {"id": "c", "choices": [], "usage": {"prompt_tokens": 17, "completion_tokens": 3}}
MIDDLE = st.one_of(
    TEXTS.map(choice),
    TEXTS.map(lambda text: choice(text, usage=None)),
    TEXTS.map(lambda text: choice(text, nvext={"n": 1})),
)


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """A whole answer: role, tokens, an end of one kind or another, in chunks of any size."""
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    ascii_only = draw(st.booleans())

    def event(value: object) -> bytes:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=ascii_only)
        return b"data: " + text.encode() + newline * 2

    events = [event(choice(None)), *(event(value) for value in draw(st.lists(MIDDLE, max_size=8)))]
    if draw(st.booleans()):
        events.insert(draw(st.integers(0, len(events))), b": keep-alive" + newline * 2)
    end = draw(st.sampled_from(["good", "good", "good", "error", "error event", "no usage", "no done"]))
    if end == "error":
        events.append(event({"error": {"message": "x"}}))
    elif end == "error event":
        events.append(b"event: error" + newline + event("no KV"))
    if "error" not in end or draw(st.booleans()):  # some servers end a failed stream as if it were a good one
        events += [event(choice("", "stop")), *([event(USAGE)] if end != "no usage" else [])]
        events += [event("[DONE]")] if end != "no done" else []
    pieces = events
    if draw(st.booleans()):
        body = b"".join(events)
        cuts = draw(st.lists(st.integers(1, len(body) - 1), max_size=10, unique=True))
        pieces = [body[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(body)])]
    sizes = draw(st.sampled_from([b"%x", b"%X", b"%04x", b"%x;a=b"]))
    return HEAD + b"".join(sizes % len(piece) + b"\r\n" + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


def expected(wire: bytes, cuts: list[int]) -> Outcome:
    """The reference's outcome, with the first token's byte moved to the end of the read that holds it."""
    whole = reference(wire)
    ends = [*sorted(cut - 1 for cut in cuts if 0 < cut < len(wire)), len(wire) - 1]
    if whole == FAILED:
        return FAILED
    return replace(whole, first_at=next(end for end in ends if end >= whole.first_at))


@settings(max_examples=250)
@given(wire=wires(), cuts=st.lists(st.integers(0, 2500), max_size=14), keep_text=st.booleans())
def test_any_stream_in_any_reads(wire: bytes, cuts: list[int], *, keep_text: bool) -> None:
    wanted, got = expected(wire, cuts), fast(wire, cuts, keep_text=keep_text)
    assert got == (wanted if keep_text else wanted.without_text)


@settings(max_examples=60)
@given(wire=wires())
def test_one_read_for_each_chunk(wire: bytes) -> None:
    """As a server sends it that flushes each event: what is skimmed here is what the fast path is for."""
    cuts = [at + 2 for at in range(len(HEAD) - 2, len(wire) - 1) if wire[at : at + 2] == b"\r\n"]
    assert fast(wire, cuts, keep_text=True) == expected(wire, cuts)
    edges, at = [], len(HEAD)
    while at < len(wire):
        line = wire.index(b"\r\n", at)
        at = line + 4 + int(wire[at:line].split(b";")[0], 16)
        edges.append(at)
    assert fast(wire, [len(HEAD), *edges], keep_text=False) == expected(wire, [len(HEAD), *edges]).without_text


def test_every_pair_of_splits_of_one_stream() -> None:
    events = [choice(None), choice("schön €"), choice('[DONE] "error"'), choice("x"), choice("", "stop"), USAGE]
    body = [b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events]
    pieces = [*body[:2], body[2] + body[3], *body[4:], b"data: [DONE]\n\n"]
    wire = HEAD + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    for first in range(1, len(wire), 11):
        for second in range(first + 1, len(wire), 7):
            assert fast(wire, [first, second], keep_text=True) == expected(wire, [first, second])


@pytest.mark.parametrize(
    ("ending", "failed"),
    [
        ([b"data: " + json.dumps(USAGE).encode() + b"\n\n"], False),
        ([b'data: {"error": {"message": "no KV"}}\n\n', b"data: " + json.dumps(USAGE).encode() + b"\n\n"], True),
        ([b"event: error\n", b': "no KV"\n\n', b"data: " + json.dumps(USAGE).encode() + b"\n\n"], True),
    ],
)
def test_what_counts_is_seen_however_chunks_cut_it(*, ending: list[bytes], failed: bool) -> None:
    """One read for each chunk, and every place where two chunks can meet inside of what counts."""
    tokens = [b"data: " + json.dumps(value).encode() + b"\n\n" for value in (choice(None), choice("x"), choice("y"))]
    for number, line in enumerate(ending):
        for at in range(1, len(line)):
            pieces = [*tokens, *ending[:number], line[:at], line[at:], *ending[number + 1 :], b"data: [DONE]\n\n"]
            response = Response()
            response.feed(HEAD, 1)
            for piece in pieces:
                read = b"%x\r\n%b\r\n" % (len(piece), piece)
                if not (response.skims and plain(read)):
                    response.feed(read, 1)
            assert (response.done, bool(response.error)) == (True, failed)


TOKEN = b"data: " + json.dumps(choice("x")).encode() + b"\n\n"


def streaming() -> Response:
    response = Response()
    response.feed(HEAD + b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN), 1)
    return response


def test_a_read_of_whole_chunks_is_skimmed() -> None:
    response = streaming()
    assert response.skims
    assert plain(b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN) * 3)


@pytest.mark.parametrize(
    "read",
    [
        b"%x\r\n%b" % (len(TOKEN), TOKEN),
        b"%x\r\n%b\r\n" % (len(TOKEN) - 1, TOKEN[:-1]) + b"0\r\n\r\n",
        b"zz\r\n",
        b"-5\r\nxxxxxxxx",
        b"+5\r\nxxxx\n\r\n",
        b"0\r\n\r\n",
        b"5\r\ndata:\r\n",
    ],
)
def test_any_other_read_is_not_skimmed_and_changes_nothing(read: bytes) -> None:
    response = streaming()
    before = response.received_bytes
    assert not plain(read)
    assert (response.received_bytes, response.skims, response.error) == (before, True, "")

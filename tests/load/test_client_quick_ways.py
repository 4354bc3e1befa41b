"""The client's quick ways say what its careful ones do: known heads, whole reads, figures in one go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.load.account import Histogram
from dynamo_mlperf.load.response import Response
from tests.load.both_forms import plain

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":17,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _begun() -> Response:
    """A response that has its first token."""
    response = Response()
    response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunk(TOKEN), 1)
    assert response.skims
    return response


def test_heads_are_told_apart_however_many_there_were() -> None:
    for number in [*range(150), 3, 3, 149]:
        response = Response()
        kind = (b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(TOKEN + USAGE + DONE), b"Connection: close")
        status = b"200 OK" if number % 2 == 0 else b"503 Busy"
        response.feed(b"HTTP/1.1 %b\r\nX-Request-Id: %d\r\n%b\r\n\r\n" % (status, number, kind[number % 3]), 1)
        body = TOKEN + USAGE + DONE
        response.feed(_chunk(body) + b"0\r\n\r\n" if number % 3 == 0 else body, 2)
        if number % 3 == 2:
            response.connection_closed(3)
        assert response.ended
        assert response.status == int(status[:3])
        assert bool(response.error) == (number % 2 == 1)
        assert response.keep_alive == (number % 3 != 2)


@pytest.mark.parametrize("payload", [b"{} {}", b"{}]", b"nothing", b"[1]", b'"text"', b"", b"{"])
def test_an_event_that_is_no_single_object_fails_the_request(payload: bytes) -> None:
    response = Response()
    response.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunk(b"data: " + payload + b"\n\n"), 1)
    assert "no chat completion chunk" in response.error


@pytest.mark.parametrize("rest", [b"%x\r" % len(TOKEN), b"%x" % len(TOKEN), b"\r\n", b"0\r\n\r\n", _chunk(TOKEN)[:-1]])
def test_a_read_that_ends_within_a_chunk_is_not_passed_over(rest: bytes) -> None:
    response = _begun()
    assert plain(_chunk(TOKEN) * 2)
    before = response.received_bytes
    assert not plain(_chunk(TOKEN) + rest)
    assert response.received_bytes == before


def test_a_chunk_size_cut_before_its_line_feed_is_read_whole() -> None:
    response = _begun()
    wire = _chunk(TOKEN) + _chunk(USAGE) + _chunk(DONE) + b"0\r\n\r\n"
    for cut in range(1, len(wire)):
        response = _begun()
        for piece in (wire[:cut], wire[cut:]):
            if not (response.skims and plain(piece)):
                response.feed(piece, 2)
        assert (response.ended, response.error, response.output_tokens) == (True, "", 3), cut


@given(values=st.lists(st.floats(0.001, 1e6), max_size=200), share=st.sampled_from([0.5, 0.9, 0.99]))
def test_a_histogram_of_many_at_once_is_that_of_each(values: list[float], share: float) -> None:
    import numpy as np

    one, all_at_once = Histogram(), Histogram()
    for value in values:
        one.add(value)
    all_at_once.add_all(np.array(values[:7]))
    all_at_once.add_all(np.array(values[7:]))
    single, together = one.percentile(share), all_at_once.percentile(share)
    assert (single is None) == (together is None)
    assert together == pytest.approx(single, rel=0.011) if single is not None else together is None

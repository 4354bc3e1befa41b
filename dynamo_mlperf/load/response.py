"""One streamed chat completion as bytes come in: HTTP/1.1 framing, then server-sent events.

Nothing is kept but what a verdict needs: when the first token came, an error, the usage, the end. Once the first
token is there, reads that say nothing of that need not come here at all (`skims`): no line is cut and no object is
made per token. Whatever is not as usual goes through `feed`, which takes any split.
"""

from __future__ import annotations

import json
from array import array
from typing import Any, cast

from dynamo_mlperf.load.channel import MOST_TOKENS
from dynamo_mlperf.load.response_head import Part, read_head
from dynamo_mlperf.load.skim import chunk_size, finishes

_HEAD_LIMIT_BYTES = 65_536
_SAMPLE_BYTES = 300
"""How much of an unexpected answer a failure's cause quotes."""

TOKEN_ID_BYTES = 4
"""Of each token id, where ids are kept."""

_GIVEN_UP = frozenset({"abort", "error", "cancelled", "timeout"})
"""Finish reasons of requests that an engine ended before their time (vLLM and SGLang the first two, TensorRT-LLM the
others); usage and `[DONE]` follow all the same."""

_HTTP_OK = 200
_decode = json.JSONDecoder().raw_decode
_HEX_DIGITS = b"0123456789abcdefABCDEF"


_CHUNK_SIZE = Part.CHUNK_SIZE


class Response:
    """Reads one response; feed it bytes until `done`, then until `ended` to use the connection again.

    Attributes:
        status: HTTP status; 0 before the head is there.
        received_bytes: Bytes that came in.
        first_ns: When the first chunk with a token came; 0 before.
        prompt_tokens: From usage.
        output_tokens: From usage.
        error: Why the request has failed; empty while it has not.
        done: Whether the outcome is known: `[DONE]`, an error, or the end of the body.
        ended: Whether the HTTP message is complete.
        keep_alive: Whether the connection may be used again.
        skims: Whether the next read may be passed over where it is `plain`.
    """

    __slots__ = (
        "_buffer",
        "_error_event",
        "_finish_ns",
        "_ids",
        "_keep_ids",
        "_keeps",
        "_left",
        "_line",
        "_part",
        "_sample",
        "_streamed",
        "_text",
        "_usage",
        "done",
        "ended",
        "error",
        "first_ns",
        "keep_alive",
        "output_tokens",
        "prompt_tokens",
        "received_bytes",
        "skims",
        "status",
    )

    def __init__(self, *, keep_text: bool = False, keep_ids: bool = False) -> None:
        self.status = 0
        self.received_bytes = 0
        self.first_ns = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.error = ""
        self.done = False
        self.ended = False
        self.keep_alive = True
        self.skims = False
        self._part = Part.HEAD
        self._buffer = b""
        self._left = 0
        self._line = b""
        self._sample = b""
        self._finish_ns = 0
        self._streamed = False
        self._usage = False
        self._error_event = False
        self._keeps = keep_text or keep_ids
        self._keep_ids = keep_ids
        self._ids = array("i")
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """The generated text, where it is kept."""
        return "".join(self._text)

    @property
    def token_ids(self) -> bytes:
        """The engine's ids of the generated tokens as 32-bit integers in this machine's order, where they are kept."""
        return self._ids.tobytes()

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take in `data`, received at `now_ns`."""
        self.received_bytes += len(data)
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while at < len(buffer):
            after = self._whole_chunks(buffer, at, now_ns) if self._part is _CHUNK_SIZE else at
            if after == at:
                after = self._step(buffer, at, now_ns)
                if after < 0:
                    break
            at = after
        self._buffer = buffer[at:]
        between = self._part is Part.CHUNK_SIZE and not self._buffer and not self._line
        self.skims = between and self.first_ns > 0 and not (self.done or self._keeps or self._error_event)

    def connection_closed(self, now_ns: int, why: str = "") -> None:
        """The connection has ended; `done` is set, with an error unless that was the proper end."""
        self.keep_alive = False
        if self._part is Part.UNTIL_CLOSE:
            self._end_body(now_ns)
        elif not self.done:
            what = f"connection lost after {self.received_bytes} bytes of the answer, in the {self._part.value}"
            self._fail(f"{what}: {why}" if why else what)

    # -- HTTP framing: each step returns the position after what it has used, or -1 to wait for more --

    def _whole_chunks(self, buffer: bytes, at: int, now_ns: int) -> int:
        """All chunks from `at` on that are whole, in one step; returns `at` where there is none."""
        pieces, end = [], len(buffer)
        while at < end:
            line = buffer.find(b"\r\n", at)
            size = chunk_size(buffer[at:line]) if line > 0 else None
            if size is None or line + size + 4 > end:
                break
            at = line + size + 4
            pieces.append(buffer[line + 2 : at - 2])
        if pieces:
            self._body(pieces[0] if len(pieces) == 1 else b"".join(pieces), now_ns)
        return at

    def _step(self, buffer: bytes, at: int, now_ns: int) -> int:
        part = self._part
        if part is Part.CHUNK_SIZE:
            return self._chunk_size(buffer, at)
        if part in (Part.CHUNK, Part.LENGTH, Part.UNTIL_CLOSE):
            return self._body_piece(buffer, at, now_ns)
        if part is Part.CHUNK_END:
            return self._chunk_end(buffer, at)
        if part is Part.HEAD:
            return self._head(buffer, at, now_ns)
        if part is Part.TRAILER:
            return self._trailer(buffer, at, now_ns)
        self.keep_alive = False  # bytes after the end of the message: this connection is out of step
        return len(buffer)

    def _head(self, buffer: bytes, at: int, now_ns: int) -> int:
        end = buffer.find(b"\r\n\r\n", at)
        if end < 0:
            if len(buffer) - at > _HEAD_LIMIT_BYTES:
                self._broken("a response head of more than 64 KiB")
            return -1
        raw = buffer[at:end]
        head = read_head(raw)
        if head is None:
            line = raw.partition(b"\r\n")[0]
            self._broken(f"no HTTP response: {_quote(line)}")
            return -1
        if head.status >= _HTTP_OK:  # 1xx is an interim answer
            self.status, self.keep_alive, self._part, self._left = head
            if self._part is Part.LENGTH and self._left == 0:
                self._end_body(now_ns)
        return end + 4

    def _line_end(self, buffer: bytes, at: int) -> int:
        """Where the line ends, or -1 to wait for more; no line of the framing is as long as a head may be."""
        end = buffer.find(b"\r\n", at)
        if end < 0 and len(buffer) - at > _HEAD_LIMIT_BYTES:
            self._broken(f"a {self._part.value} of more than 64 KiB")
        return end

    def _chunk_size(self, buffer: bytes, at: int) -> int:
        end = self._line_end(buffer, at)
        if end < 0:
            return -1
        digits = buffer[at:end].partition(b";")[0].strip()
        if not digits or digits.strip(_HEX_DIGITS):
            self._broken(f"a chunk whose size is {_quote(digits)!r}")
            return -1
        self._left = int(digits, 16)
        self._part = Part.CHUNK if self._left else Part.TRAILER
        return end + 2

    def _chunk_end(self, buffer: bytes, at: int) -> int:
        if len(buffer) - at < 2:  # noqa: PLR2004 - CR and LF
            return -1
        self._part = Part.CHUNK_SIZE
        return at + 2

    def _trailer(self, buffer: bytes, at: int, now_ns: int) -> int:
        end = self._line_end(buffer, at)
        if end < 0:
            return -1
        if end == at:
            self._end_body(now_ns)
        return end + 2

    def _body_piece(self, buffer: bytes, at: int, now_ns: int) -> int:
        if self._part is Part.UNTIL_CLOSE:
            self._body(buffer[at:], now_ns)
            return len(buffer)
        piece = buffer[at : at + self._left]
        self._left -= len(piece)
        self._body(piece, now_ns)
        if self._left == 0:
            if self._part is Part.CHUNK:
                self._part = Part.CHUNK_END
            else:
                self._end_body(now_ns)
        return at + len(piece)

    def _broken(self, what: str) -> None:
        self.keep_alive = False
        if not self.done:
            self._fail(what)

    # -- server-sent events --

    def _body(self, piece: bytes, now_ns: int) -> None:
        if len(self._sample) < _SAMPLE_BYTES:
            self._sample += piece[:_SAMPLE_BYTES]
        if self.done or self.status != _HTTP_OK:
            return
        lines = (self._line + piece if self._line else piece).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            if line:
                self._event_line(line, now_ns)

    def _event_line(self, line: bytes, now_ns: int) -> None:
        if self.done:
            return
        if line.startswith(b"data:"):
            self._streamed = True
            if self.first_ns and not self._keeps and not self._error_event:
                find = line.find
                plain = find(b"completion_tokens") < 0 and find(b'"error"') < 0 and find(b"[DONE]") < 0
                if plain and not finishes(line):
                    return
            self._data(line[5:].strip(), now_ns)
        elif line.startswith(b"event:"):
            self._error_event = line[6:].strip() == b"error"
        elif self._error_event and line.strip():
            self._fail(f"error in the stream: {_quote(line.lstrip(b': '))}")

    def _data(self, payload: bytes, now_ns: int) -> None:
        if self._error_event:
            self._fail(f"error in the stream: {_quote(payload)}")
        elif payload == b"[DONE]":
            self._finish(now_ns)
        else:
            try:
                self._chunk(_json(str(payload, "utf-8")), payload, now_ns)
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
                self._fail(f"an event that is no chat completion chunk: {_quote(payload)}")

    def _chunk(self, chunk: dict[str, Any], payload: bytes, now_ns: int) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self._fail(f"error in the stream: {_quote(payload)}")
            return
        usage = chunk.get("usage")
        if usage:
            self._usage = True
            self.prompt_tokens = _count(usage.get("prompt_tokens"))
            self.output_tokens = _count(usage.get("completion_tokens"))
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content")
            if content and not isinstance(content, str):
                raise TypeError("content that is no text")
            if content and self._keeps:
                self._text.append(content)
            ids = self._take_ids(chunk, choice) if self._keep_ids else None
            carries = (
                ids or content or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls")
            )
            if carries and not self.first_ns:
                self.first_ns = now_ns
            finish = choice.get("finish_reason")
            if finish in _GIVEN_UP:
                self._fail(f"the engine gave the request up: {_quote(payload)}")
                return
            if finish and not self._finish_ns:
                self._finish_ns = now_ns

    def _take_ids(self, chunk: dict[str, Any], choice: dict[str, Any]) -> list[int]:
        """Ids of this chunk's tokens: Dynamo 1.6.1's extra field, or vLLM's own with `return_token_ids`."""
        ids = (chunk.get("nvext") or {}).get("completion_token_ids") or choice.get("token_ids") or []
        self._ids.extend(ids)
        return list(ids)

    # -- the end --

    def _end_body(self, now_ns: int) -> None:
        self._part = Part.ENDED
        self.ended = True
        if self._line and self.status == _HTTP_OK:
            line, self._line = self._line, b""
            self._event_line(line, now_ns)
        if not self.done:
            self._finish(now_ns)

    def _finish(self, now_ns: int) -> None:
        if self.status != _HTTP_OK:
            self._fail(f"HTTP {self.status}: {_quote(self._sample)}")
        elif not self._streamed:
            self._fail(f"HTTP 200 without an event stream: {_quote(self._sample)}")
        elif not self._usage:
            self._fail("stream ended without usage: cut short, or the server ignores stream_options.include_usage")
        elif not self.output_tokens:
            self._fail("HTTP 200 with zero tokens")
        elif self._keep_ids and not self._ids:
            self._fail("no token ids: the server ignores nvext.extra_fields")
        else:
            # A response of tokens without text (a lone end-of-text) has its first token where it finishes.
            self.first_ns = self.first_ns or self._finish_ns or now_ns
            self.done = True

    def _fail(self, cause: str) -> None:
        if not self.error:
            self.error = cause
        self.done = True


def _json(text: str) -> dict[str, Any]:
    """As `json.loads` of text without white space around it, in less time; whether it is an object shows in its use."""
    value, end = _decode(text)
    if end != len(text):
        raise ValueError("more than one value")
    return cast("dict[str, Any]", value)


def _count(value: str | float | None) -> int:
    """A number of tokens, as an event to the LoadGen process can hold it.

    Raises:
        ValueError: There cannot be as many.
    """
    count = int(value or 0)
    if not 0 <= count <= MOST_TOKENS:
        raise ValueError(f"{count} tokens")
    return count


def _quote(raw: bytes) -> str:
    return raw[:_SAMPLE_BYTES].decode("utf-8", "replace").strip()

"""An OpenAI chat completions server whose every answer is known: TTFT, TPOT, token counts, faults on cue.

`python -m tests.fakes.oracle --port 0 --ttft-ms 20 --tpot-ms 2 --tokens 8` prints `listening on PORT` and serves until
it is ended. In tests: `with Oracle(Script(tokens=8)) as oracle: ... oracle.port, oracle.stats(), oracle.truth()`.

A request misbehaves when its text holds `fault=NAME`, or by its number of arrival (`--fault 7=drop`), or all do
(`--fault all=error`). A text with `cue:tokens=20,ttft_ms=50,tpot_ms=3,stall_ms=800` changes that one answer.
`GET /stats` answers with the counts, `GET /truth` with what was sent and when, one entry per answer.

It is cheap enough not to be what limits a client: one epoll loop, answers prepared as bytes, a timer wheel of one
millisecond for all streams, one `send` per stream and tick. A token is never early; how late it was is in the truth,
which holds the times of the sends themselves, so that a busy machine is not held against the client.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import select
import socket
import struct
import threading
import time
from array import array
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

FAULTS = (
    "never",  # no byte, ever
    "drop",  # the connection is cut after three tokens
    "close",  # the connection is closed without a byte
    "500",  # HTTP 500 with a JSON error
    "error",  # HTTP 200, an error object after three tokens
    "error-event",  # HTTP 200, an `event: error` after three tokens
    "zero",  # HTTP 200, a stream without tokens
    "json",  # HTTP 200, no event stream
    "slow",  # the answer takes ten times as long
    "no-done",  # the stream ends without [DONE]
    "no-end",  # [DONE], but the HTTP message never ends
    "silent",  # tokens that have no text (a lone end-of-text)
)
_MARK = re.compile(rb"fault=([a-z0-9-]+)")
_CUE = re.compile(rb"cue:([a-z0-9_=.,]+)")
_SAMPLE = re.compile(rb"sample (\d+)")
_LENGTH = re.compile(rb"(?i)content-length: *(\d+)")
_STREAMS = re.compile(rb'"stream": ?true')
_CLOSES = re.compile(rb"(?i)\r\nconnection: *close\r\n")
_NS_PER_MS = 1_000_000
_TOKENS_BEFORE_FAULT = 3
_STALL_AFTER = 3
_RECEIVE_BYTES = 1 << 20
_SAMPLE_WITHIN_BYTES = 4096
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
FIRST_TOKEN_ID = 1000
"""Token ids of an answer, where they are asked for: this one, the next, and so on."""


@dataclass(frozen=True)
class Script:
    """What every answer looks like."""

    ttft_ms: float = 5.0
    tpot_ms: float = 1.0
    tokens: int = 8
    prompt_tokens: int = 17
    faults: dict[str, str] = field(default_factory=dict)
    close_idle_after: int = 0
    """Close each connection after so many answers, without a word; 0 = keep it."""
    stall_ms: float = 0.0
    """A pause after the third token."""
    listed: dict[str, int] = field(default_factory=dict)
    """What the model list says of the model beside its name."""


@dataclass
class Stats:
    """What the oracle saw."""

    requests: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    connections: int = 0
    closed: int = 0
    answers: int = 0


class Truth:
    """What was sent, one entry per whole answer in the order of their ends; times are CLOCK_MONOTONIC nanoseconds."""

    def __init__(self) -> None:
        self.sample = array("q")
        self.arrived_ns = array("q")
        self.first_ns = array("q")
        self.last_ns = array("q")
        self.tokens = array("q")

    def add(self, stream: _Stream, last_ns: int) -> None:
        """Note a whole answer."""
        self.sample.append(stream.sample)
        self.arrived_ns.append(stream.arrived_ns)
        self.first_ns.append(stream.first_ns)
        self.last_ns.append(last_ns)
        self.tokens.append(stream.tokens)

    def ttft_ms(self) -> list[float]:
        """From the last byte of the request to the send of the first token."""
        return [(first - came) / _NS_PER_MS for first, came in zip(self.first_ns, self.arrived_ns, strict=True)]

    def tpot_ms(self) -> list[float]:
        """Mean time per token after the first."""
        spans = zip(self.first_ns, self.last_ns, self.tokens, strict=True)
        return [(last - first) / _NS_PER_MS / max(tokens - 1, 1) for first, last, tokens in spans]

    def to_json(self) -> dict[str, list[Any]]:
        """Lists of one length."""
        return {
            "sample": self.sample.tolist(),
            "arrived_ns": self.arrived_ns.tolist(),
            "first_ns": self.first_ns.tolist(),
            "last_ns": self.last_ns.tolist(),
            "tokens": self.tokens.tolist(),
        }


# -- the bytes of an answer --


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _completion(choices: list[object], **more: object) -> bytes:
    frame = {"id": "chatcmpl-0a1b2c3d4e5f", "object": "chat.completion.chunk", "created": 1790000000, "model": "m"}
    return _event({**frame, "choices": choices, **more})


def _delta(text: str | None, finish: str | None = None, **more: object) -> bytes:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return _completion([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **more)


def _usage(prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return _completion([], usage=usage)


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_BEGIN = _HEAD + _chunk(_delta(None))
_TOKEN = _chunk(_delta("ü€ "))
_FINISH = _chunk(_delta("", "stop"))
_DONE = _chunk(b"data: [DONE]\n\n")
_END = b"0\r\n\r\n"
_ERROR = _event({"error": {"message": "the oracle fails on cue"}})


def _plain(status: bytes, value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class _Stream:
    """One answer on its way."""

    __slots__ = (
        "arrived_ns",
        "connection",
        "fault",
        "first_ns",
        "sample",
        "sent",
        "stall_ns",
        "tokens",
        "tpot_ns",
        "ttft_ns",
        "whole",
        "with_ids",
    )

    def __init__(self, connection: _Connection, script: Script, fault: str, arrived_ns: int) -> None:
        pace = 10.0 if fault == "slow" else 1.0
        self.connection = connection
        self.fault = fault
        self.arrived_ns = arrived_ns
        self.first_ns = 0
        self.sent = 0
        self.sample = -1
        self.tokens = script.tokens
        self.ttft_ns = int(script.ttft_ms * pace * _NS_PER_MS)
        self.tpot_ns = int(script.tpot_ms * pace * _NS_PER_MS)
        self.stall_ns = int(script.stall_ms * _NS_PER_MS)
        self.with_ids = False
        self.whole = False

    def due_ns(self, token: int) -> int:
        """When that token is to be sent, not before: a first token that was late delays all others."""
        stall_ns = self.stall_ns if token >= _STALL_AFTER else 0
        return (self.first_ns or self.arrived_ns + self.ttft_ns) + token * self.tpot_ns + stall_ns

    def due_count(self, now_ns: int) -> int:
        """How many tokens are due at `now_ns`, the first being sent now if it has not been."""
        if not self.first_ns:
            self.first_ns = now_ns
        count = self.sent
        while count < self.tokens and self.due_ns(count) <= now_ns:
            count += 1
        return count


class _Connection:
    """One client connection: what came in, and what the socket did not take yet."""

    __slots__ = ("answered", "buffer", "closes", "need", "open", "socket", "stream", "unsent")

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.buffer = bytearray()
        self.need = 0
        self.answered = 0
        self.stream: _Stream | None = None
        self.unsent = b""
        self.open = True
        self.closes = False


class _Server:
    """The epoll loop, its connections and the timer wheel."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.script = script
        self.model = "m"
        self.stats = Stats()
        self.truth = Truth()
        self.stopping = False
        self._usage = _chunk(_usage(script.prompt_tokens, script.tokens))
        self._wheel: dict[int, list[_Stream]] = {}
        self._turned = time.monotonic_ns() // _NS_PER_MS
        self._connections: dict[int, _Connection] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.settimeout(0)
        self.port = int(self._listener.getsockname()[1])
        self._wake_in, self._wake_out = socket.socketpair()
        self._epoll = select.epoll()
        for watched in (self._listener, self._wake_out):
            self._epoll.register(watched.fileno(), select.EPOLLIN)

    def stop(self) -> None:
        """End `serve` soon; from any thread."""
        self.stopping = True
        self._wake_in.send(b"\0")

    def serve(self) -> None:
        """Serve until stopped, then close everything."""
        listener = self._listener.fileno()
        while not self.stopping:
            for number, events in self._epoll.poll(self._wait_s()):
                if number == listener:
                    self._accept()
                elif (connection := self._connections.get(number)) is not None:
                    self._happened(connection, events)
            self._turn()
        for connection in list(self._connections.values()):
            self._lose(connection)
        for closing in (self._epoll, self._listener, self._wake_in, self._wake_out):
            closing.close()

    def _wait_s(self) -> float:
        if not self._wheel:
            return -1.0
        return max(0, min(self._wheel) * _NS_PER_MS - time.monotonic_ns()) / 1e9

    # -- connections --

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(0)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections[client.fileno()] = _Connection(client)
                self._epoll.register(client.fileno(), select.EPOLLIN)
                self.stats.connections += 1

    def _happened(self, connection: _Connection, events: int) -> None:
        try:
            if events & select.EPOLLOUT:
                self._send(connection, b"")
            if events & ~select.EPOLLOUT:
                self._read(connection)
        except ConnectionError:
            self._lose(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data: bytes | bytearray = connection.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        if connection.buffer:
            connection.buffer += data
            data = connection.buffer
        if not connection.need and (end := data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(data, 0, end)
            connection.need = end + 4 + (int(length.group(1)) if length else 0)
        if not connection.need or len(data) < connection.need:
            if data is not connection.buffer:
                connection.buffer += data
            return
        request, connection.buffer, connection.need = data, bytearray(), 0
        self._answer(connection, request)

    def _lose(self, connection: _Connection, *, reset: bool = False) -> None:
        if not connection.open:
            return
        connection.open = False
        if connection.stream is not None:
            connection.stream = None
            self.stats.in_flight -= 1
        self._connections.pop(connection.socket.fileno(), None)
        self._epoll.unregister(connection.socket.fileno())
        if reset:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        connection.socket.close()
        self.stats.closed += 1

    def _send(self, connection: _Connection, data: bytes) -> None:
        waiting = connection.unsent
        if waiting:
            data = waiting + data
        try:
            taken = connection.socket.send(data)
        except BlockingIOError:
            taken = 0
        connection.unsent = data[taken:]
        if bool(connection.unsent) != bool(waiting):
            events = select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0)
            self._epoll.modify(connection.socket.fileno(), events)

    # -- answers --

    def _answer(self, connection: _Connection, request: bytes | bytearray) -> None:
        if request.startswith(b"GET "):
            told: dict[bytes, object] = {b"/stats": asdict(self.stats), b"/truth": self.truth.to_json()}
            path = bytes(request[4 : request.find(b" ", 4)])
            entry = {"id": self.model, "owned_by": "dynamo-mlperf-oracle"}
            models = {"object": "list", "data": [{**entry, **self.script.listed}]}
            self._send(connection, _plain(b"200 OK", told.get(path, models)))
            if _CLOSES.search(request) is not None:
                self._lose(connection)
            return
        stats = self.stats
        number = stats.requests
        stats.requests += 1
        stats.in_flight += 1
        stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        fault, script = self._cued(request, str(number))
        stream = self._stream_of(connection, request, script, fault)
        stream.whole = _STREAMS.search(request) is None
        connection.stream = stream
        connection.closes = _CLOSES.search(request, 0, _SAMPLE_WITHIN_BYTES) is not None
        self._begin(stream)

    def _stream_of(self, connection: _Connection, request: bytes | bytearray, script: Script, fault: str) -> _Stream:
        """The answer to a request, not begun."""
        stream = _Stream(connection, script, fault, time.monotonic_ns())
        if (mark := _SAMPLE.search(request, 0, _SAMPLE_WITHIN_BYTES)) is not None:
            stream.sample = int(mark.group(1))
        stream.with_ids = b'"completion_token_ids"' in request
        return stream

    def _cued(self, request: bytes | bytearray, number: str) -> tuple[str, Script]:
        faults, script = self.script.faults, self.script
        fault = (faults.get(number) or faults.get("all", "")) if faults else ""
        if b"fault=" in request and (marked := _MARK.search(request)):
            fault = marked.group(1).decode()
        if b"cue:" in request and (cue := _CUE.search(request)):
            wanted = dict(entry.split("=") for entry in cue.group(1).decode().split(",") if "=" in entry)
            numbers = {key: int(value) if key == "tokens" else float(value) for key, value in wanted.items()}
            script = replace(script, **numbers)  # type: ignore[arg-type]
        return fault, script

    def _begin(self, stream: _Stream) -> None:
        connection, fault = stream.connection, stream.fault
        if fault == "never":
            return
        if fault == "close":
            self._lose(connection)
        elif fault in ("500", "json"):
            answer = {"error": {"message": "the oracle fails on cue", "code": 500}}
            self._send(connection, _plain(b"500 Internal Server Error" if fault == "500" else b"200 OK", answer))
            self._end(stream)
        elif fault == "zero" or not stream.tokens:
            usage = _chunk(_usage(self.script.prompt_tokens, 0))
            self._send(connection, _BEGIN + _FINISH + usage + _DONE + _END)
            self._end(stream)
        elif stream.ttft_ns == 0:
            self._advance(stream, stream.arrived_ns, b"" if stream.whole else _BEGIN)
        else:
            self._send(connection, b"" if stream.whole else _BEGIN)
            self._wait_for(stream)

    def _wait_for(self, stream: _Stream) -> None:
        slot = max(stream.due_ns(stream.sent) // _NS_PER_MS, self._turned) + 1
        waiting = self._wheel.get(slot)
        if waiting is None:
            self._wheel[slot] = [stream]
        else:
            waiting.append(stream)

    def _turn(self) -> None:
        """Send what is due."""
        now = time.monotonic_ns() // _NS_PER_MS
        if now == self._turned:
            return
        self._turned = now
        for slot in sorted(slot for slot in self._wheel if slot <= now):
            for stream in self._wheel.pop(slot):
                if stream.connection.open and stream.connection.stream is stream:
                    try:
                        self._advance(stream, time.monotonic_ns(), b"")
                    except ConnectionError:
                        self._lose(stream.connection)

    def _advance(self, stream: _Stream, now_ns: int, before: bytes) -> None:
        """Send the tokens that are due, and the end after the last."""
        count = stream.due_count(now_ns)
        if stream.whole:
            self._advance_whole(stream, count, now_ns)
            return
        if stream.fault in ("drop", "error", "error-event") and count >= _TOKENS_BEFORE_FAULT:
            self._break_off(stream, before)
            return
        data = before + self._tokens(stream, count)
        stream.sent = count
        if count < stream.tokens:
            self._send(stream.connection, data)
            self._wait_for(stream)
            return
        done = b"" if stream.fault == "no-done" else _DONE
        self._send(
            stream.connection,
            data + _FINISH + self._usage_of(stream) + done + (b"" if stream.fault == "no-end" else _END),
        )
        self.truth.add(stream, now_ns)
        self._end(stream)

    def _advance_whole(self, stream: _Stream, count: int, now_ns: int) -> None:
        """An answer in one piece, for who did not ask for a stream, once its last token is due."""
        stream.sent = count
        if count < stream.tokens:
            self._wait_for(stream)
            return
        message = {"role": "assistant", "content": self._text(stream)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        frame = {"id": "chatcmpl-0a1b2c3d4e5f", "object": "chat.completion", "created": 1790000000, "model": self.model}
        self._send(stream.connection, _plain(b"200 OK", {**frame, "choices": [choice]}))
        self.truth.add(stream, now_ns)
        self._end(stream)

    def _text(self, stream: _Stream) -> str:
        """The text of an answer in one piece."""
        return "ü€ " * stream.tokens

    def _usage_of(self, stream: _Stream) -> bytes:
        if stream.tokens == self.script.tokens:
            return self._usage
        return _chunk(_usage(self.script.prompt_tokens, stream.tokens))

    def _tokens(self, stream: _Stream, count: int) -> bytes:
        if stream.fault == "silent":
            return b""
        if not stream.with_ids:
            return _TOKEN * (count - stream.sent)
        ids = range(FIRST_TOKEN_ID + stream.sent, FIRST_TOKEN_ID + count)
        return b"".join(_chunk(_delta("ü€ ", nvext={"completion_token_ids": [number]})) for number in ids)

    def _break_off(self, stream: _Stream, before: bytes) -> None:
        connection = stream.connection
        tokens = self._tokens(stream, _TOKENS_BEFORE_FAULT)
        if stream.fault == "drop":
            self._send(connection, before + tokens)
        else:
            start = b"event: error\n" if stream.fault == "error-event" else b""
            self._send(connection, before + tokens + _chunk(start + _ERROR) + _END)
        self._lose(connection, reset=stream.fault == "drop")

    def _end(self, stream: _Stream) -> None:
        connection = stream.connection
        connection.stream = None
        connection.answered += 1
        self.stats.in_flight -= 1
        self.stats.answers += 1
        if connection.answered == self.script.close_idle_after or connection.closes:
            self._lose(connection)


class Oracle:
    """The server in a thread of this process; a context manager."""

    def __init__(self, script: Script | None = None) -> None:
        self._server = _Server(script or Script())
        self.port = self._server.port
        self._thread = threading.Thread(target=self._server.serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()
        self._thread.join()

    def stats(self) -> Stats:
        """The counts so far."""
        return self._server.stats

    def truth(self) -> Truth:
        """What was sent so far."""
        return self._server.truth


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=5.0)
    parser.add_argument("--tpot-ms", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=17)
    parser.add_argument("--close-idle-after", type=int, default=0)
    parser.add_argument("--stall-ms", type=float, default=0.0)
    parser.add_argument("--fault", action="append", default=[], metavar="NUMBER|all=FAULT", help=", ".join(FAULTS))
    options = parser.parse_args()
    faults = dict(entry.split("=", 1) for entry in options.fault)
    script = Script(
        options.ttft_ms,
        options.tpot_ms,
        options.tokens,
        options.prompt_tokens,
        faults,
        options.close_idle_after,
        options.stall_ms,
    )
    server = _Server(script, options.port)
    print(f"listening on {server.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()


if __name__ == "__main__":
    main()

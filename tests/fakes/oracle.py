"""An OpenAI chat completions server whose every answer is known: TTFT, TPOT, token counts, faults on cue.

`python -m tests.fakes.oracle --port 0 --ttft-ms 20 --tpot-ms 2 --tokens 8` prints `listening on PORT` and serves until
it is ended. In tests: `with Oracle(Script(tokens=8)) as oracle: ... oracle.port, oracle.stats()`.

A request misbehaves when its text holds `fault=NAME`, or by its number of arrival (`--fault 7=drop`), or all do
(`--fault all=error`). `GET /stats` answers with the counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Self

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


@dataclass
class Stats:
    """What the oracle saw."""

    requests: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    connections: int = 0
    closed: int = 0
    answers: int = 0


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def _delta(text: str | None, finish: str | None = None) -> bytes:
    delta = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return _event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _usage(prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return _event({"id": "x", "choices": [], "usage": usage})


_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_DONE = b"data: [DONE]\n\n"


class _Server:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.stats = Stats()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stats.connections += 1
        answered = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length.group(1))) if length else b""
                if head.startswith(b"GET /stats"):
                    self._plain(writer, b"200 OK", asdict(self.stats))
                    continue
                await self._answer(writer, body)
                answered += 1
                if answered == self.script.close_idle_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.stats.closed += 1
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        self.stats.requests += 1
        self.stats.in_flight += 1
        self.stats.peak_in_flight = max(self.stats.peak_in_flight, self.stats.in_flight)
        number = self.stats.requests - 1
        marked = _MARK.search(body)
        faults = self.script.faults
        fault = marked.group(1).decode() if marked else faults.get(str(number), faults.get("all", ""))
        try:
            await self._play(writer, fault)
            self.stats.answers += 1
        finally:
            self.stats.in_flight -= 1

    async def _play(self, writer: asyncio.StreamWriter, fault: str) -> None:
        script = self.script
        if fault == "never":
            await asyncio.sleep(3600)
        if fault == "close":
            raise ConnectionAbortedError
        if fault in ("500", "json"):
            answer = {"error": {"message": "the oracle fails on cue", "code": 500}}
            self._plain(writer, b"500 Internal Server Error" if fault == "500" else b"200 OK", answer)
            return
        pace = 10.0 if fault == "slow" else 1.0
        writer.write(_STREAM_HEAD + _chunk(_delta(None)))
        if fault != "zero":
            await asyncio.sleep(script.ttft_ms * pace / 1000)
            await self._tokens(writer, fault, pace)
        end = _delta("", "stop") + _usage(script.prompt_tokens, 0 if fault == "zero" else script.tokens)
        writer.write(_chunk(end if fault == "no-done" else end + _DONE))
        if fault == "no-end":
            return
        writer.write(_chunk(b""))
        await writer.drain()

    async def _tokens(self, writer: asyncio.StreamWriter, fault: str, pace: float) -> None:
        for number in range(self.script.tokens):
            if number:
                await asyncio.sleep(self.script.tpot_ms * pace / 1000)
            if number == 3 and fault == "drop":
                writer.transport.abort()
                raise ConnectionAbortedError
            if number == 3 and fault in ("error", "error-event"):
                start = b"event: error\n" if fault == "error-event" else b""
                writer.write(_chunk(start + _event({"error": {"message": "the oracle fails on cue"}})) + _chunk(b""))
                raise ConnectionAbortedError
            if fault != "silent":
                writer.write(_chunk(_delta("ü€ ")))

    def _plain(self, writer: asyncio.StreamWriter, status: bytes, value: object) -> None:
        body = json.dumps(value).encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        writer.write(head + body)


class Oracle:
    """The server in a thread of this process; a context manager."""

    def __init__(self, script: Script | None = None) -> None:
        self.port = 0
        self._server = _Server(script or Script())
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def stats(self) -> Stats:
        """The counts so far."""
        return self._server.stats

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        server = await asyncio.start_server(self._server.serve, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def _serve_for_ever(port: int, script: Script) -> None:
    server = await asyncio.start_server(_Server(script).serve, "127.0.0.1", port, backlog=1024)
    print(f"listening on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=5.0)
    parser.add_argument("--tpot-ms", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=17)
    parser.add_argument("--close-idle-after", type=int, default=0)
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
    )
    try:
        asyncio.run(_serve_for_ever(options.port, script))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()

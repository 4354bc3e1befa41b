"""A client process: owns the HTTP connections, sends the prepared bodies, and reports two events per request.

`python -m dynamo_mlperf.load.http_worker SPEC.json INDEX SOCKET`, started by the LoadGen process; SOCKET is the name
of an abstract UNIX socket there. It ends when it is told to or when its peer is gone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import time
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import cast

import uvloop

from dynamo_mlperf.load.channel import STOP, Event, IssueReader, Kind, pack_event
from dynamo_mlperf.load.connection import Connection, Exchange, Frontend
from dynamo_mlperf.load.requests import RequestsFile
from dynamo_mlperf.load.response import TOKEN_ID_BYTES, Response
from dynamo_mlperf.load.spec import MeasureSpec, read_spec
from dynamo_mlperf.load.vitals import TICK_S, Vitals

_DRAIN_NS = 5_000_000_000
"""A message whose end does not follow its `[DONE]` within this time costs the connection, not the request."""

_WARM_TIMEOUT_S = 10.0
_OPENED_AT_ONCE = 128
"""Fewer than any listening socket lets wait (somaxconn is 4096 today, and was 128)."""

_STOP_ORDER = int.from_bytes(STOP[:4], sys.byteorder)
_NS = 1_000_000_000


class Client(asyncio.Protocol):
    """Sends what the LoadGen process issues and reports what becomes of it.

    Args:
        spec: The measurement.
        index: Which of the client processes this is; frontends are taken in turn from there.
        bodies: Request bodies by sample index.
    """

    def __init__(self, spec: MeasureSpec, index: int, bodies: RequestsFile) -> None:
        self.closed = asyncio.Event()
        self._spec = spec
        self._bodies = bodies
        self._timeout_ns = int(spec.timeout_s * _NS)
        self._tell_first = spec.settings.use_token_latencies
        self._frontends = [Frontend(host, port, spec.path) for host, port in spec.frontends]
        self._turn = index
        self._in_flight: dict[int, Exchange] = {}
        self._draining: dict[Connection, None] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._issues = IssueReader()
        self._outbox: list[bytes] = []
        self._peer: asyncio.Transport | None = None
        self._opened = 0
        self._retried = 0
        self._vitals = Vitals()

    # -- the LoadGen process --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._peer = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The LoadGen process is gone, and so is this one's purpose."""
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """Send the requests that were issued."""
        for order, sample, issued_ns in self._issues.feed(data):
            if order == _STOP_ORDER:
                self._stop()
            else:
                self._issue(order, sample, issued_ns)

    def _emit(self, event: Event) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(pack_event(event))

    def _flush(self) -> None:
        batch, self._outbox = self._outbox, []
        if self._peer is not None and not self._peer.is_closing():
            self._peer.write(b"".join(batch) if len(batch) > 1 else batch[0])

    def _stop(self) -> None:
        account = {
            **self._vitals.account(),
            "retried_connections": self._retried,
            "connections_opened": self._opened,
        }
        self._emit(Event(Kind.ACCOUNT, 0, tail=json.dumps(account).encode()))
        self._flush()
        if self._peer is not None:
            self._peer.close()

    # -- requests --

    async def warm(self) -> None:
        """Open connections before the clock starts, then say so; those that cannot be opened are no error yet."""
        count = self._spec.warm_connections
        picks = [self._frontends[(self._turn + turn) % len(self._frontends)] for turn in range(count)]
        places = asyncio.Semaphore(_OPENED_AT_ONCE)

        async def in_turn(frontend: Frontend) -> Connection:
            async with places:
                return await self._open(frontend)

        opening = [asyncio.ensure_future(in_turn(frontend)) for frontend in picks]
        await asyncio.wait(opening, timeout=_WARM_TIMEOUT_S)
        refused = ""
        for task in opening:
            if not task.done():
                task.cancel()
                refused = f"no connection within {_WARM_TIMEOUT_S:g} s"
            elif problem := task.exception():
                refused = str(problem)
            else:
                task.result().frontend.idle.append(task.result())
        self._bodies.prefetch()
        gc.freeze()
        self._vitals.start()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._emit(Event(Kind.READY, self._opened, tail=refused.encode()))

    async def _open(self, frontend: Frontend) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self, frontend), frontend.host, frontend.port)
        self._opened += 1
        return connection

    def _issue(self, order: int, sample: int, issued_ns: int) -> None:
        frontend = self._frontends[self._turn % len(self._frontends)]
        self._turn += 1
        response = Response(keep_text=self._spec.keep_text, keep_ids=self._spec.keep_token_ids)
        exchange = Exchange(order, sample, issued_ns, frontend, self._bodies[sample], response)
        self._in_flight[order] = exchange
        while frontend.idle:
            connection = frontend.idle.pop()
            if connection.usable:
                connection.send(exchange, fresh=False)
                return
        self._send_fresh(exchange)

    def _send_fresh(self, exchange: Exchange) -> None:
        task = asyncio.ensure_future(self._connect_and_send(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect_and_send(self, exchange: Exchange) -> None:
        try:
            connection = await self._open(exchange.frontend)
        except OSError as problem:
            exchange.response.error = f"no connection: {problem}"
            self.finished(exchange)
            return
        if exchange.order not in self._in_flight:  # its deadline came first
            exchange.frontend.idle.append(connection)
        elif connection.usable:
            connection.send(exchange, fresh=True)
        else:
            exchange.response.error = "no connection: closed as soon as it was open"
            self.finished(exchange)

    # -- what connections tell --

    def first_token(self, exchange: Exchange) -> None:
        """Tell at once where LoadGen judges the time to first token."""
        if self._tell_first:
            first_ns, first_id = exchange.response.first_ns, exchange.response.token_ids[:TOKEN_ID_BYTES]
            self._emit(Event(Kind.FIRST, exchange.order, first_ns=first_ns, tail=first_id))

    def finished(self, exchange: Exchange) -> None:
        """Report the outcome, once."""
        if self._in_flight.pop(exchange.order, None) is None:
            return
        response, connection = exchange.response, exchange.connection
        exchange.connection = None
        self._bodies.release(exchange.sample)
        if connection is not None and not response.ended and not response.error:
            self._draining[connection] = None
        tail = (response.error or response.text).encode("utf-8", "replace")
        if self._spec.keep_token_ids and not response.error:
            tail = response.token_ids
        self._emit(
            Event(
                Kind.FAILED if response.error else Kind.DONE,
                exchange.order,
                exchange.sent_ns,
                response.first_ns,
                time.monotonic_ns(),
                response.prompt_tokens,
                response.output_tokens,
                tail,
            )
        )

    def stale(self, exchange: Exchange) -> None:
        """Send again on a fresh connection, if the request still waits."""
        if exchange.order in self._in_flight:
            self._retried += 1
            exchange.connection = None
            self._send_fresh(exchange)

    def idle(self, connection: Connection) -> None:
        """Use the connection again."""
        self._draining.pop(connection, None)
        connection.frontend.idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Forget the connection."""
        self._draining.pop(connection, None)
        if connection in connection.frontend.idle:
            connection.frontend.idle.remove(connection)

    def _tick(self) -> None:
        self._vitals.tick()
        self._sweep()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _sweep(self) -> None:
        """Fail what is past its deadline; requests are in the order of their issue, so the oldest come first."""
        now_ns = time.monotonic_ns()
        late = []
        for exchange in self._in_flight.values():
            if now_ns - exchange.issued_ns < self._timeout_ns:
                break
            late.append(exchange)
        for exchange in late:
            self._give_up(exchange)
        for connection in list(self._draining):
            if now_ns - connection.draining_since_ns < _DRAIN_NS:
                break
            self._draining.pop(connection)
            connection.close()

    def _give_up(self, exchange: Exchange) -> None:
        response, connection = exchange.response, exchange.connection
        seen = "a first token" if response.first_ns else f"{response.received_bytes} bytes"
        response.error = f"no end within {self._spec.timeout_s:g} s of issue, {seen} received"
        self.finished(exchange)
        if connection is not None:
            connection.exchange = None
            connection.close()


def _allow_many_connections() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(spec: MeasureSpec, index: int, name: str) -> None:
    bodies = RequestsFile(spec.requests)
    peer = socket(AF_UNIX, SOCK_STREAM)
    peer.connect(f"\0{name}")
    peer.settimeout(0)
    client = Client(spec, index, bodies)
    await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=peer)
    await client.warm()
    await client.closed.wait()


def main(arguments: list[str]) -> None:
    """Run one client process until its peer ends it."""
    spec_path, index, name = arguments
    _allow_many_connections()
    uvloop.run(_serve(read_spec(Path(spec_path)), int(index), name))


if __name__ == "__main__":
    main(sys.argv[1:])

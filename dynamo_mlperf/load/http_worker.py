"""A client process: owns the HTTP connections, sends the prepared bodies, and reports two events per request.

`python -m dynamo_mlperf.load.http_worker SPEC.json INDEX SOCKET`, started by the LoadGen process; SOCKET is the name
of an abstract UNIX socket there. It ends when it is told to or when its peer is gone.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import TYPE_CHECKING

from dynamo_mlperf.load.channel import STOP, Event, IssueReader, Kind, pack_event
from dynamo_mlperf.load.connection import Connection, Exchange
from dynamo_mlperf.load.loop import Loop
from dynamo_mlperf.load.opening import Frontend, Opening, Warming
from dynamo_mlperf.load.requests import RequestsFile
from dynamo_mlperf.load.response import TOKEN_ID_BYTES, Response
from dynamo_mlperf.load.spec import MeasureSpec, read_spec
from dynamo_mlperf.load.vitals import TICK_S, Vitals

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.load.pump import Data

_DRAIN_NS = 5_000_000_000
"""A message whose end does not follow its `[DONE]` within this time costs the connection, not the request."""

_WARM_TIMEOUT_S = 10.0
_STOP_ORDER = int.from_bytes(STOP[:4], sys.byteorder)
_NS = 1_000_000_000


class Client:
    """Sends what the LoadGen process issues and reports what becomes of it.

    Args:
        spec: The measurement.
        index: Which of the client processes this is; frontends are taken in turn from there.
        bodies: Request bodies by sample index.
        peer: Connected to the LoadGen process, without a timeout.
    """

    def __init__(self, spec: MeasureSpec, index: int, bodies: RequestsFile, peer: socket) -> None:
        self.loop = Loop(self._tick, self._flush, int(TICK_S * _NS))
        self._spec = spec
        self._bodies = bodies
        self._timeout_ns = int(spec.timeout_s * _NS)
        self._tell_first = spec.settings.use_token_latencies
        self._frontends = [Frontend(host, port, spec.path) for host, port in spec.frontends]
        self._turn = index
        self._in_flight: dict[int, Exchange] = {}
        self._draining: dict[Connection, None] = {}
        self._issues = IssueReader()
        self._outbox: list[bytes] = []
        self._peer = peer
        self._opened = 0
        self._retried = 0
        self._vitals = Vitals()
        self._warming: Warming | None = None
        self._warm_until_ns = 0
        self.loop.watch(peer.fileno(), self, reads=True)

    # -- the LoadGen process --

    def ready(self, events: int, data: Data, passed_bytes: int, at_ns: int) -> None:  # noqa: ARG002 - as watched
        """Send the requests that were issued; without the LoadGen process this one has no purpose."""
        if not data or isinstance(data, OSError):
            self.loop.running = False
            return
        for order, sample, issued_ns in self._issues.feed(data):
            if order == _STOP_ORDER:
                self._stop()
            else:
                self._issue(order, sample, issued_ns)

    def _emit(self, event: Event) -> None:
        self._outbox.append(pack_event(event))

    def _flush(self) -> None:
        """Say what there is to say; what the socket does not take waits for the next turn."""
        if not self._outbox:
            return
        batch = b"".join(self._outbox)
        try:
            taken = os.write(self._peer.fileno(), batch)
        except BlockingIOError:
            taken = 0
        except OSError:  # it is gone, as reading will find
            taken = len(batch)
        self._outbox = [batch[taken:]] if taken < len(batch) else []

    def _stop(self) -> None:
        account = {
            **self._vitals.account(),
            "compiled": self.loop.compiled,
            "rested": self.loop.rested,
            "retried_connections": self._retried,
            "connections_opened": self._opened,
        }
        self._emit(Event(Kind.ACCOUNT, 0, tail=json.dumps(account).encode()))

    # -- connections --

    def warm(self) -> None:
        """Begin to open connections; once that is over the LoadGen process is told and the clock may start."""
        count = self._spec.warm_connections
        picks = [self._frontends[(self._turn + turn) % len(self._frontends)] for turn in range(count)]

        def open_one(frontend: Frontend, opened: Callable[[], None], failed: Callable[[str], None]) -> Opening:
            def adopt(sock: socket) -> None:
                frontend.idle.append(self._adopt(frontend, sock))
                opened()

            return Opening(self.loop, frontend, adopt, failed)

        self._warm_until_ns = time.monotonic_ns() + int(_WARM_TIMEOUT_S * _NS)
        self._warming = Warming(open_one, picks, self._warmed)
        self._warming.fill()

    def _warmed(self, problem: str) -> None:
        self._warming = None
        self._bodies.prefetch()
        gc.freeze()
        self._vitals.start()
        self._emit(Event(Kind.READY, self._opened, tail=problem.encode()))

    def _adopt(self, frontend: Frontend, sock: socket) -> Connection:
        self._opened += 1
        return Connection(self, self.loop, frontend, sock)

    # -- requests --

    def _issue(self, order: int, sample: int, issued_ns: int) -> None:
        frontend = self._frontends[self._turn % len(self._frontends)]
        self._turn += 1
        response = Response(keep_text=self._spec.keep_text, keep_ids=self._spec.keep_token_ids)
        exchange = Exchange(order, sample, issued_ns, frontend, self._bodies[sample], response)
        self._in_flight[order] = exchange
        if frontend.idle:
            frontend.idle.pop().send(exchange, fresh=False)
        else:
            self._send_fresh(exchange)

    def _send_fresh(self, exchange: Exchange) -> None:
        frontend = exchange.frontend

        def opened(sock: socket) -> None:
            connection = self._adopt(frontend, sock)
            if exchange.order in self._in_flight:
                connection.send(exchange, fresh=True)
            else:  # its deadline came first
                frontend.idle.append(connection)

        def failed(problem: str) -> None:
            exchange.response.error = f"no connection: {problem}"
            self.finished(exchange)

        Opening(self.loop, frontend, opened, failed)

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
        now_ns = time.monotonic_ns()
        if self._warming is not None:
            if now_ns > self._warm_until_ns:
                self._warming.stop(f"no connection within {_WARM_TIMEOUT_S:g} s")
            return
        self._vitals.tick()
        self._fail_late(now_ns)

    def _fail_late(self, now_ns: int) -> None:
        """Fail what is past its deadline; requests are in the order of their issue, so the oldest come first."""
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


def main(arguments: list[str]) -> None:
    """Run one client process until its peer ends it."""
    spec_path, index, name = arguments
    _allow_many_connections()
    spec = read_spec(Path(spec_path))
    bodies = RequestsFile(spec.requests)
    peer = socket(AF_UNIX, SOCK_STREAM)
    peer.connect(f"\0{name}")
    peer.settimeout(0)
    client = Client(spec, int(index), bodies, peer)
    client.warm()
    client.loop.run()


if __name__ == "__main__":
    main(sys.argv[1:])

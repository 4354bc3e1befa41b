"""A client process's insides in a thread of the test, whose LoadGen process is the test itself."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Self

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.channel import ISSUE, STOP, Event, EventReader, Kind
from dynamo_mlperf.load.http_worker import Client
from dynamo_mlperf.load.requests import RequestsFile, write_requests
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.spec import MeasureSpec

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_NEVER_NS = 2**62
_PATIENCE_S = 180.0


class ClientInThread:
    """One client with its bodies and a frontend on this machine; a context manager.

    Args:
        directory: Where the bodies go.
        port: Of the frontend.
        texts: The samples.
        qps: Twice as many connections are opened before the clock.
    """

    def __init__(self, directory: Path, port: int, texts: list[str], qps: float = 1) -> None:
        bodies = [chat_body("m", [{"role": "user", "content": text}], 9) for text in texts]
        write_requests(directory / "requests", bodies)
        rules, reduction = benchmark("llama2-70b-99.9"), Reduction(1, len(texts), 90)
        settings = build_settings(rules, "Server", qps, len(texts), reduction, "performance", 20)
        spec = MeasureSpec(settings, directory / "requests", (("127.0.0.1", port),), directory)
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(_PATIENCE_S)
        theirs.settimeout(0)
        self.client = Client(spec, 0, RequestsFile(directory / "requests"), theirs)
        self.events: list[Event] = []
        self._reader = EventReader()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.client.warm()
        self.client.loop.run()

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait_for(Kind.READY)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._ours.close()
        self._thread.join(_PATIENCE_S)
        assert not self._thread.is_alive()

    def issue(self, *orders_and_samples: tuple[int, int]) -> None:
        """Issue queries, in one write."""
        self._ours.sendall(b"".join(ISSUE.pack(order, sample, _NEVER_NS) for order, sample in orders_and_samples))

    def of(self, *kinds: Kind) -> list[Event]:
        """The events of these kinds that were read so far."""
        return [event for event in self.events if event.kind in kinds]

    def ended(self, count: int) -> list[Event]:
        """The ends of requests, once there are `count`."""
        return self._wait_for(Kind.DONE, Kind.FAILED, count=count)

    def account(self) -> bytes:
        """Have it stop; what it says of itself."""
        self._ours.sendall(STOP)
        return self._wait_for(Kind.ACCOUNT)[0].tail

    def _wait_for(self, *kinds: Kind, count: int = 1) -> list[Event]:
        while len(self.of(*kinds)) < count:
            data = self._ours.recv(65_536)
            assert data, "the client is gone"
            self.events += self._reader.feed(data)
        return self.of(*kinds)

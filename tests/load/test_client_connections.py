"""What the client process does with its connections, and which process gets a query."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load import http_worker
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.channel import ISSUE, STOP, Event, EventReader, Kind
from dynamo_mlperf.load.http_worker import Client
from dynamo_mlperf.load.requests import RequestsFile, write_requests
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.workers import least_loaded
from tests.fakes.oracle import Oracle


@given(in_flight=st.lists(st.integers(0, 5), min_size=1, max_size=6), turn=st.integers(0, 50))
def test_a_query_goes_where_least_is_in_flight(in_flight: list[int], turn: int) -> None:
    chosen = least_loaded(in_flight, turn)
    assert in_flight[chosen] == min(in_flight)
    count = len(in_flight)
    before = [(turn + step) % count for step in range((chosen - turn) % count)]
    assert all(in_flight[position] > in_flight[chosen] for position in before)


class Peer(asyncio.Transport):
    """The LoadGen process's end: keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._reader = EventReader()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.events += self._reader.feed(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""

    def ended(self) -> list[Event]:
        return [event for event in self.events if event.kind in (Kind.DONE, Kind.FAILED)]


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not done():  # noqa: ASYNC110 - what is waited for happens in the oracle's thread
            await asyncio.sleep(0.01)


def _client(directory: Path, port: int, text: str) -> tuple[Client, Peer]:
    rules = benchmark("qwen3-vl-235b-a22b")
    write_requests(directory / "requests", [chat_body("m", [{"role": "user", "content": text}], 9)])
    settings = build_settings(rules, "Server", 1, 1, Reduction(1, 1, 90), "performance", 20)
    spec = MeasureSpec(settings, directory / "requests", (("127.0.0.1", port),), directory)
    client, peer = Client(spec, 0, RequestsFile(directory / "requests")), Peer()
    client.connection_made(peer)
    return client, peer


def test_a_connection_is_used_again_after_its_message_has_ended(tmp_path: Path) -> None:
    async def scenario(port: int) -> list[Event]:
        client, peer = _client(tmp_path, port, "hello")
        await client.warm()
        for order in range(3):
            client.data_received(ISSUE.pack(order, 0, 2**62))
            await _until(lambda: len(peer.ended()) == order + 1)  # noqa: B023 - awaited within the loop
            await asyncio.sleep(0.02)
        client.data_received(STOP)
        return peer.events

    with Oracle() as oracle:
        events = asyncio.run(scenario(oracle.port))
        assert oracle.stats().connections == 2  # the two that were opened before the clock
    assert [event.order for event in events if event.kind == Kind.DONE] == [0, 1, 2]
    assert events[-1].kind == Kind.ACCOUNT


def test_a_message_that_never_ends_costs_the_connection_and_not_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_worker, "_DRAIN_NS", 1)

    async def scenario(oracle: Oracle) -> Peer:
        client, peer = _client(tmp_path, oracle.port, "fault=no-end")
        await client.warm()
        client.data_received(ISSUE.pack(0, 0, 2**62))
        await _until(lambda: oracle.stats().closed == 1)
        return peer

    with Oracle() as oracle:
        peer = asyncio.run(scenario(oracle))
    assert [(event.kind, event.output_tokens) for event in peer.ended()] == [(Kind.DONE, 8)]

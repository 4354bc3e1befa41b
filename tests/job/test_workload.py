"""What a measurement sends: warm-up requests are the first ones, cut short."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import Stopped
from dynamo_mlperf.job.workload import WARM_UP_TOKENS, Workload, while_prepared
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.process.signals import StopFlag


def test_warm_up_requests_are_the_first_ones_with_short_answers() -> None:
    settings = build_settings(benchmark("deepseek-r1"), "Offline", 1, 4388)
    bodies = [chat_body("m", [{"role": "user", "content": f"prompt {n}"}], cap) for n, cap in enumerate((20_000, 9, 7))]
    workload = Workload(settings, bodies)
    short = [json.loads(body) for body in workload.warm_up_bodies(2)]
    assert [body["max_tokens"] for body in short] == [WARM_UP_TOKENS, 9]
    assert [{**body, "max_tokens": 0} for body in short] == [
        {**json.loads(body), "max_tokens": 0} for body in bodies[:2]
    ]
    assert len(workload.warm_up_bodies(99)) == 3


def test_all_requests_are_prepared_and_told_of() -> None:
    bodies, said = [b"%d" % number for number in range(500)], list[str]()
    assert list(while_prepared(iter(bodies), 500, lambda: None, said.append)) == bodies
    assert said == ["200 of 500 requests prepared", "400 of 500 requests prepared"]


def test_a_stop_while_requests_are_prepared_ends_it(tmp_path: Path) -> None:
    """Tens of thousands with images take minutes; a scheduler kills what has not ended after half of one."""
    stop, made = StopFlag(), list[int]()

    def bodies() -> Iterator[bytes]:
        for number in range(10_000):
            made.append(number)
            if number == 250:
                stop.first = signal.SIGTERM
            yield b"body"

    with pytest.raises(Stopped):
        write_requests(tmp_path / "bodies", while_prepared(bodies(), 10_000, stop.check, lambda _said: None))
    assert len(made) == 400
    assert not (tmp_path / "bodies.offsets").exists()

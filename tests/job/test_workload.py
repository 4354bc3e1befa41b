"""What a measurement sends: warm-up requests are the first ones, cut short."""

from __future__ import annotations

import json

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.job.workload import WARM_UP_TOKENS, Workload
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.settings import build_settings


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

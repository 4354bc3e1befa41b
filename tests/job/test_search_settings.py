"""What a search begins with, from the file and what is predicted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.job.rate_search import search_settings
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.topology.spec import load_topology
from tests.job.chain import TEMPLATE, merged

if TYPE_CHECKING:
    from pathlib import Path


def _start(tmp_path: Path, search: dict[str, Any], predicted_qps: float | None) -> float | None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(merged(TEMPLATE, {"name": "t", "measure": {"target_qps": None}, "search": search})))
    load = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 40, 8_000)
    return search_settings(load_topology(file), load, predicted_qps).start


@pytest.mark.parametrize(
    ("search", "predicted_qps", "start"),
    [
        ({"low": 5, "high": 12}, 8.0, 8.0),
        ({"low": 5, "high": 12}, 15.9, 12.0),
        ({"low": 5, "high": 12}, 2.0, 5.0),
        ({"low": 5}, 2.0, 5.0),
        ({"low": 5, "high": 12}, None, None),
        ({"low": 5, "high": 12, "start": 7}, 15.9, 7.0),
        ({}, 15.9, 15.9),
    ],
)
def test_an_estimate_outside_of_the_range_begins_at_its_nearest_end(
    tmp_path: Path, search: dict[str, Any], predicted_qps: float | None, start: float | None
) -> None:
    assert _start(tmp_path, search, predicted_qps) == start

"""What the engines told while a split was measured is read line by line: a damaged one costs itself alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.job.pressure import read_pressure
from dynamo_mlperf.tuning.bottleneck import find_bottleneck

if TYPE_CHECKING:
    from pathlib import Path


def line(t: int, **changes: object) -> str:
    role = {"workers": 1, "served": 10 * t, "served_ms": 900.0 * t, "in_flight": 1.0, "waiting": 0.0, "kv_share": 0.1}
    return json.dumps({"t": float(t), "roles": {"decode": role | changes}})


@pytest.mark.parametrize(
    "damaged",
    [
        line(5)[:40],
        line(5)[:40] + line(6),  # what a crash cut, and what a resumed sweep wrote behind it
        line(5, served="50"),
        line(5, served=float("nan")),
        line(5, served=None),
        line(5, more=1),
        "[" * 100_000,
        "7",
    ],
    ids=["cut", "joined", "text", "nan", "null", "unknown key", "deep", "number"],
)
def test_a_damaged_reading_is_left_out(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "pressure.jsonl"
    path.write_text("\n".join([*(line(t) for t in range(5)), damaged, *(line(t) for t in range(7, 12)), ""]))
    found = read_pressure(path)
    assert [reading.t for reading in found] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    find_bottleneck(found)


def test_a_file_that_is_none_tells_nothing(tmp_path: Path) -> None:
    assert read_pressure(tmp_path / "pressure.jsonl") == []
    assert read_pressure(tmp_path) == []

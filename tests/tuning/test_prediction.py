from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.tuning.prediction import Prediction, SplitPrediction, ranked, read_prediction, write_prediction

if TYPE_CHECKING:
    from pathlib import Path


def split(name: str, prefill: int, decode: int, rate: float | None) -> SplitPrediction:
    return SplitPrediction(
        name,
        {"prefill": prefill, "decode": decode},
        {"prefill": 2, "decode": 1},
        2 * prefill + decode,
        rate,
        binding="end_to_end",
        bottleneck="decode",
    )


def prediction() -> Prediction:
    splits = [
        split("7P2D", 7, 2, None),
        split("6P4D", 6, 4, 30.0),
        split("4P8D", 4, 8, 42.0),
        split("4P6D", 4, 6, 38.0),
    ]
    return Prediction("q", "qwen3-vl-235b-a22b", "Interactive", 16, ranked(splits), {"prefill": {"origin": "measured"}})


def test_what_is_written_is_read_and_the_best_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    write_prediction(path, prediction())
    found = read_prediction(path)
    assert found == prediction()
    assert found.order == ("4P8D", "4P6D", "6P4D", "7P2D")
    assert found.best is not None
    assert (found.best.split, found.rate_of("6P4D"), found.rate_of("7P2D"), found.rate_of("1P1D")) == (
        "4P8D",
        30.0,
        None,
        None,
    )
    assert found.best.per_gpu_qps == pytest.approx(42 / 16)


def test_every_figure_says_that_it_is_rehearsed() -> None:
    value = prediction().as_json()
    assert value["class"] == "rehearsal"
    figures = {key for each in value["splits"] for key in each if "qps" in key}
    assert figures == {"rehearsed_qps", "rehearsed_qps_per_gpu"}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"method": "measured"},
        {"splits": [{}]},
        {"splits": None},
        {"granted_gpus": True},
        {"profiles": []},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_prediction_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    path.write_text(json.dumps(prediction().as_json() | change))
    with pytest.raises(ConfigError, match="is no prediction"):
        read_prediction(path)


@pytest.mark.parametrize("rate", ["NaN", "-1", "Infinity", "true", '"40"', "1e300"])
def test_a_rate_that_is_none_is_refused(rate: str, tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    path.write_text(json.dumps(prediction().as_json()).replace("42.0", rate, 1))
    with pytest.raises(ConfigError, match="is no prediction"):
        read_prediction(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"[" * 5000, b"7"])
def test_bytes_that_are_none_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "prediction.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no prediction"):
        read_prediction(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_prediction(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_prediction(tmp_path)

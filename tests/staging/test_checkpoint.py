"""Whole and broken checkpoints, told apart by headers alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.checkpoint import verify_checkpoint


def _shard(entries: dict[str, Any], data_bytes: int) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(data_bytes)


def _entry(begin: int, end: int, dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 2], "data_offsets": [begin, end]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards: a (8 bytes) and b (4) in the first, c (6) in the second."""
    (tmp_path / "one.safetensors").write_bytes(
        _shard({"__metadata__": {"format": "pt"}, "b": _entry(8, 12), "a": _entry(0, 8)}, 12)
    )
    (tmp_path / "two.safetensors").write_bytes(_shard({"c": _entry(0, 6)}, 6))
    places = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def _index(model: Path, **places: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _refused(model: Path, *parts: str) -> None:
    with pytest.raises(SetupError) as refusal:
        verify_checkpoint(model)
    for part in parts:
        assert part in refusal.value.what
    assert refusal.value.action


def test_complete(model: Path) -> None:
    assert verify_checkpoint(model) == ()


def test_only_headers_are_read(model: Path) -> None:
    """A shard of a terabyte, almost all of it a hole, is judged at once."""
    size_bytes = 1 << 40
    shard = _shard({"c": _entry(0, size_bytes)}, 0)
    with (model / "two.safetensors").open("wb") as out:
        out.write(shard)
        out.truncate(len(shard) + size_bytes)
    assert verify_checkpoint(model) == ()


def test_missing_shard(model: Path) -> None:
    (model / "two.safetensors").unlink()
    _refused(model, f"{model / 'two.safetensors'} is missing")


@pytest.mark.parametrize("difference", [-1, 1])
def test_shard_of_the_wrong_size(model: Path, difference: int) -> None:
    path = model / "one.safetensors"
    whole = path.read_bytes()
    path.write_bytes((whole + b"\0")[: len(whole) + difference])
    _refused(model, f"{path} is {len(whole) + difference} bytes where its header implies {len(whole)}")


@pytest.mark.parametrize("kept_bytes", [1, 7, 8, 20])
def test_shard_cut_within_its_header(model: Path, kept_bytes: int) -> None:
    path = model / "one.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    _refused(model, f"{path} is cut or no safetensors file: {kept_bytes} bytes")


def test_unlisted_shard_is_a_warning(model: Path) -> None:
    (model / "extra.safetensors").write_bytes(_shard({"d": _entry(0, 2)}, 2))
    [warning] = verify_checkpoint(model)
    assert warning.startswith(
        f"{model / 'extra.safetensors'} is a shard that model.safetensors.index.json does not name"
    )


def test_tensor_absent_from_its_shard(model: Path) -> None:
    _index(model, a="one.safetensors", b="one.safetensors", c="one.safetensors")
    _refused(model, f"{model / 'one.safetensors'} lacks tensor c")


def test_tensor_that_the_index_places_nowhere_is_a_warning(model: Path) -> None:
    _index(model, a="one.safetensors", c="two.safetensors")
    [warning] = verify_checkpoint(model)
    assert warning.startswith(f"{model / 'one.safetensors'} holds 1 tensors")
    assert warning.endswith("first b")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_missing_and_empty_companions(model: Path, name: str) -> None:
    (model / name).write_text("")
    _refused(model, f"{model / name} is empty")
    (model / name).unlink()
    _refused(model, name)


def test_other_tokenizers_will_do(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text("{}")
    _refused(model, "no tokenizer")
    (model / "merges.txt").write_text("a b")
    assert verify_checkpoint(model) == ()


def test_config_that_is_no_json(model: Path) -> None:
    (model / "config.json").write_text('{"a": ')
    _refused(model, f"{model / 'config.json'} is not JSON")
    (model / "config.json").write_text("[]")
    _refused(model, "holds a list")


def test_single_file_without_an_index(model: Path) -> None:
    (model / "model.safetensors.index.json").unlink()
    _refused(model, "holds neither model.safetensors.index.json nor model.safetensors")
    (model / "one.safetensors").rename(model / "model.safetensors")
    (model / "two.safetensors").unlink()
    assert verify_checkpoint(model) == ()


@pytest.mark.parametrize("place", ["../two.safetensors", "/two.safetensors", "two.bin"])
def test_index_that_leads_elsewhere(model: Path, place: str) -> None:
    _index(model, c=place)
    _refused(model, "model.safetensors.index.json", f"places c in '{place}'")


def test_index_without_a_map(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text("{}")
    _refused(model, "model.safetensors.index.json has no weight_map")


@pytest.mark.parametrize(
    ("entries", "data_bytes", "complaint"),
    [
        ({"c": _entry(2, 6)}, 6, "tensor c spans bytes 2 to 6"),
        ({"c": _entry(0, 4), "d": _entry(2, 6)}, 6, "tensor d spans bytes 2 to 6"),
        ({"c": _entry(0, 6, dtype="F32")}, 6, "tensor c spans bytes 0 to 6"),
        ({"c": {"dtype": "BF16", "shape": [3]}}, 6, "damaged header"),
        ({"c": 5}, 6, "damaged header"),
    ],
)
def test_header_that_contradicts_itself(model: Path, entries: dict[str, Any], data_bytes: int, complaint: str) -> None:
    (model / "two.safetensors").write_bytes(_shard(entries, data_bytes))
    _refused(model, str(model / "two.safetensors"), complaint)


def test_header_that_is_no_json(model: Path) -> None:
    (model / "two.safetensors").write_bytes(struct.pack("<Q", 4) + b"\xff\xfe{}")
    _refused(model, f"{model / 'two.safetensors'} has a damaged header")


def test_packed_four_bit_weights(model: Path) -> None:
    entry = {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]}
    (model / "two.safetensors").write_bytes(_shard({"c": entry}, 6))
    assert verify_checkpoint(model) == ()


def test_no_directory(tmp_path: Path) -> None:
    _refused(tmp_path / "none", f"no model directory {tmp_path / 'none'}")

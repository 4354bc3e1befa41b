"""Lengths of prompts: never more than the bound, counted as the model counts, and the long ones named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dynamo_mlperf.benchmark.catalogue import load_catalogue
from dynamo_mlperf.benchmark.image_size import image_size
from dynamo_mlperf.benchmark.prompt_length import ImageRule, PromptMeter, too_long
from dynamo_mlperf.benchmark.prompts import Prompts, PromptSample
from dynamo_mlperf.benchmark.tiny_catalogue import IMAGE_SIZES, write_tiny_catalogue
from dynamo_mlperf.benchmark.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(directory)
    return directory


def _prompt(words: int) -> PromptSample:
    return PromptSample((("user", " ".join(["lamp"] * words)),), f"prompts.jsonl:{words}")


def test_products_are_counted_with_their_images(model: Path, tmp_path: Path) -> None:
    """As the engine counts them: usage of a real vLLM run of this catalogue says the same."""
    write_tiny_catalogue(tmp_path, samples=6)
    meter = PromptMeter(model)
    counts = [meter.count(sample) for sample in load_catalogue(tmp_path)]
    assert counts == [462, 413, 409, 409, 468, 440]
    assert all(meter.at_most(sample) > count for sample, count in zip(load_catalogue(tmp_path), counts, strict=True))
    images = [meter.image_rule.tokens(*size) for size in IMAGE_SIZES]
    assert images == [140, 100, 96, 96, 144, 126]


@given(text=st.text(min_size=1, max_size=200))
def test_no_prompt_has_more_tokens_than_its_bound(model: Path, text: str) -> None:
    meter = _METERS.setdefault(model, PromptMeter(model))
    sample = PromptSample((("user", text.encode("utf-8", "replace").decode()),), "x:1")
    assert meter.count(sample) <= meter.at_most(sample)


_METERS: dict[Path, PromptMeter] = {}


def test_the_long_ones_are_found_and_a_prompt_needs_room_for_its_answer(model: Path) -> None:
    samples = Prompts([_prompt(words) for words in (10, 2000, 900, 2001, 5)])
    meter = PromptMeter(model)
    base = meter.count(_prompt(10)) - 10
    found, uncounted = too_long(samples, meter, 2000 + base)
    assert ([(prompt.index, prompt.tokens) for prompt in found], uncounted) == ([(3, 2001 + base), (1, 2000 + base)], 0)
    assert too_long(samples, meter, 2002 + base) == ([], 0)
    assert found[0].where == "prompts.jsonl:2001"


def test_a_prompt_of_as_many_tokens_as_bytes_is_found(model: Path) -> None:
    meter = PromptMeter(model)
    dense = PromptSample((("user", "\u00df" * 1000),), "prompts.jsonl:1")
    assert 2000 <= meter.count(dense) <= meter.at_most(dense) < 4000
    assert [prompt.index for prompt in too_long(Prompts([dense]), meter, 2000)[0]] == [0]


def test_what_cannot_be_counted_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    meter = PromptMeter(tmp_path)
    assert not meter.counts
    assert too_long(Prompts([_prompt(3), _prompt(3000)]), meter, 2000) == ([], 1)


def test_a_template_that_fails_leaves_the_texts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ raise_exception('no') }}"}))
    bare, whole = PromptMeter(tmp_path), PromptMeter(model)
    assert 7 <= bare.count(_prompt(7)) < whole.count(_prompt(7))
    assert bare.count(_prompt(8)) - bare.count(_prompt(7)) == 1


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((448, 320), 140), ((4000, 3000), 972), ((20, 20), 64), ((3178, 16), 113), ((32, 2048), 64), ((100, 3000), 282)],
)
def test_images_are_cut_by_the_models_rule(size: tuple[int, int], tokens: int) -> None:
    assert ImageRule(32, 65_536, 1_048_576).tokens(*size) == tokens


def _jpeg(width: int, height: int) -> bytes:
    preview = b"\xff\xe1" + struct.pack(">H", 4000) + b"\xff\xc0\x00\x11" * 999 + b"\x00\x00"
    frame = b"\xff\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8" + preview + frame + bytes(12)


@pytest.mark.parametrize(
    "head",
    [
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480),
        b"GIF89a" + struct.pack("<HH", 640, 480),
        b"BM" + bytes(16) + struct.pack("<ii", 640, -480),
        b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little"),
        b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + struct.pack("<I", 639 | 479 << 14),
        b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 640, 480),
        _jpeg(640, 480),
    ],
    ids=["png", "gif", "bmp", "webp-x", "webp-l", "webp", "jpeg"],
)
def test_sizes_of_images_by_their_first_bytes(head: bytes) -> None:
    assert image_size(head) == (640, 480)
    for end in range(len(head) - 8):
        assert image_size(head[:end]) in (None, (640, 480))


def test_sizes_agree_with_an_imaging_library(tmp_path: Path) -> None:
    image = Image.new("RGB", (321, 123))
    for name in ("x.png", "x.jpg", "x.gif", "x.bmp", "x.webp"):
        image.save(tmp_path / name)
        assert image_size((tmp_path / name).read_bytes()) == (321, 123), name
    image.save(tmp_path / "progressive.jpg", progressive=True, exif=bytes(20_000))
    assert image_size((tmp_path / "progressive.jpg").read_bytes()) == (321, 123)
    image.save(tmp_path / "lossless.webp", lossless=True)
    assert image_size((tmp_path / "lossless.webp").read_bytes()) == (321, 123)
    assert image_size(b"no image") is None

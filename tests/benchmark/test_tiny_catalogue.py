"""The tiny catalogue: the benchmark's fields, real PNG files, small prompts, the same every time."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer

from dynamo_mlperf.benchmark.catalogue import load_catalogue, messages
from dynamo_mlperf.benchmark.tiny_catalogue import IMAGE_SIZES, png, write_tiny_catalogue
from dynamo_mlperf.benchmark.tiny_tokenizer import tiny_tokenizer

FIELDS = [
    "product_title",
    "product_description",
    "product_image",
    "potential_product_categories",
    "ground_truth_category",
    "ground_truth_brand",
    "ground_truth_is_secondhand",
]
"""Of Shopify/product-catalogue, as MLPerf's reference reads it."""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("catalogue") / "tiny"
    write_tiny_catalogue(directory)
    return directory


def _products(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "catalogue.jsonl").read_text().splitlines()]


def _decode_png(raw: bytes) -> np.ndarray[Any, Any]:
    """Pixels [height, width, 3] of an 8-bit RGB PNG whose rows all use filter 2, by the PNG specification."""
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(raw):
        (length,) = struct.unpack(">I", raw[place : place + 4])
        kind, content = raw[place + 4 : place + 8], raw[place + 8 : place + 8 + length]
        assert struct.unpack(">I", raw[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + content)
        chunks[kind], place = content, place + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 2).all()
    return np.cumsum(rows[:, 1:].astype(np.uint64), axis=0).astype(np.uint8).reshape(height, width, 3)


def test_two_writes_agree_byte_for_byte(catalogue: Path, tmp_path: Path) -> None:
    write_tiny_catalogue(tmp_path)
    names = sorted(path.relative_to(catalogue) for path in catalogue.rglob("*") if path.is_file())
    assert len(names) == 65
    assert all((tmp_path / name).read_bytes() == (catalogue / name).read_bytes() for name in names)


def test_products_carry_the_benchmarks_fields(catalogue: Path) -> None:
    products = _products(catalogue)
    assert len(products) == 64
    assert all(list(product) == FIELDS for product in products)
    assert {product["ground_truth_is_secondhand"] for product in products} == {True, False}
    assert all(product["ground_truth_category"].count(" > ") == 2 for product in products)
    assert all(product["ground_truth_category"] in product["potential_product_categories"] for product in products)


def test_pictures_differ_in_size_and_content_and_are_small(catalogue: Path) -> None:
    raw = [path.read_bytes() for path in sorted((catalogue / "images").iterdir())]
    sizes = {_decode_png(picture).shape[1::-1] for picture in raw}
    assert sizes == set(IMAGE_SIZES)
    assert len(set(raw)) == len(raw)
    assert max(map(len, raw)) < 10_000


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
def test_png_holds_the_pixels_it_was_given(height: int, width: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(_decode_png(png(pixels)), pixels)


def test_pillow_reads_the_pictures(catalogue: Path) -> None:
    for path in sorted((catalogue / "images").iterdir())[:6]:
        with Image.open(path) as picture:
            assert np.array_equal(np.asarray(picture.convert("RGB")), _decode_png(path.read_bytes()))


def test_prompts_are_short(catalogue: Path) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(tiny_tokenizer().as_json()))
    largest_image = max(width * height // (32 * 32) for width, height in IMAGE_SIZES)
    asked = [messages(sample) for sample in load_catalogue(catalogue)]
    texts = [system["content"] + user["content"][0]["text"] for system, user in asked]
    assert max(len(tokenizer.encode(text).ids) for text in texts) + largest_image < 500


def test_any_number_of_samples(tmp_path: Path) -> None:
    write_tiny_catalogue(tmp_path, samples=3)
    assert [sample.title for sample in load_catalogue(tmp_path)] == [
        "Alderwick small shirts number 0",
        "Farrowlight cool jackets number 1",
        "Kestrel clean boots number 2",
    ]

"""A tiny product catalogue in the shape of the Qwen3-VL benchmark's data set, made on the spot.

The fields are those of Shopify/product-catalogue. On disk: `catalogue.jsonl`, one product a line, and the
pictures it names under `images/`, PNG files written here byte by byte, so that no imaging library takes part.
Every byte is the same on every machine but for the deflate stream of the PNG files, whose bytes, not whose
pixels, may differ between builds of zlib.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.tiny_vocabulary import BRANDS, CATEGORIES, QUALITIES, THINGS
from dynamo_mlperf.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

CATALOGUE_FILE = "catalogue.jsonl"
IMAGE_SIZES = ((448, 320), (320, 320), (256, 384), (384, 256), (512, 288), (288, 448))
"""Width and height in pixels; 64 to 140 prompt tokens each at 32 x 32 pixels a token."""

_CHOICES_PER_PRODUCT = 4


def _chunk(kind: bytes, content: bytes) -> bytes:
    """One PNG chunk: length, kind, content, CRC-32 of the last two."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of `pixels`, shape [height, width, 3], RGB.

    Each row is stored as its difference from the row above (PNG filter 2), which makes smooth pictures small.
    """
    height, width, _ = pixels.shape
    above = np.vstack([np.zeros_like(pixels[:1]), pixels[:-1]])
    rows = np.zeros((height, 1 + 3 * width), np.uint8)
    rows[:, 0] = 2
    rows[:, 1:] = (pixels - above).reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _picture(number: int) -> npt.NDArray[np.uint8]:
    """A gradient with a lighter box on it, different for every product; shape [height, width, 3]."""
    width, height = IMAGE_SIZES[number % len(IMAGE_SIZES)]
    across = np.arange(width, dtype=np.int64)[None, :, None]
    down = np.arange(height, dtype=np.int64)[:, None, None]
    slopes = np.array([1 + number % 3, 1 + number // 3 % 4, 1 + number // 12 % 5], np.int64)
    picture = (across * slopes + down * slopes[::-1]) // 4 + 37 * number
    left, top = width // 8 + 5 * number % (width // 4), height // 8 + 7 * number % (height // 4)
    picture[top : top + height // 2, left : left + width // 2] += 96
    return (picture % 256).astype(np.uint8)


def _product(number: int) -> dict[str, Any]:
    path = CATEGORIES[number % len(CATEGORIES)]
    brand = BRANDS[number * 5 % len(BRANDS)]
    first, second = QUALITIES[number * 7 % len(QUALITIES)], QUALITIES[(number * 11 + 3) % len(QUALITIES)]
    thing, other = THINGS[number * 13 % len(THINGS)], THINGS[(number * 3 + 40) % len(THINGS)]
    secondhand = number % 4 == 0
    condition = "used, with some wear" if secondhand else "new"
    choices = [CATEGORIES[(number + 3 * step) % len(CATEGORIES)] for step in range(_CHOICES_PER_PRODUCT)]
    return {
        "product_title": f"{brand} {first} {path[2].lower()} number {number}",
        "product_description": f"A {first} and {second} {thing} with a {other}, {condition}. Made by {brand}.",
        "product_image": f"images/{number:05d}.png",
        "potential_product_categories": sorted(" > ".join(choice) for choice in choices),
        "ground_truth_category": " > ".join(path),
        "ground_truth_brand": brand,
        "ground_truth_is_secondhand": secondhand,
    }


def write_tiny_catalogue(directory: Path, samples: int = 64) -> None:
    """Write the catalogue of `samples` products into `directory`, which is made if it is not there.

    Raises:
        OSError: The directory cannot be written or the disk is full.
    """
    (directory / "images").mkdir(parents=True, exist_ok=True)
    products = [_product(number) for number in range(samples)]
    for number, product in enumerate(products):
        write_atomic(directory / product["product_image"], png(_picture(number)))
    write_atomic(directory / CATALOGUE_FILE, "".join(json.dumps(product) + "\n" for product in products))

"""A tiny set of text prompts in the words of the tiny model, made on the spot: for rehearsals of language models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE
from dynamo_mlperf.benchmark.tiny_vocabulary import BRANDS, QUALITIES, THINGS
from dynamo_mlperf.files import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

_LEAST_WORDS = 20
_LENGTHS = 11
"""Prompts have eleven lengths, so that batches are uneven as real ones are."""


def _prompt(number: int) -> str:
    words = [
        f"a {QUALITIES[(number * 7 + 3 * step) % len(QUALITIES)]} {THINGS[(number * 13 + 5 * step) % len(THINGS)]}"
        for step in range(_LEAST_WORDS // 2 + 4 * (number % _LENGTHS))
    ]
    return f"{BRANDS[number % len(BRANDS)]} number {number} made {' and '.join(words)}"


def write_tiny_prompts(directory: Path, samples: int = 64) -> None:
    """Write `samples` prompts into `directory`, which is made if it is not there.

    Raises:
        OSError: The directory cannot be written or the disk is full.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"prompt": _prompt(number)}) + "\n" for number in range(samples))
    write_atomic(directory / PROMPTS_FILE, "".join(lines))

"""How many tokens a prompt has: bounded by its bytes, counted with the model's own tokenizer where that matters.

A byte-level tokenizer makes at most one token of a byte, so most prompts are proved short without being tokenised.
The rest are rendered by the model's chat template and counted with its `tokenizer.json` (library `tokenizers`, which
comes with the engines; without it they stay uncounted). Images count by the rule of Qwen's processors: sides rounded
to multiples of `patch_size * merge_size`, the area kept within `size` of `preprocessor_config.json`, one token for
each such square (Hugging Face transformers, `smart_resize` of the Qwen2-VL image processor).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dynamo_mlperf.benchmark.catalogue import ProductSample, messages, prompt_texts
from dynamo_mlperf.benchmark.image_size import HEAD_BYTES, image_size
from dynamo_mlperf.files import read_bounded, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dynamo_mlperf.benchmark.prompts import PromptSample

    Sample = ProductSample | PromptSample

_TEMPLATE_BYTES = 512
"""More than a chat template adds to a short conversation."""


@dataclass(frozen=True)
class ImageRule:
    """How the model's processor cuts an image.

    Attributes:
        side: Pixels along a token's square.
        least: Fewest pixels of an image after resizing.
        most: Most pixels.
    """

    side: int
    least: int
    most: int

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of this size in pixels."""
        wide, high = (round(edge / self.side) * self.side for edge in (width, height))
        if wide * high > self.most:
            shrink = math.sqrt(width * height / self.most)
            wide, high = (max(self.side, int(edge / shrink / self.side) * self.side) for edge in (width, height))
        elif wide * high < self.least:
            grow = math.sqrt(self.least / (width * height))
            wide, high = (math.ceil(edge * grow / self.side) * self.side for edge in (width, height))
        return wide * high // self.side**2


@dataclass(frozen=True)
class LongPrompt:
    """A prompt that does not fit.

    Attributes:
        index: Its sample's index.
        where: File and line of the sample.
        tokens: Tokens of the prompt.
    """

    index: int
    where: str
    tokens: int


class PromptMeter:
    """Measures prompts as one model sees them."""

    def __init__(self, model_dir: Path) -> None:
        """Read the model's tokenizer, chat template and image rule, as far as they are there."""
        self._tokenizer = _tokenizer(model_dir)
        self._template = _template(model_dir)
        self.image_rule = _image_rule(model_dir)

    @property
    def counts(self) -> bool:
        """Whether prompts can be counted at all."""
        return self._tokenizer is not None

    def at_most(self, sample: Sample) -> int:
        """More tokens than the prompt can have, without tokenising it or looking at its image."""
        if isinstance(sample, ProductSample):
            text_bytes = sum(len(text.encode()) for text in prompt_texts(sample))
            return text_bytes + _TEMPLATE_BYTES + self.image_rule.most // self.image_rule.side**2
        return sum(len(text.encode()) + _TEMPLATE_BYTES for _, text in sample.turns)

    def count(self, sample: Sample) -> int:
        """Tokens of the prompt; an image whose size cannot be read counts as its placeholder alone."""
        image = 0
        if isinstance(sample, ProductSample):
            image = self._image_tokens(sample) - 1  # one placeholder is in the text already
        return len(self._tokenizer.encode(self._rendered(sample), add_special_tokens=False)) + max(0, image)

    def _rendered(self, sample: Sample) -> str:
        chat = messages(sample, image_url="") if isinstance(sample, ProductSample) else sample.messages
        if self._template is not None:
            try:
                return str(self._template.render(messages=chat, add_generation_prompt=True))
            except (TemplateError, TypeError, ValueError):
                pass  # a template that wants more than messages: the texts alone are still a lower bound
        if isinstance(sample, ProductSample):
            return "\n".join(prompt_texts(sample))
        return "\n".join(text for _, text in sample.turns)

    def _image_tokens(self, sample: ProductSample) -> int:
        with sample.image_path.open("rb") as file:
            size = image_size(file.read(HEAD_BYTES))
        return 1 if size is None else self.image_rule.tokens(*size)


def too_long(samples: Sequence[Sample], meter: PromptMeter, limit: int) -> tuple[list[LongPrompt], int]:
    """The prompts that leave no room for an answer, longest first, and how many could not be counted.

    Args:
        samples: The data set.
        meter: Of the model.
        limit: Most tokens of prompt and answer together; a prompt of just so many is refused by engines too
            (vLLM 0.31 `v1/engine/input_processor.py`).
    """
    found, uncounted = [], 0
    for index, sample in enumerate(samples):
        if meter.at_most(sample) < limit:
            continue
        if not meter.counts:
            uncounted += 1
        elif (tokens := meter.count(sample)) >= limit:
            found.append(LongPrompt(index, sample.where, tokens))
    return sorted(found, key=lambda prompt: -prompt.tokens), uncounted


def _tokenizer(model_dir: Path) -> Any:  # noqa: ANN401 - a library that may not be there
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    return Tokenizer.from_file(str(path))


def _template(model_dir: Path) -> Any:  # noqa: ANN401 - jinja2's Template
    text = None
    if (model_dir / "chat_template.jinja").is_file():
        text = read_text(model_dir / "chat_template.jinja")
    elif (model_dir / "tokenizer_config.json").is_file():
        text = json.loads(read_bounded(model_dir / "tokenizer_config.json")).get("chat_template")
    if not isinstance(text, str):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(text)
    except TemplateError:
        return None


def _image_rule(model_dir: Path) -> ImageRule:
    path = model_dir / "preprocessor_config.json"
    value = json.loads(read_bounded(path)) if path.is_file() else {}
    size = value.get("size") or {}
    side = int(value.get("patch_size", 16)) * int(value.get("merge_size", 2))
    least = int(size.get("shortest_edge", value.get("min_pixels", side * side)))
    return ImageRule(side, least, int(size.get("longest_edge", value.get("max_pixels", 16_384 * side * side))))

"""The tiny model's tokenizer: byte-level BPE with a fixed list of merges, written without any tokenizer library."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dynamo_mlperf.benchmark import tiny_vocabulary as words

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Special tokens by id, spelled as Qwen's own tokenizer spells them."""

VOCABULARY_SIZE = 2048
"""Rows of the embedding; ids past the last token are unused."""

OPEN = '{"category": "'
BRAND_KEY = '", "brand": "'
FLAG_KEYS = ('", "is_secondhand": false, "note": "', '", "is_secondhand": true, "note": "')
NEXT_THING = ","
NEXT_DEED = ";"
CLOSE = '"}'
END = "<|im_end|>"

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _byte_letters() -> dict[int, str]:
    """The letter that stands for each byte: itself where it prints, else one from U+0100 on.

    The mapping is that of GPT-2's byte-level BPE, which the `ByteLevel` pre-tokenizer of Hugging Face's
    `tokenizers` builds in.
    """
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    letters = {byte: chr(byte) for byte in _PRINTABLE}
    return letters | {byte: chr(0x100 + place) for place, byte in enumerate(others)}


_LETTERS = _byte_letters()


def spell(text: str) -> str:
    """`text` as the vocabulary spells it: one letter for each UTF-8 byte."""
    return "".join(_LETTERS[byte] for byte in text.encode())


def answer_steps() -> tuple[tuple[str, ...], ...]:
    """The texts among which the model picks at each step of an answer, in the order in which an answer runs.

    Each text is one token. A step is left as soon as one of the next step's tokens is picked.
    """
    tops, middles, leaves = (tuple(dict.fromkeys(path[level] for path in words.CATEGORIES)) for level in range(3))
    return (
        (OPEN,),
        tops,
        tuple(f" > {name}" for name in middles),
        tuple(f" > {name}" for name in leaves),
        (BRAND_KEY,),
        words.BRANDS,
        FLAG_KEYS,
        tuple(f" {word}" for word in words.QUALITIES),
        (NEXT_THING,),
        tuple(f" {word}" for word in words.THINGS),
        (NEXT_DEED,),
        tuple(f" {word}" for word in words.DEEDS),
        (CLOSE,),
        (END,),
    )


WORD_STEPS = (8, 10, 12)
"""The steps, counted from 1, that may repeat: qualities, things, deeds."""


@dataclass(frozen=True)
class TinyTokenizer:
    """Token ids by spelled text, and the merges in order of rank."""

    vocabulary: dict[str, int]
    merges: tuple[tuple[str, str], ...]

    def id_of(self, text: str) -> int:
        """The id of the one token that reads `text` (KeyError where it is more than one)."""
        return self.vocabulary[text if text in SPECIAL_TOKENS else spell(text)]

    def as_json(self) -> dict[str, Any]:
        """The content of `tokenizer.json`, in the format of Hugging Face's `tokenizers`."""
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added = [{"id": place, "content": token, **flags} for place, token in enumerate(SPECIAL_TOKENS)]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": self.vocabulary,
                "merges": [list(pair) for pair in self.merges],
            },
        }


def _merged(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """`pieces` after all merges known so far, lowest rank first, as BPE applies them."""
    while True:
        known = [(ranks[pair], place) for place, pair in enumerate(pairwise(pieces)) if pair in ranks]
        if not known:
            return pieces
        place = min(known)[1]
        pieces = [*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :]]


def _merges_for(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Merges that make one token of every text: what earlier merges leave of it is joined from the left.

    A later merge never undoes an earlier one (BPE takes the lowest rank first), so each text stays whole.
    """
    ranks: dict[tuple[str, str], int] = {}
    for text in texts:
        pieces = _merged(list(spell(text)), ranks)
        while len(pieces) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
            pieces = [pieces[0] + pieces[1], *pieces[2:]]
    return tuple(ranks)


def tiny_tokenizer() -> TinyTokenizer:
    """Build the tokenizer; the same one on every machine."""
    segments = [piece for path in words.CATEGORIES for name in path for piece in name.split()]
    lower = [*words.QUALITIES, *words.THINGS, *words.DEEDS, *words.PLAIN]
    texts = [*(f" {word}" for word in [*lower, *words.BRANDS, *segments]), *words.BRANDS]
    merges = _merges_for(texts)
    tokens = [*SPECIAL_TOKENS, *(_LETTERS[byte] for byte in range(256)), *(left + right for left, right in merges)]
    # Pieces of an answer span what the pre-tokenizer splits: they need no merges, only ids.
    tokens += [spell(text) for step in answer_steps() for text in step if text not in SPECIAL_TOKENS]
    vocabulary = {token: place for place, token in enumerate(dict.fromkeys(tokens))}
    return TinyTokenizer(vocabulary, merges)

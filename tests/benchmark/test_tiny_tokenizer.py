"""The tiny tokenizer, judged by the library that engines use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from dynamo_mlperf.benchmark import tiny_vocabulary as words
from dynamo_mlperf.benchmark.tiny_tokenizer import (
    SPECIAL_TOKENS,
    VOCABULARY_SIZE,
    WORD_STEPS,
    answer_steps,
    spell,
    tiny_tokenizer,
)


@pytest.fixture(scope="module")
def library() -> Any:
    return Tokenizer.from_str(json.dumps(tiny_tokenizer().as_json()))


def test_fits_the_embedding_and_starts_with_the_special_tokens() -> None:
    vocabulary = tiny_tokenizer().vocabulary
    assert len(vocabulary) <= VOCABULARY_SIZE
    assert list(vocabulary.values()) == list(range(len(vocabulary)))
    assert tuple(vocabulary)[: len(SPECIAL_TOKENS)] == SPECIAL_TOKENS


def test_every_merge_makes_a_token_of_tokens() -> None:
    tokenizer = tiny_tokenizer()
    for left, right in tokenizer.merges:
        assert {left, right, left + right} <= set(tokenizer.vocabulary)


def test_no_word_is_sampled_at_two_steps() -> None:
    texts = [text for step in answer_steps() for text in step]
    assert len(texts) == len(set(texts))
    assert [len(answer_steps()[step - 1]) > 50 for step in WORD_STEPS] == [True, True, True]


def test_spelling_is_reversible_over_all_bytes() -> None:
    letters = [spell(chr(byte)) for byte in range(128)]
    assert len(set(letters)) == 128
    assert spell(" the\n") == "ĠtheĊ"


@pytest.mark.parametrize(
    "word", [*words.QUALITIES[:5], *words.THINGS[-5:], *words.DEEDS[-5:], *words.PLAIN, *words.BRANDS]
)
def test_each_word_is_one_token(library: Any, word: str) -> None:
    assert library.encode(f" {word}").tokens == [f"Ġ{word}"]


@pytest.mark.parametrize(
    "text",
    [
        "plain words, and\nsome  spaces",
        "naïve ☃ 東京 🙂",
        "".join(map(chr, range(1, 256))),
        '{"category": "Home & Garden > Kitchen > Cups"}',
    ],
)
def test_any_text_survives(library: Any, text: str) -> None:
    assert library.decode(library.encode(text).ids, skip_special_tokens=False) == text


def test_an_answer_decodes_to_the_json_that_the_benchmark_asks_for(library: Any) -> None:
    tokenizer = tiny_tokenizer()
    ids = [tokenizer.id_of(step[-1]) for step in answer_steps()]
    answer = json.loads(library.decode(ids))
    assert answer["category"] == "Electronics > Cameras > Lenses"
    assert answer["brand"] == "Pinecrest"
    assert answer["is_secondhand"] is True


def test_special_tokens_are_recognised_in_text(library: Any) -> None:
    ids = library.encode("<|im_start|>user<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)

"""Final answers are found where the reference scorers find them; every expectation is derived by hand from its rules."""

from __future__ import annotations

import pytest

from dynamo_mlperf.benchmark.accuracy import extraction

FINAL = "<|channel|>analysis<|message|>Answer: B \\boxed{1}<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("", None),
        ("Answer: B", "B"),
        ("ANSWER (c) or rather Final answer = d.", "D"),
        ("answer: A then answer: E", "A"),
        ("Answer: Bob", None),
        ("A", None),
        ("['ANSWER: C']", "C"),
        ("line\\nANSWER: A\\nend", "A"),
        ("ANSWER:D", "D"),
    ],
)
def test_the_last_stated_letter_counts_for_deepseek(text: str, letter: str | None) -> None:
    assert extraction.choice(text, "D") == letter


def test_of_ten_choices_a_letter_that_stands_alone_counts_where_none_is_stated() -> None:
    assert extraction.choice("I take H, not g", "J") == "G"
    assert extraction.choice("Answer: C, surely not I", "J") == "C"
    assert extraction.choice_in_channels(FINAL + "Surely H<|return|>", "J") == "B"


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (FINAL + "C<|return|>", "C"),
        (FINAL + "**D**", "D"),
        (FINAL + "The answer. a<|return|>", "A"),
        (FINAL + "No idea<|return|>", "B"),
        ("<|channel|>final 明<|message|>(A) it is", "A"),
        ("Actually C", None),
        ("  b) because", "B"),
        ("", None),
    ],
)
def test_the_final_channel_counts_first_for_gpt_oss(text: str, letter: str | None) -> None:
    assert extraction.choice_in_channels(text, "D") == letter


def test_boxed_expressions_may_hold_braces() -> None:
    assert extraction.boxed(r"\boxed{1} then \boxed{ \frac{1}{2} }") == r"\frac{1}{2}"
    assert extraction.boxed(r"\boxed{\frac{1}{2}") is None
    assert extraction.boxed("nothing") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"\boxed{12} and \boxed{ 070 }", 70),
        (r"Answer: 5 but \boxed{7}", 7),
        ("answer: 41 ... Answer: 42", 42),
        ("Answer: 42.5", None),
        (r"\boxed{1000} Answer: 3", None),
        (r"\boxed{" + "9" * 5000 + "}", None),
        (r"\boxed{-3}", None),
        ("42", None),
    ],
)
def test_aime_answers_are_integers_up_to_999(text: str, number: int | None) -> None:
    assert extraction.aime_number(text) == number


def test_deepseek_is_scored_by_its_first_python_block() -> None:
    assert extraction.code("```python\na=1\n```\n```python\nb=2\n```") == "a=1"
    assert extraction.code("```\na=1\n```") is None


def test_gpt_oss_is_scored_by_the_last_block_of_its_final_channel() -> None:
    draft = "<|channel|>analysis<|message|>```python\ndraft\n```<|end|><|channel|>final<|message|>"
    assert extraction.code_in_channels(draft + "```python\na\n``` ```python\nb\n```") == "b"
    assert extraction.code_in_channels(draft + "```py\nc\n```") == "c"
    assert extraction.code_in_channels(draft + "no code") == "draft"
    assert extraction.code_in_channels(draft + "```\n```") == ""
    assert extraction.code_in_channels("no code") is None

r"""Final answers found in what a model wrote: a letter, a number, a boxed expression, a block of code.

The rules are those of the reference scorers of mlcommons/inference b66003e1: `language/deepseek-r1/eval_accuracy.py`,
and `language/gpt-oss-120b/eval_accuracy.py` where the model writes in channels ("harmony"). They differ in what they
look at (the final channel or the whole text) and in which of several answers counts. Every function takes the text as
decoded, and returns None where it holds no answer.
"""

from __future__ import annotations

import re

_FINAL_CHANNEL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>(.*?)(?:<\|return\|>|$)", re.DOTALL)
"""Between the channel's name and its text there may be letters that do not belong there."""

_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_BOXED = r"\boxed{"
_BOXED_NUMBER = re.compile(r"\\boxed\{\s*(\d+)\s*\}")
_SPOKEN_NUMBER = re.compile(r"answer:\s*(\d+)(?!\.)\b", re.IGNORECASE)
_LARGEST_AIME = 999
_PYTHON_BLOCK = re.compile(r"```python(.*?)```", re.DOTALL)
_ANY_BLOCK = re.compile(r"```(.*?)```", re.DOTALL)
_LANGUAGE_LINE = re.compile(r"^(?:python|py)\s*\n", re.IGNORECASE)
_MANY_LETTERS = "J"
"""Last letter of MMLU-Pro's choices; with so many, a letter that stands alone counts where nothing else does."""


def final_channel(text: str) -> str:
    """The text of the first final channel, else the whole text; blanks at both ends are gone."""
    text = text.strip()
    found = _FINAL_CHANNEL.search(text)
    return found[1].strip() if found else text


def _last(pattern: str, text: str) -> str | None:
    letters: list[str] = re.findall(pattern, text, re.IGNORECASE)
    return letters[-1].upper() if letters else None


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\'", "'")


def _unwrapped(text: str) -> str:
    """Without the brackets of a printed list of one string."""
    if text.startswith(("['", '["')) and text.endswith(("']", '"]')):
        return text[2:-2].strip()
    return text


def _stated_letter(text: str, last_letter: str) -> str | None:
    """The last letter that follows the word "answer"."""
    pattern = rf"\b(?:answer|final\s*answer)\b\s*[:=]?\s*(?:\(?\s*([A-{last_letter}])\s*\)?)(?:\s*$|[^A-Za-z])"
    return _last(pattern, text)


def choice(text: str, last_letter: str) -> str | None:
    """The letter of a multiple-choice answer, A to `last_letter`, as deepseek-r1 is scored."""
    text = _unescaped(_unwrapped(text.strip()))
    stated = _stated_letter(text, last_letter)
    if stated is None and last_letter == _MANY_LETTERS:
        return _last(r"\b([A-J])\b", text)
    return stated


def choice_in_channels(text: str, last_letter: str) -> str | None:
    """The letter of a multiple-choice answer, A to `last_letter`, as gpt-oss-120b is scored.

    A letter that opens the final channel counts first, then the first stated there, then the last stated anywhere.
    """
    final = _unescaped(_unwrapped(_BOLD.sub(r"\1", final_channel(text))))
    opening = re.match(rf"[^a-zA-Z]*([A-{last_letter}])(?:[^a-zA-Z]|$)", final.strip(), re.IGNORECASE)
    if opening:
        return opening[1].upper()
    stated = re.search(rf"\banswer\s*[:.]?\s*([A-{last_letter}])\b", final, re.IGNORECASE)
    if stated:
        return stated[1].upper()
    anywhere = _stated_letter(_unescaped(text.strip()), last_letter)
    if anywhere is None and last_letter == _MANY_LETTERS:
        return _last(rf"\b([A-{last_letter}])\b", final)
    return anywhere


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces in it balanced; None where it is never closed."""
    text = text.strip()
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    start += len(_BOXED)
    open_braces = 0
    for at in range(start, len(text)):
        if text[at] == "{":
            open_braces += 1
        elif text[at] == "}":
            if not open_braces:
                return text[start:at].strip()
            open_braces -= 1
    return None


def aime_number(text: str) -> int | None:
    """The last boxed integer, else the last one after "answer:"; None unless it is 0 to 999."""
    digits = _BOXED_NUMBER.findall(text.strip()) or _SPOKEN_NUMBER.findall(text.strip())
    try:
        number = int(digits[-1]) if digits else None
    except ValueError:  # more digits than Python reads
        return None
    return number if number is not None and number <= _LARGEST_AIME else None


def code(text: str) -> str | None:
    """The first Python block, as deepseek-r1 is scored."""
    found = _PYTHON_BLOCK.search(text.strip())
    return found[1].strip() if found else None


def code_in_channels(text: str) -> str | None:
    """The last block of code, as gpt-oss-120b is scored: of the final channel, else of the whole text.

    Blocks marked as Python come before others.
    """
    text = text.strip()
    final = final_channel(text)
    found = _last_block(final) if final != text else None
    return _last_block(text) if found is None else found


def _last_block(text: str) -> str | None:
    marked = _PYTHON_BLOCK.findall(text)
    if marked:
        return str(marked[-1]).strip()
    blocks = _ANY_BLOCK.findall(text)
    return _LANGUAGE_LINE.sub("", str(blocks[-1]).strip()) if blocks else None

r"""Are two mathematical answers the same? The rules by which deepseek-r1's MATH-500 questions are scored.

The reference calls the grader of PRM800K (openai/prm800k 7ecc794, `prm800k/grading`): two ways to normalise LaTeX, then
sympy on the difference. What is here gives the same answers, quirks included, and runs in a process of its own
(`python -I math_equal.py`): sympy evaluates what it parses, and some expressions never end. It writes `ready`, reads
one JSON list `[truth, given]` a line and writes `1` or `0` a line; an expression that takes longer than its time counts
as not equal.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import resource
import signal
import sys
import warnings
from types import FrameType

READY = "ready"
"""The first line of its output: what it needs is there."""

SECONDS_EACH = 20
"""What one comparison may take; most take milliseconds."""

_MEMORY_BYTES = 4 << 30
_NEAR = 1e-7
_TUPLE_ENDS = "()[]"
_SHORTEST_TUPLE = 3
_SIDES = 2
_MOST_LETTERS = 2
_TEXT = re.compile(r"^\\text\{(.+?)\}$")
_WORDS = (("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"))
_UNITS = (
    "degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour",
    "day", "week", "month", "year", "foot", "feet", "inch", "yard",
)  # fmt: skip
_SYMBOLS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*"))  # noqa: RUF001 - the sign itself
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_NOT_EVALUATED = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+")
"""Powers that sympy might never finish."""


class _OutOfTimeError(Exception):
    pass


# -- the first way: LaTeX to one spelling --


def _spelled(answer: str) -> str:
    """The answer with LaTeX's many spellings made one; as it is where it cannot be read."""
    answer = answer.strip()
    found = _TEXT.search(answer)
    if found:
        answer = found[1].strip()
    try:
        return _one_spelling(answer)
    except (IndexError, ValueError):
        return answer


def _one_spelling(text: str) -> str:
    for old, new in (
        ("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", ""),
        ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""),
    ):  # fmt: skip
        text = text.replace(old, new)
    text = _without_unit(text).replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == _SIDES and len(sides[0]) <= _SIDES:  # such as "k = 3"
        text = sides[1]
    text = _with_braced_fractions(_with_braced_roots(text).replace(" ", ""))
    return _with_slash_as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _without_unit(text: str) -> str:
    before, *units = text.split("\\text{ ")
    if len(units) > 1:
        raise ValueError(text)
    return before


def _with_braced_roots(text: str) -> str:
    first, *roots = text.split("\\sqrt")
    return first + "".join("\\sqrt" + (root if root[0] == "{" else f"{{{root[0]}}}{root[1:]}") for root in roots)


def _with_braced_fractions(text: str) -> str:
    first, *rest = text.split("\\frac")
    done = first
    for part in rest:
        if part[0] == "{":
            done += "\\frac" + part
        elif len(part) == 1:
            return text
        elif part[1] == "{":
            done += f"\\frac{{{part[0]}}}{part[1:]}"
        else:
            done += f"\\frac{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return done


def _with_slash_as_fraction(text: str) -> str:
    parts = text.split("/")
    if len(parts) != _SIDES:
        return text
    try:
        above, below = int(parts[0]), int(parts[1])
    except ValueError:
        return text
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text


# -- the second way: to what sympy reads --


def _is_whole(number: float) -> bool:
    try:
        return abs(number - round(number)) <= _NEAR
    except (OverflowError, ValueError):
        return False


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_integer(text: str) -> bool:
    number = _as_number(_without_thousands(text))
    return number is not None and _is_whole(number)


def _without_thousands(text: str) -> str:
    """Without the commas of 1,234,567; those of tuples stay."""
    while (shorter := re.sub(r"(\d)(,)(\d\d\d)($|\D)", r"\1\3\4", text)) != text:
        text = shorter
    return text


def _without_latex(text: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text

    for old, new in (("\\tfrac", "\\frac"), ("\\dfrac", "\\frac"), ("\\frac", " \\frac")):
        text = text.replace(old, new)
    text = LatexNodes2Text().latex_to_text(text)
    for old, new in _SYMBOLS:
        text = text.replace(old, new)
    return text.strip()


def _plain(text: str) -> str:
    """The answer as a plain expression in lower case, without blanks, units and braces."""
    found = _TEXT.search(text)
    text = found[1] if found else text
    for old, new in (("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , "), *_WORDS):
        text = text.replace(old, new)
    for unit in _UNITS:
        text = re.sub(rf"{unit}(es)?(s)? *(\^[0-9]+)?", "", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text and text[0] == "{" and text[-1] == "}":
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    number = _as_number(text)
    if number is not None and _is_whole(number):
        text = str(round(number))
    if "\\" in text:
        try:
            text = _without_latex(text)
        except _OutOfTimeError:
            raise
        except Exception:  # noqa: BLE001, S110 - whatever the parser trips over, the text stays as it is
            pass
    text = re.sub(r"- *", "-", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", text)  # 7 3/4 is 7 + 3/4
    text = re.sub(r"[ {}]", "", text).lower()
    return str(int(float(text.replace(",", "")))) if _is_integer(text) else text


def _members(text: str) -> list[str]:
    """The members of a tuple or interval, else the one expression."""
    text = _without_thousands(text)
    if not text:
        return []
    inner = text[1:-1]
    ends = len(text) >= _SHORTEST_TUPLE and text[0] in _TUPLE_ENDS and text[-1] in _TUPLE_ENDS
    if ends and not any(end in inner for end in _TUPLE_ENDS):
        return [member.strip() for member in inner.split(",")]
    return [text]


def _difference_is_zero(truth: str, given: str) -> bool:
    text = f"({truth})-({given})"
    letters = {letter for letter in text.replace("sqrt", "").replace("frac", "") if letter.isalpha()}
    if len(letters) > _MOST_LETTERS or _NOT_EVALUATED.search(text):
        return False
    import sympy
    from sympy.parsing import sympy_parser

    try:
        expression = sympy_parser.parse_expr(
            text.replace("^", "**"),
            transformations=(
                *sympy_parser.standard_transformations,
                sympy_parser.implicit_multiplication_application,
            ),
        )
        return bool(sympy.simplify(expression) == 0)
    except _OutOfTimeError:
        raise
    except Exception:  # noqa: BLE001 - what sympy cannot read is not equal
        return False


def _same_member(truth: str, given: str) -> bool:
    if _FRACTION.search(truth) and _FRACTION.search(given):
        return truth == given  # unreduced fractions are wrong
    if _is_integer(truth) != _is_integer(given):
        return False
    return _difference_is_zero(truth, given)


def same_answer(truth: str, given: str) -> bool:
    """Whether `given` counts as `truth`; can take for ever."""
    if _spelled(truth) == _spelled(given):
        return True
    plain_truth, plain_given = _plain(truth), _plain(given)
    if plain_truth == plain_given:
        return True
    if not plain_given:
        return False
    wanted, seen = _members(plain_truth), _members(plain_given)
    if len(wanted) != len(seen):
        return False
    ends_differ = plain_truth[0] != plain_given[0] or plain_truth[-1] != plain_given[-1]
    if len(wanted) > 1 and ends_differ:
        return False
    return all(_same_member(left, right) for left, right in zip(wanted, seen, strict=True))


# -- the process --


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise _OutOfTimeError


def _timed(truth: str, given: str) -> bool:
    signal.alarm(SECONDS_EACH)
    try:
        return same_answer(truth, given)
    except (_OutOfTimeError, RecursionError, MemoryError):
        return False
    finally:
        signal.alarm(0)


def main() -> None:
    """Answer each line of standard input.

    Raises:
        ImportError: sympy or pylatexenc is not installed.
    """
    warnings.simplefilter("ignore")
    for needed in ("sympy", "pylatexenc.latex2text"):
        importlib.import_module(needed)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _out_of_time)
    for line in sys.stdin:
        truth, given = json.loads(line)
        sys.stdout.write("1\n" if _timed(truth, given) else "0\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

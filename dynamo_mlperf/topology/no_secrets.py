"""No secret stands in a file that a person writes: every run keeps a copy of it, and pages show it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynamo_mlperf.process.secret_words import is_literal, is_secret_key, secret_in
from dynamo_mlperf.topology.document import Document, Place, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

_WHY = (
    "and this file is recorded with every run; leave it out: weights are staged before engines start, and engines "
    "start offline, so none of them needs one"
)
LOOKS_LIKE_ONE = f"looks like a secret, {_WHY}"
WAY_OUT = (
    "take it out, and revoke it where others saw the file; what an engine must have all the same, let it find by name "
    "in its environment: the site's `prologue: ['. FILE']` reads FILE on the node, and records nothing of it"
)
_COMMENT = re.compile(r"(?:^|\s)#.*")


def is_about_a_secret(problem: Problem) -> bool:
    """Whether a problem is that a secret stands there."""
    return problem.text.endswith(_WHY)


def secret_problems(document: Document) -> list[Problem]:
    """Each value that is a secret by its key or its form, and each comment that holds one; none is shown."""
    found = [*_in_values(document.value, ())]
    for number, line in enumerate(document.text.splitlines(), 1):
        comment = _COMMENT.search(line)
        what = secret_in(comment[0]) if comment else None
        if what is not None and not any(document.line_of(problem.place) == number for problem in found):
            found.append(Problem((f"line {number}",), f"holds {what}, {_WHY}"))
    return found


def _in_values(value: object, place: Place) -> Iterator[Problem]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _below(key, below, (*place, key))
    elif isinstance(value, list):
        for position, part in enumerate(value):
            yield from _in_values(part, (*place, position))
    elif isinstance(value, str) and (what := secret_in(value)) is not None:
        yield Problem(place, f"holds {what}, {_WHY}")


def _below(key: str, value: object, place: Place) -> Iterator[Problem]:
    if is_secret_key(key) and not isinstance(value, dict) and is_literal(value):
        yield Problem(place, LOOKS_LIKE_ONE)
    elif (what := secret_in(key)) is not None:
        yield Problem(place[:-1], f"has a key that holds {what}, {_WHY}")
    else:
        yield from _in_values(value, place)

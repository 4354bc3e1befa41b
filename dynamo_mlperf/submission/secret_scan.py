"""Values that look like secrets: nothing that leaves the house holds one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dynamo_mlperf.files import open_regular
from dynamo_mlperf.process.secret_words import (
    AFTER,
    ASSIGNED,
    FORMS,
    NO_LITERAL,
    WORD_MARKS,
    WRITTEN,
    is_secret_name,
    is_value,
)
from dynamo_mlperf.submission.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_BLOCK_BYTES = 8 * 2**20
_OVERLAP_BYTES = 512
_LEAST_LETTERS = 12
"""A value of the environment shorter than this is no secret worth its name, and would be found everywhere."""

_FORMS = tuple((what, tuple(mark.encode() for mark in marks), re.compile(form.encode())) for what, marks, form in FORMS)
_ASSIGNED, _WRITTEN = re.compile(ASSIGNED.encode()), re.compile(WRITTEN.encode())
_WORD_MARKS = tuple(mark.encode() for mark in WORD_MARKS)
_NO_LITERAL = re.compile(NO_LITERAL.encode())


def secrets_in(paths: Iterable[Path], environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Every file that holds what looks like a secret; the value itself is not shown.

    Args:
        paths: The files.
        environment: Whose secret variables' values are looked for too; left out, that of this process.
    """
    known = os.environ if environment is None else environment
    values = {
        name: value.encode() for name, value in known.items() if is_secret_name(name) and len(value) >= _LEAST_LETTERS
    }
    return [
        Finding(str(path), "secrets", "none", what, "take it out of the run's environment or files, and revoke it")
        for path in paths
        for what in sorted(set(_found(path, values)))
    ]


def _found(path: Path, values: Mapping[str, bytes]) -> Iterator[str]:
    rest = b""
    with open_regular(path) as source:
        while block := source.read(_BLOCK_BYTES):
            text = rest + block
            yield from _in_text(text, values)
            rest = text[-_OVERLAP_BYTES:]


def _in_text(text: bytes, values: Mapping[str, bytes]) -> Iterator[str]:
    """Plain searches first: a log of a gigabyte has none of these marks, and regular expressions are slow."""
    for what, marks, form in _FORMS:
        if any(mark in text for mark in marks) and any(not _NO_LITERAL.match(value) for value in form.findall(text)):
            yield what
    if any(word in text for word in (b"TOKEN", b"SECRET", b"PASSW", b"KEY")):
        for match in _ASSIGNED.finditer(text):
            if _holds_value(match):
                yield f"a value of {match['name'].decode('ascii', 'replace')}"
    small = text.lower()
    named = any(mark in small for mark in _WORD_MARKS) or (b"--" in text and b"token" in text)
    if named and any(_holds_value(match) for match in _WRITTEN.finditer(text)):
        yield "a value of an option or a key that is named as a secret"
    for name, value in values.items():
        if value in text:
            yield f"the value of {name}"


def _holds_value(match: re.Match[bytes]) -> bool:
    start, end = match.span("secret")
    parts = (match.string[match.start() : start], match["secret"], match.string[end : end + AFTER])
    return is_value(*(part.decode(errors="replace") for part in parts))

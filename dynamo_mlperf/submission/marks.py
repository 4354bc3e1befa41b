"""What says that a tree holds rehearsed results: many marks, each in a place of its own, each enough to refuse it.

A rehearsal proves the form of a submission, and its figures are nobody's. So the tree that is made of it says what it
is wherever it can without spoiling the form: in the names, the notes, the configuration, the scores, the verification
files and the records. There is no secret in it: whoever takes every mark out and writes other records forges evidence.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import read_text

if TYPE_CHECKING:
    from pathlib import Path

SUBMITTER = "REHEARSAL"
CLASS_KEY = "result_class"
"""A sixth key of measurements.json."""

NOTE = "REHEARSAL: simulated engines or an oracle, no measurement of this system; not a submission"
LINE = f"# {NOTE}"
"""As a comment in user.conf, and as a line of accuracy.txt and of verification files, where readers pass over it."""

_MARK = re.compile(r"\bREHEARSAL\b")
_SIMULATED = ("mocker",)
_MOST_BYTES = 4 * 2**20


def marked(text: str) -> bool:
    """Whether a text says that it belongs to a rehearsal."""
    return _MARK.search(text) is not None


def with_line(text: str) -> str:
    """A text file's content with the mark above it."""
    return f"{LINE}\n{text}"


def text_of(path: Path) -> str:
    """A small file's text; empty where it is none, or cannot be read."""
    try:
        return read_text(path, errors="replace") if path.is_file() and path.stat().st_size <= _MOST_BYTES else ""
    except OSError:
        return ""


def marks_in_file(path: Path) -> bool:
    """Whether a small text file carries a mark."""
    return marked(text_of(path))


def marks_in_record(record: dict[str, Any]) -> list[str]:
    """What in a scenario's record says that nothing real was measured, each as `what: value`."""
    found = []
    for name, test in (record.get("tests") or {}).items():
        said = test.get("class") if isinstance(test, dict) else test
        if said != "official":
            found.append(f"class of the {name} test: {said}")
    if record.get("class") != "official":
        found.append(f"class of the result: {record.get('class')}")
    if record.get("engine") in _SIMULATED:
        found.append(f"engine: {record['engine']}")
    proof = record.get("disaggregation") or {}
    if proof.get("proof") == "routing only":
        found.append("proof of disaggregation: routing only, as simulated engines give it")
    return found

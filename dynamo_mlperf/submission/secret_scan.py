"""Values that look like secrets: nothing that leaves the house holds one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from dynamo_mlperf.process.command import is_secret_name
from dynamo_mlperf.submission.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_BLOCK_BYTES = 8 * 2**20
_OVERLAP_BYTES = 512
_LEAST_LETTERS = 12
"""A value of the environment shorter than this is no secret worth its name, and would be found everywhere."""

_FORMS = (
    ("a Hugging Face token", (b"hf_",), rb"\bhf_[A-Za-z0-9]{20,}"),
    ("an NVIDIA key", (b"nvapi-",), rb"\bnvapi-[A-Za-z0-9_-]{20,}"),
    ("an OpenAI or Anthropic key", (b"sk-",), rb"\bsk-[A-Za-z0-9_-]{20,}"),
    ("a GitHub token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    ("a GitHub token", (b"github_pat_",), rb"\bgithub_pat_[A-Za-z0-9_]{20,}"),
    ("an AWS key", (b"AKIA", b"ASIA"), rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    ("a bearer token", (b"Bearer ", b"bearer "), rb"[Bb]earer [A-Za-z0-9._~+/-]{20,}"),
    ("a private key", (b"PRIVATE KEY",), rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    ("a password in a URL", (b"://",), rb"://[^/\s:@\"']+:[^/\s:@\"']{3,}@"),
)
_ASSIGNED = re.compile(
    rb"\b([A-Z][A-Z0-9_]*(?:TOKEN(?!S)|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)[A-Z0-9_]*)"
    rb"[\"']?\s*[=:]\s*[\"']?([^\s\"',}]{8,})"
)
_WRITTEN = re.compile(
    rb"(?:--[a-z0-9-]*(?:password|passwd|secret|api-?key|access-?key|token)[= ]\s*"
    rb"|(?<![A-Za-z0-9])[a-z0-9_-]*(?:password|passwd|secret|api[_-]?key|access[_-]?key"
    rb"|(?:hf|auth|access|api|bearer)[_-]?token)[\"']?\s*[=:]\s*)[\"']?([^\s\"',}()]{8,})"
)
"""The same in small letters: as an option of a program, or as a key."""
_NO_VALUE = re.compile(rb"\(not|null|none|true|false|\$\{?[A-Z_]+\}?|\*+|[0-9.]+$", re.IGNORECASE)
_COMPILED = tuple((what, anchors, re.compile(form)) for what, anchors, form in _FORMS)


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
    with path.open("rb") as source:
        while block := source.read(_BLOCK_BYTES):
            text = rest + block
            yield from _in_text(text, values)
            rest = text[-_OVERLAP_BYTES:]


def _in_text(text: bytes, values: Mapping[str, bytes]) -> Iterator[str]:
    """Plain searches first: a log of a gigabyte has none of these marks, and regular expressions are slow."""
    for what, anchors, form in _COMPILED:
        if any(anchor in text for anchor in anchors) and form.search(text):
            yield what
    if any(word in text for word in (b"TOKEN", b"SECRET", b"PASSW", b"KEY")):
        for name, value in _ASSIGNED.findall(text):
            if not _NO_VALUE.match(value):
                yield f"a value of {name.decode('ascii', 'replace')}"
    small = any(word in text for word in (b"token", b"secret", b"passw", b"key"))
    if small and any(not _NO_VALUE.match(value) for value in _WRITTEN.findall(text)):
        yield "a value of an option or a key that is named as a secret"
    for name, value in values.items():
        if value in text:
            yield f"the value of {name}"

"""Files of a run directory, taken as they come: cut, damaged, not to be read, or far too large; none ends a reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import MOST_RECORD_BYTES, RepeatedKeyError, open_regular, read_bounded, strict_json
from dynamo_mlperf.process.secret_words import redacted, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MOST_TEXT_BYTES = 1_000_000
"""As long as a topology file may be."""
_MOST_LINE_BYTES = 4_000_000
_MOST_DEPTH = 64


def is_there(path: Path) -> bool:
    """Whether there is such a file, as far as can be seen: false too where its folder cannot be read."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a folder cannot be read


def found_below(folder: Path, pattern: str) -> list[Path]:
    """What the pattern finds, in order; nothing where the folder cannot be read."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def parsed(raw: bytes) -> Any:  # noqa: ANN401 - anything that JSON can carry
    """The JSON value in `raw`, with what looks like a secret out: a page goes to other people.

    Raises:
        ValueError: It is none, or nested so deeply that nothing of ours has written it.
    """
    try:
        value = strict_json(raw)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except RepeatedKeyError as error:
        raise ValueError(f"holds the key {error.key} twice") from error
    except ValueError as error:
        raise ValueError("is not whole JSON") from error
    # Few brackets cannot nest deeply.
    if raw.count(b"{") + raw.count(b"[") > _MOST_DEPTH and _is_deep(value):
        raise ValueError("is nested too deeply")
    return without_secrets(value)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MOST_DEPTH):
        parts = (part for one in level for part in _parts(one))
        level = [part for part in parts if isinstance(part, dict | list)]
    return bool(level)


def _parts(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        value = parsed(read_bounded(path, MOST_RECORD_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Reader:
    """Reads files and remembers what it could not read.

    Attributes:
        missing: Names of files that are not there.
        damaged: What could not be read, in words.
    """

    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def finds(self, path: Path, name: str) -> bool:
        """Whether there is such a file; remembered where there is none, or its folder does not tell."""
        if is_there(path):
            return True
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self.missing.append(name)
        except OSError as error:
            self.damaged.append(f"{name} {_why(error)}")
        else:
            self.missing.append(name)
        return False

    def object(self, path: Path, name: str) -> dict[str, Any] | None:
        """The JSON object in `path`; None, and remembered, where there is none."""
        raw = self._content(path, name, MOST_RECORD_BYTES)
        if raw is None:
            return None
        try:
            value = parsed(raw)
        except ValueError as error:
            self.damaged.append(f"{name} {error}")
            return None
        if isinstance(value, dict):
            return value
        self.damaged.append(f"{name} holds no JSON object")
        return None

    def lines(self, path: Path, name: str) -> list[dict[str, Any]]:
        """The JSON objects of a JSON-lines file; a line that is none is counted, not shown."""
        if not self.finds(path, name):
            return []
        values: list[dict[str, Any]] = []
        unreadable = 0
        try:
            for line in _lines(path):
                try:
                    value = parsed(line)
                except ValueError:
                    value = None
                if isinstance(value, dict):
                    values.append(value)
                else:
                    unreadable += 1
        except (OSError, ValueError) as error:
            self.damaged.append(f"{name} {_why(error)}")
        if unreadable:
            self.damaged.append(f"{name}: {unreadable} unreadable line{'s' if unreadable > 1 else ''}")
        return values

    def text(self, path: Path, name: str) -> str | None:
        """The file's text, secrets out; None, and remembered, where there is none."""
        raw = self._content(path, name, MOST_TEXT_BYTES)
        return None if raw is None else redacted(raw.decode(errors="replace"))

    def _content(self, path: Path, name: str, most_bytes: int) -> bytes | None:
        if not self.finds(path, name):
            return None
        try:
            return read_bounded(path, most_bytes)
        except (OSError, ValueError) as error:
            self.damaged.append(f"{name} {_why(error)}")
            return None


def _why(error: OSError | ValueError) -> str:
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)


def _lines(path: Path) -> Iterator[bytes]:
    """The file's lines, one at a time.

    Raises:
        ValueError: A line, or all together, are longer than any run's; the lines before that have come.
        OSError: The file cannot be read.
    """
    left = MOST_RECORD_BYTES
    with open_regular(path) as source:
        while line := source.readline(_MOST_LINE_BYTES + 1):
            left -= len(line)
            if left < 0 or len(line) > _MOST_LINE_BYTES:
                what = "has a line of more than" if len(line) > _MOST_LINE_BYTES else "is longer than"
                most_bytes = _MOST_LINE_BYTES if len(line) > _MOST_LINE_BYTES else MOST_RECORD_BYTES
                raise ValueError(f"{what} {most_bytes // 1_000_000} MB")
            yield line.rstrip(b"\r\n")

"""Data sets of one JSON object a line, read strictly: a sample's index is its line, so no line may mean two things.

A file that was cut, joined or written by a broken program shows by blank lines, keys given twice, zero bytes or a line
without end; what runs on it would be measured on other samples than people believe.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import RepeatedKeyError, open_regular, strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES = 64 * 1024 * 1024
"""Longest line: a prompt of a million tokens has some 4 MB."""
_REPAIR = "repair this line"


def json_lines(path: Path, way_out: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place (`FILE:LINE`) and object of every line; blank ones are passed over at the very end alone.

    Args:
        path: The file.
        way_out: What to do where it cannot be read.

    Raises:
        ConfigError: It cannot be read, or a line is blank, too long, not UTF-8, no JSON object, or holds a key twice
            or a NUL character; names file and line.
    """
    number, blank = 0, ""
    try:
        with open_regular(path) as source:
            while line := source.readline(MOST_BYTES + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > MOST_BYTES:
                    raise ConfigError(f"{where}: a line of more than {MOST_BYTES} bytes", _REPAIR)
                if not line.strip():
                    blank = blank or where
                    continue
                if blank:
                    raise ConfigError(f"{blank}: a blank line where a sample has to be", "take the line out")
                yield where, _object(_text(line, where, way_out), where)
    except OSError as error:
        raise ConfigError(f"measure.dataset: {path}: {error.strerror}", way_out) from error


def _text(line: bytes, where: str, way_out: str) -> str:
    try:
        return line.decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"measure.dataset: {where}: not UTF-8 at byte {error.start}", way_out) from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = strict_json(text)
    except RepeatedKeyError as error:
        raise ConfigError(f"{where}: {error}", "leave one") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {error.msg} at column {error.colno}", _REPAIR) from error
    except (ValueError, RecursionError) as error:  # Python's limits: 4300 digits an integer, about 1000 levels
        raise ConfigError(f"{where}: no JSON that can be read: {error}", _REPAIR) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a {type(value).__name__} where an object has to be: {text[:80]}", _REPAIR)
    if "\\u0000" in text and any("\0" in inside for inside in _strings(value)):
        raise ConfigError(f"{where}: holds a NUL character, which no engine's tokenizer takes", _REPAIR)
    return value


def _strings(value: object) -> Iterator[str]:
    """Every text inside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for below in value.values():
            yield from _strings(below)
    elif isinstance(value, list):
        for below in value:
            yield from _strings(below)

"""How a process's log ends, for messages: without terminal colours, and read from the end of the file only."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from dynamo_mlperf.process.secret_words import redacted

if TYPE_CHECKING:
    from pathlib import Path

TAIL_LINES = 15
LINE_CHARACTERS = 100
_READ_BYTES = 65536
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def tail(log: Path, lines: int) -> str:
    """The last lines of a log; empty where there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as source:
        source.seek(max(0, log.stat().st_size - _READ_BYTES))
        text = source.read().decode(errors="replace")
    return "\n".join(f"    {line.rstrip()}" for line in _ANSI.sub("", text).splitlines()[-lines:] if line.strip())


def last_line(log: Path) -> str:
    """The last line that says something, cut short and with its secrets out; empty where there is none."""
    with suppress(OSError):  # what is only shown while something else is waited for ends nothing
        said = redacted(tail(log, TAIL_LINES).rpartition("\n")[2].strip())
        shown = "".join(character if character.isprintable() else " " for character in said)
        return shown if len(shown) <= LINE_CHARACTERS else f"{shown[:LINE_CHARACTERS]} ..."
    return ""

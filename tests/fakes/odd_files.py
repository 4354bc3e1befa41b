"""What may stand in a file's place: a reader that takes it for a file waits, reads without end, or runs out of memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _device(path: Path) -> None:
    path.symlink_to("/dev/null")  # ends, as /dev/zero does not, so that a reader that is wrong only fails its test


def _long(path: Path) -> None:
    with path.open("wb") as out:
        out.truncate(1_500_000_000)


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": _device,
    "a folder": Path.mkdir,
    "1.5 GB": _long,
}
SAID = {"a pipe": "a device or pipe", "a device": "a device or pipe", "a folder": "directory", "1.5 GB": "MB"}
"""What an error says of it."""

"""Shared memory that killed engines leave in /dev/shm: noted while they live, removed once nobody maps it.

An engine that ends by itself unlinks its segments; one that is killed, or whose resource tracker is, leaves hundreds of
megabytes of memory taken until the machine restarts. Their names say nothing of whose they are, so they are noted by
what our processes really map.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACE = "/dev/shm/"  # noqa: S108 - where POSIX shared memory lies (shm_overview(7)); nothing is made there
_GONE = " (deleted)"
NOTE_EVERY_S = 10.0


def mapped_by(pids: Iterable[int]) -> set[str]:
    """Paths in /dev/shm that the processes map; those of other users, and ended ones, show nothing."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                at = line.find(_PLACE)
                if at >= 0 and not line.endswith(_GONE):
                    found.add(line[at:])
    return found


def remove_unmapped(paths: Iterable[str]) -> list[str]:
    """Remove those of the paths that exist, are this user's, and that no process maps; returns what was removed."""
    left = {path for path in paths if _is_ours(path)}
    if left:
        left -= mapped_by(psutil.pids())
    for path in left:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
    return sorted(left)


def _is_ours(path: str) -> bool:
    """A regular file directly in /dev/shm that belongs to this user: a note cannot make us remove anything else."""
    name = path.removeprefix(_PLACE)
    if not path.startswith(_PLACE) or "/" in name or not name:
        return False
    try:
        return Path(path).is_file() and not Path(path).is_symlink() and Path(path).stat().st_uid == os.getuid()
    except OSError:
        return False


class SharedMemoryNotes:
    """What the processes below this one map, noted in a file that outlives the controller."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: set[str] = set()
        self._next = 0.0

    def look(self, *, now: bool = False) -> None:
        """Note what is new; costs nothing between two looks."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + NOTE_EVERY_S
        children = psutil.Process().children(recursive=True)
        new = mapped_by(child.pid for child in children) - self._known
        if new:
            self._known |= new
            with self._file.open("a") as out:
                out.write("".join(f"{path}\n" for path in sorted(new)))

    def remove(self) -> list[str]:
        """Remove what was noted and is left, once the processes are gone."""
        return remove_unmapped(self._known)


def noted(file: Path) -> list[str]:
    """The paths of a notes file; none where there is no such file."""
    return file.read_text().splitlines() if file.exists() else []

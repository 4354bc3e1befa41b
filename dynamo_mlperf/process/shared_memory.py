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
    from collections.abc import Collection, Iterable

_PLACE = "/dev/shm/"  # noqa: S108 - where POSIX shared memory lies (shm_overview(7)); nothing is made there
_INODE_FIELD = 4
NOTE_EVERY_S = 10.0


def mapped_by(pids: Iterable[int]) -> set[int]:
    """Inodes in /dev/shm that the processes map; those of other users, and ended ones, show nothing.

    Not paths: a named semaphore is made under one name, mapped, then linked to its final one (sem_overview(7)).
    """
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if _PLACE in line:
                    found.add(int(line.split(maxsplit=5)[_INODE_FIELD]))
    return found


def remove_unmapped(inodes: Collection[int]) -> list[str]:
    """Remove this user's files in /dev/shm of these inodes that no process maps; returns their paths."""
    left = {path: inode for path, inode in _own_files().items() if inode in inodes}
    mapped = mapped_by(psutil.pids()) if left else set()
    removed = [path for path, inode in left.items() if inode not in mapped]
    for path in removed:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
    return sorted(removed)


def _own_files() -> dict[str, int]:
    """Inodes of the regular files directly in /dev/shm that belong to this user."""
    found = {}
    with os.scandir(_PLACE) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                known = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and known.st_uid == os.getuid():
                    found[entry.path] = known.st_ino
    return found


class SharedMemoryNotes:
    """What the processes below this one map, noted by inode in a file that outlives the controller."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: set[int] = set()
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
                out.write("".join(f"{inode}\n" for inode in sorted(new)))

    def remove(self) -> list[str]:
        """Remove what was noted and is left, once the processes are gone."""
        return remove_unmapped(self._known)


def noted(file: Path) -> set[int]:
    """The inodes of a notes file; none where there is no such file."""
    if not file.exists():
        return set()
    return {int(line) for line in file.read_text().split() if line.isdigit()}

"""Room on a node's disk: what a model needs against what is free, and whose place it may take.

Nothing is removed unless the site allows it, and nothing at all unless that makes enough room. What goes first is
what dead processes left half-copied, then whole directories, the least recently used first; never one in use.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.staging.lock import is_locked
from dynamo_mlperf.staging.manifest import MARKER
from dynamo_mlperf.staging.owner import is_abandoned, private_name
from dynamo_mlperf.staging.use import in_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.staging.manifest import Manifest

_counter = itertools.count()


@dataclass(frozen=True)
class Room:
    """What a manifest needs on a disk.

    Attributes:
        needed_bytes: What has to be written still; 0 where it is staged already.
        free_bytes: What is free now.
        evictable: Directories that may go, in the order in which they would, with their sizes in bytes.
        used: Directories in use, with why.
    """

    needed_bytes: int
    free_bytes: int
    evictable: tuple[tuple[Path, int], ...] = ()
    used: tuple[tuple[Path, str], ...] = ()

    @property
    def short_bytes(self) -> int:
        """What is missing; 0 if it fits."""
        return max(0, self.needed_bytes - self.free_bytes)


def needed_bytes(manifest: Manifest, present: Path) -> int:
    """What still has to be written where `present` holds a part of the manifest's files, in bytes."""
    here = 0
    for file in manifest.files:
        with suppress(OSError):
            status = (present / file.path).stat()
            here += min(file.bytes, status.st_blocks * 512, status.st_size)  # a hole takes no room yet
    return manifest.total_bytes - here


def look(manifest: Manifest, root: Path, final: Path, present: Path) -> Room:
    """The room for `manifest` below `root`, of which `present` is there already."""
    needed = needed_bytes(manifest, present)
    free = shutil.disk_usage(next(place for place in (root, *root.parents) if place.exists())).free
    if needed <= free:
        return Room(needed, free)
    ours = (final.name, present.name)
    if not root.is_dir():
        return Room(needed, free)
    partials = [
        path
        for path in sorted(root.glob(".*.partial"))
        if not path.name.startswith(f".{final.name}.") and is_abandoned(path)
    ]
    staged = [path.parent for path in root.glob(f"*/{MARKER}") if path.parent.name not in ours and _is_ours(path)]
    used = in_use(staged)
    staged.sort(key=_used_t)
    evictable = [(path, _size_bytes(path)) for path in (*partials, *staged) if path not in used]
    return Room(needed, free, tuple(evictable), tuple(sorted(used.items())))


def _is_ours(marker: Path) -> bool:
    """Whether the directory is one that staging made: its marker's digest is a part of its name."""
    try:
        digest = str(json.loads(read_bounded(marker))["manifest"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(digest) and marker.parent.name.rpartition("-")[2] == digest[:16]


def _used_t(directory: Path) -> float:
    """When a staged directory was last used: every use touches its marker."""
    try:
        return (directory / MARKER).stat().st_mtime
    except OSError:
        return 0.0


def _size_bytes(directory: Path) -> int:
    """What it takes on the disk, as far as it is still there: others may remove it meanwhile, which `os.walk` bears."""
    found = 0
    for place, folders, files in os.walk(directory):
        for name in (*folders, *files):
            with suppress(OSError):
                found += (Path(place) / name).lstat().st_blocks * 512
    return found


def fits(room: Room, *, evict: bool) -> bool:
    """Whether there is room, or may be made."""
    return sum(size for _, size in room.evictable if evict) >= room.short_bytes


def make_room(
    manifest: Manifest, root: Path, final: Path, present: Path, *, evict: bool, notice: Callable[[str], None]
) -> None:
    """See that the manifest fits below `root`, evicting where that is allowed and helps.

    Raises:
        SetupError: It does not fit; with the numbers. Then nothing has been removed.
    """
    room = look(manifest, root, final, present)
    if not room.short_bytes:
        return
    if not fits(room, evict=evict):
        raise refusal(manifest, root, room, evict=evict)
    for path, size_bytes in room.evictable:
        if shutil.disk_usage(root).free >= room.needed_bytes:
            break
        if _evict(path):
            notice(f"evicted {path.name}, {size_bytes} bytes")
    again = look(manifest, root, final, present)
    if again.short_bytes:
        raise refusal(manifest, root, again, evict=evict)


def refusal(manifest: Manifest, root: Path, room: Room, *, evict: bool) -> SetupError:
    """Why it does not fit, with the numbers, and what helps."""
    could_bytes = sum(size for _, size in room.evictable)
    told = f"{manifest.name} needs {room.needed_bytes} bytes on {root}; {room.free_bytes} are free"
    if room.used:
        told += f"; in use: {', '.join(f'{path.name} ({why})' for path, why in room.used)}"
    if could_bytes >= room.short_bytes and not evict:
        names = ", ".join(path.name for path, _ in room.evictable)
        return SetupError(
            told, f"allow eviction (evict: true in the site file, or --evict) of {could_bytes} bytes in {names}"
        )
    if room.evictable:
        told += f"; {could_bytes} more could be evicted"
    return SetupError(told, f"remove what you no longer need from {root}, or stage elsewhere with --to")


def _evict(path: Path) -> bool:
    """Remove one directory, unless it has come into use or somebody stages it just now.

    It is renamed first, to a name that any later stager of it may take over; a run that marked it meanwhile gets it
    back, for a mark is written before the directory is looked at.
    """
    if path.name.endswith(".partial"):
        shutil.rmtree(path, ignore_errors=True)
        return True
    if is_locked(path.parent / f".{path.name}.lock"):
        return False
    hidden = path.parent / private_name(path.name, next(_counter))
    try:
        path.rename(hidden)
    except OSError:
        return False
    if in_use([path, hidden]):
        with suppress(OSError):
            hidden.rename(path)
        return False
    shutil.rmtree(hidden, ignore_errors=True)
    return True

"""The marker of a staged directory: what was verified there, and whether that still holds.

A file that is as old, as large and in the same inode as when it was verified is not read again, so that hundreds of
gigabytes of shards are reused at once. Two times count: that of the last write, which any program can set back, and
that of the last change (ctime), which the kernel alone sets, so that a write behind a turned-back clock is seen too.
Small files, which an editor reaches most easily, are read at every reuse. What a disk loses by itself no time tells:
`verify_full` reads everything.
"""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import digest_file, read_bounded, write_json
from dynamo_mlperf.staging.manifest import MARKER, Manifest, ManifestFile

if TYPE_CHECKING:
    from pathlib import Path

    Stamp = dict[str, int]
    """Size in bytes, times of the last write and change in nanoseconds since the epoch, and inode number of a file."""

ALWAYS_HASHED_BELOW_BYTES = 1 << 20


def stamp(path: Path) -> Stamp:
    """How to tell later that `path` has not been written since.

    Raises:
        OSError: There is no such file.
        ValueError: It is no regular file.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no regular file")
    return {
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }


def write_marker(manifest: Manifest, directory: Path, stamps: dict[str, Stamp]) -> None:
    """Mark `directory` as whole; `stamps`, by path, are from just before each file was verified.

    Raises:
        OSError: The directory cannot be written.
    """
    files = {file.path: stamps[file.path] for file in manifest.files}
    digests = {file.path: file.blake3 for file in manifest.files}
    content = {"name": manifest.name, "manifest": manifest.digest, "files": files, "digests": digests}
    write_json(directory / MARKER, content)


def is_staged(manifest: Manifest, directory: Path) -> bool:
    """Whether `directory` carries the manifest's marker and every file as it was verified.

    Files below 1 MiB are hashed, and so are larger ones whose stamp is not the marker's. Where those verify, the
    marker is brought up to date, so that they are hashed only once.
    """
    try:
        stamp(directory / MARKER)
        marker = json.loads(read_bounded(directory / MARKER))
        if marker["manifest"] != manifest.digest:
            return False
        known = marker.get("files", {})
        stamps = {file.path: stamp(directory / file.path) for file in manifest.files}
        if not all(_holds(file, directory, stamps[file.path], known.get(file.path)) for file in manifest.files):
            return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    if stamps != known:
        with suppress(OSError):  # another user's directory can be read though not written
            write_marker(manifest, directory, stamps)
    return True


def _holds(file: ManifestFile, directory: Path, now: Stamp, known: Any) -> bool:  # noqa: ANN401 - from a JSON file
    """Whether one file has the manifest's size and, as far as its stamp leaves doubt, its digest."""
    if now["bytes"] != file.bytes:
        return False
    if file.bytes >= ALWAYS_HASHED_BELOW_BYTES and now == known:
        return True
    return digest_file(directory / file.path) == file.blake3

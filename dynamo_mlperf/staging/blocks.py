"""Bytes from file to file and from file to digest, as the kernel moves them fastest.

A copy goes by `sendfile`, which never shows the bytes to this process: what counts is what was written, and that is
read back and hashed. A copy that hashed on its way would hash twice. The kernel is asked to begin writing to the disk
while a file is copied, so that the disk works while the file is hashed; `flush` then waits for little.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    T = TypeVar("T")

BLOCK_BYTES = 8 * 1024 * 1024
HASHED_BYTES = 256 * 1024
"""What is read from the page cache and hashed at a time: it stays in a core's own cache in between."""
MOVED_BYTES = 64 * 1024 * 1024
"""What one `sendfile` moves: enough to ask seldom, little enough to show progress and to stop soon."""
STALE_TRIES = 4
"""How often one file is opened anew after the server forgot the handle (ESTALE, as NFS gives it)."""
STALE_PAUSE_S = 0.25
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)
_mine = threading.local()


def thread_buffer(size_bytes: int = BLOCK_BYTES) -> memoryview:
    """A page-aligned buffer of this thread's own, at least that large; used again by its next call."""
    held: mmap.mmap | None = getattr(_mine, "buffer", None)
    if held is None or len(held) < size_bytes:
        held = _mine.buffer = mmap.mmap(-1, size_bytes)
    return memoryview(held)


def despite_stale(work: Callable[[], T]) -> T:
    """Do `work` on one file; again from its opening where the file server has forgotten the handle.

    Raises:
        OSError: Whatever else went wrong, or ESTALE for the STALE_TRIES-th time.
    """
    for tried in range(1, STALE_TRIES + 1):
        try:
            return work()
        except OSError as error:
            if error.errno != errno.ESTALE or tried == STALE_TRIES:
                raise
            time.sleep(STALE_PAUSE_S * tried)
    raise AssertionError


def copy_file(source: Path, path: Path, advance: Callable[[int], None], stopped: Callable[[], bool]) -> None:
    """Copy `source` to `path`, not yet flushed; goes on at the same byte after ESTALE.

    Args:
        source: A regular file.
        path: Made; truncated if it is there.
        advance: Called with each block's size in bytes.
        stopped: Asked before each block; a copy that is stopped stays short.
    """
    done_bytes = 0

    def go() -> None:
        nonlocal done_bytes
        origin = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while not stopped() and (moved := os.sendfile(target, origin, done_bytes, MOVED_BYTES)):
                begin_flush(target, done_bytes, moved)
                done_bytes += moved
                advance(moved)
        finally:
            os.close(origin)

    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        despite_stale(go)
    finally:
        os.close(target)


def begin_flush(fd: int, at_bytes: int = 0, count: int = 0) -> None:
    """Ask the kernel to begin writing a part of a file to the disk (sync_file_range(2)); 0 bytes: up to its end.

    It waits for nothing and promises nothing; where it cannot be had, `flush` has more to do.
    """
    _LIBC.sync_file_range(fd, ctypes.c_int64(at_bytes), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


def flush(path: Path) -> None:
    """Wait until the disk holds the file.

    Raises:
        OSError: It could not be written there.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def digest_source(path: Path) -> str:
    """BLAKE3 of a file of the source, through the page cache, as 64 hex digits."""
    return despite_stale(lambda: _digest(path, os.O_RDONLY, HASHED_BYTES))


def digest_written(path: Path, *, from_device: bool = False) -> str:
    """BLAKE3 of what `path` holds here, as 64 hex digits.

    Args:
        path: The file; flushed, if it is to be read from the device.
        from_device: Read past the page cache (O_DIRECT), where the file system can; cached pages stay for the engine.
    """
    if from_device:
        try:
            return _digest(path, os.O_RDONLY | os.O_DIRECT, BLOCK_BYTES)
        except OSError as error:
            if error.errno not in _NO_DIRECT:
                raise
    return _digest(path, os.O_RDONLY, HASHED_BYTES)


def _digest(path: Path, flags: int, block_bytes: int) -> str:
    hasher = blake3()
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        buffer, at_bytes = thread_buffer(block_bytes)[:block_bytes], 0
        while read := os.preadv(fd, [buffer], at_bytes):
            hasher.update(buffer[:read])
            at_bytes += read
            if read % mmap.PAGESIZE:  # the end of the file; a direct read from here would not be aligned
                break
    finally:
        os.close(fd)
    return hasher.hexdigest()

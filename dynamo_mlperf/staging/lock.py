"""One stager at a time on a node, where file locks work; where they do not, staging is still correct, only slower."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_S = 0.1
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def held_lock(path: Path, wait_s: float) -> Iterator[None]:
    """Hold an exclusive `flock` on `path`; the kernel drops it when its holder dies, so none is ever stale.

    On a file system without locks the body runs without one.

    Raises:
        SetupError: Another process has held it for `wait_s` seconds.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(fd, path, wait_s)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                holder = os.pread(fd, 64, 0).decode(errors="replace") or "unknown"
                raise SetupError(
                    f"another process (pid {holder}) has been staging the same files for {wait_s:.0f} s; lock {path}",
                    "wait for it to finish, or end it, and stage again",
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return
        else:
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            return

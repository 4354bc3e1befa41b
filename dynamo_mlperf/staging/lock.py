"""One stager at a time on a node, where file locks work; where they do not, staging is still correct, only slower."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.owner import identity, is_gone, pid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECLAIM_S = 5.0
"""How long a lock may stay taken after its holder has ended before we go on without it."""
_POLL_S = 0.1
_NAME_BYTES = 128
_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def held_lock(path: Path, wait_s: float, notice: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive `flock` on `path`; the kernel drops it when its holder dies.

    The body runs without a lock on a file system that has none, and where a dead holder's lock stays taken for
    RECLAIM_S seconds (a network file system's server may keep it). `notice` is told of what a dead process left.

    Raises:
        SetupError: Another process has held it for `wait_s` seconds.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    held = False
    try:
        held = _acquire(fd, path, wait_s, notice)
        yield
    finally:
        if held:
            with suppress(OSError):  # a name left behind costs the next holder a notice, no more
                os.ftruncate(fd, 0)
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock now; False where locks do not work."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _acquire(fd: int, path: Path, wait_s: float, notice: Callable[[str], None]) -> bool:
    """Wait for the lock; False if the body has to do without."""
    began_s = time.monotonic()
    gone_since_s: float | None = None
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            now_s = time.monotonic()
            gone_since_s = (gone_since_s or now_s) if is_gone(holder) else None
            if gone_since_s is not None and now_s - gone_since_s >= RECLAIM_S:
                notice(f"process {pid_of(holder)} has ended but its lock {path} stays taken; going on without it")
                return False
            if now_s - began_s >= wait_s:
                raise SetupError(
                    f"another process (pid {pid_of(holder)}) has been staging the same files for {wait_s:.0f} s; "
                    f"lock {path}",
                    "wait for it to finish, or end it, and stage again",
                ) from None
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            return False
        else:
            _sign(fd, path, notice)
            return True


def _holder(fd: int) -> str:
    return os.pread(fd, _NAME_BYTES, 0).decode(errors="replace").strip()


def _sign(fd: int, path: Path, notice: Callable[[str], None]) -> None:
    """Write who holds the lock; a name that is there was left by a process that died with it."""
    before = _holder(fd)
    if before and is_gone(before):
        notice(f"lock {path} was left by process {pid_of(before)}, which has ended; taken over")
    os.ftruncate(fd, 0)
    os.pwrite(fd, identity().encode(), 0)

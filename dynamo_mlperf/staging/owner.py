"""Who writes a partial directory: a process, told apart from any other by its name alone, alive or dead.

Locks may be absent or lie on network file systems; this says who is alive without them.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_SILENT_S = 3600.0
_NAME = re.compile(r"\.(?P<boot>[0-9a-f]{8})-(?P<space>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+\.partial$")
# Field 22 of /proc/PID/stat, counted behind the command in parentheses (proc(5)): start time in ticks after boot.
_START_FIELD_AFTER_COMMAND = 19


def _start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rsplit(")", 1)[1].split()
    return None if state in "ZX" else int(fields[_START_FIELD_AFTER_COMMAND - 1])


def _machine() -> tuple[str, int]:
    """This boot (8 hex digits) and this PID namespace (its inode number)."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return boot, Path("/proc/self/ns/pid").stat().st_ino


def private_name(base: str, counter: int) -> str:
    """Name of a partial directory that only this process writes.

    It reads `.BASE.<boot>-<PID namespace>-<PID>-<start>-<counter>.partial`.
    """
    boot, space = _machine()
    return f".{base}.{boot}-{space}-{os.getpid()}-{_start_ticks(os.getpid())}-{counter}.partial"


def is_abandoned(partial: Path) -> bool:
    """Whether nobody writes `partial` any more.

    Its writer is dead if its boot is over, or if it ran in this PID namespace and no such process is left. The
    writer in another namespace cannot be seen: there, an hour without a write counts as dead.
    """
    named = _NAME.search(partial.name)
    if named is None:
        return False
    boot, space = _machine()
    if named["boot"] != boot:
        return True
    if int(named["space"]) == space:
        return _start_ticks(int(named["pid"])) != int(named["start"])
    return time.time() - _last_write_s(partial) > _SILENT_S


def _last_write_s(folder: Path) -> float:
    """Time of the latest change below `folder`, in seconds since the epoch; now, if it goes away meanwhile."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()

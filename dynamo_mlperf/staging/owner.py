"""Who writes a partial directory or holds a lock: a process, told apart from any other by its name alone.

Locks may be absent or lie on network file systems; this says who is alive without them.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from pathlib import Path

_SILENT_S = 3600.0
_IDENTITY = re.compile(
    r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<space>\d+)-(?P<pid>\d+)-(?P<start>\d+)(?P<counter>-\d+\.partial)?$"
)
# Field 22 of /proc/PID/stat, counted behind the command in parentheses (proc(5)): start time in ticks after boot.
_START_FIELD_AFTER_COMMAND = 19


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rsplit(")", 1)[1].split()
    return None if state in "ZX" else int(fields[_START_FIELD_AFTER_COMMAND - 1])


def _machine() -> tuple[str, str, int]:
    """This host (8 hex digits of its name's hash), this boot (8 hex digits) and this PID namespace (its inode)."""
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return host, boot, Path("/proc/self/ns/pid").stat().st_ino


def identity() -> str:
    """This process, as no other process is called: `<host>-<boot>-<PID namespace>-<PID>-<start>`."""
    host, boot, space = _machine()
    return f"{host}-{boot}-{space}-{os.getpid()}-{start_ticks(os.getpid())}"


def pid_of(named: str) -> str:
    """The process id within an identity, for people; `unknown` where `named` is none."""
    found = _IDENTITY.search(named)
    return found["pid"] if found else "unknown"


def is_gone(named: str) -> bool | None:
    """Whether the process of that identity has ended; None where that cannot be known from here.

    It has ended if its host's boot is over, or if it ran in this PID namespace and no such process is left. Processes
    of other hosts (the place may be a network file system) and of other namespaces cannot be seen.
    """
    found = _IDENTITY.search(named)
    if found is None:
        return None
    host, boot, space = _machine()
    if found["host"] != host:
        return None
    if found["boot"] != boot:
        return True
    if int(found["space"]) != space:
        return None
    return start_ticks(int(found["pid"])) != int(found["start"])


def private_name(base: str, counter: int) -> str:
    """Name of a partial directory that only this process writes: `.BASE.<identity>-<counter>.partial`."""
    return f".{base}.{identity()}-{counter}.partial"


def is_abandoned(partial: Path) -> bool:
    """Whether nobody writes `partial` any more; a writer that cannot be seen counts as dead after a silent hour."""
    if not partial.name.endswith(".partial") or _IDENTITY.search(partial.name) is None:
        return False
    gone = is_gone(partial.name)
    return time.time() - _last_write_s(partial) > _SILENT_S if gone is None else gone


def _last_write_s(folder: Path) -> float:
    """Time of the latest change below `folder`, in seconds since the epoch; now, if it goes away meanwhile."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()

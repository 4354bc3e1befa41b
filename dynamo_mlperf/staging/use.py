"""Which staged directories are in use: a mark for each run, and whatever a living process has open.

A mark names the run, its directory and its controller. It is written before a staged directory is looked at, and
counts as long as the run may live: while its controller or any process of it is seen on this node, or its run
directory is young and has no verdict. In doubt a directory is in use.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dynamo_mlperf.files import RunPaths, read_bounded, write_json
from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.staging.owner import identity, is_gone

if TYPE_CHECKING:
    from collections.abc import Iterable

START_S = 1800.0
"""How long a run may be silent (no process here, nothing written) and still count as living."""
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]")


def mark_in_use(directory: Path, run_dir: Path | None) -> Path | None:
    """Say that this process's run uses `directory` (which need not exist yet); None without a run.

    The run is the one whose mark this process carries in its environment.

    Raises:
        OSError: The mark cannot be written.
    """
    run = os.environ.get(RUN_VARIABLE, "")
    if not run:
        return None
    mark = directory.parent / f".{directory.name}.{_UNFIT.sub('_', run.partition('@')[0])}.use"
    content = {"run": run, "run_dir": str(run_dir) if run_dir else None, "stager": identity(), "t": time.time()}
    write_json(mark, content)
    _forget_ended(directory.parent, mark)
    return mark


def _forget_ended(root: Path, own: Path) -> None:
    """Remove the marks of runs that have ended; another user's stay."""
    others = [mark for mark in root.glob(".*.use") if mark != own]
    runs = _runs_here() if others else set()
    for mark in others:
        if _alive(mark, runs) is None:
            with suppress(OSError):
                mark.unlink()


def in_use(directories: Iterable[Path]) -> dict[Path, str]:
    """Those of `directories` that are in use, each with by what; marks of runs that have ended are removed."""
    wanted = list(directories)
    runs = _runs_here()
    found = {}
    for directory in wanted:
        for mark in sorted(directory.parent.glob(f".{directory.name}.*.use")):
            why = _alive(mark, runs)
            if why is None:
                with suppress(OSError):
                    mark.unlink()
            else:
                found[directory] = why
    for directory in set(wanted) - set(found):
        pid = _opened_by(directory)
        if pid is not None:
            found[directory] = f"process {pid} has files of it open"
    return found


def _runs_here() -> set[str]:
    """The marks of the runs that have processes on this node, ourselves left out."""
    found = set()
    for process in psutil.process_iter(["pid"]):
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error, OSError):
            found.add(process.environ().get(RUN_VARIABLE, ""))
    return found - {""}


def _alive(mark: Path, runs: set[str]) -> str | None:
    """Why a mark counts, for people; None if its run has ended."""
    try:
        content = json.loads(read_bounded(mark))
        run, run_dir, since_t = str(content["run"]), content["run_dir"], float(content["t"])
        stager = str(content["stager"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    name = run.partition("@")[0]
    if run in runs:
        return f"run {name} has processes on this node"
    paths = RunPaths(Path(run_dir)) if run_dir else None
    if paths is not None and paths.verdict.exists():
        return None
    if paths is None and is_gone(stager):
        return None
    latest_t = max([since_t, *(_changed_t(path) for path in ([paths.events, paths.load] if paths else []))])
    return f"run {name} was active {time.time() - latest_t:.0f} s ago" if time.time() - latest_t < START_S else None


def _changed_t(path: Path) -> float:
    """Time of the latest change of a file, or of a directory's own files, in seconds since the epoch; 0 if none."""
    try:
        return max(float(each.stat().st_mtime) for each in (path, *(path.iterdir() if path.is_dir() else ())))
    except OSError:
        return 0.0


def _opened_by(directory: Path) -> int | None:
    """A process that has a file of `directory` open or mapped, as far as this user may look."""
    inside = f"{directory.resolve()}/"
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):
            if inside in (folder / "maps").read_text(errors="replace"):
                return int(folder.name)
        with suppress(OSError):
            for link in (folder / "fd").iterdir():
                with suppress(OSError):
                    if str(link.readlink()).startswith(inside):
                        return int(folder.name)
    return None

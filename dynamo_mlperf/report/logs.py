"""Which logs of a run matter to its reader, and how they end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.files import open_regular
from dynamo_mlperf.process.secret_words import redacted
from dynamo_mlperf.report.run_files import is_there

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.report.run_data import RunData

TAIL_LINES = 50
_TAIL_BYTES = 16 * 1024
_LOGS_SHOWN = 6


@dataclass(frozen=True)
class Log:
    """One log file, and why a reader would open it."""

    path: Path
    why: str


def logs_that_matter(run: RunData) -> tuple[Log, ...]:
    """Logs of what died (the cause first), of what never was ready, then the load client's summary; those that exist.

    A run that ended well needs its load client's summary only.
    """
    found: dict[Path, str] = {}
    for process in run.timeline.deaths:
        found.setdefault(log_of(run, process.name), f"{process.name} ended with status {process.status}")
    if run.verdict is None or run.verdict.get("verdict") == "FAILED":
        for process in run.timeline.processes:
            if process.ready_s is None and process.name in _worker_names(run):
                found.setdefault(log_of(run, process.name), f"{process.name} never was ready")
    logs = [Log(path, why) for path, why in found.items() if is_there(path)][:_LOGS_SHOWN]
    client = run.paths.load / "mlperf_log_summary.txt"
    if is_there(client):
        logs.append(Log(client, "the load client's own summary"))
    return tuple(logs)


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log, of its last 16 KiB at most; bytes that are no UTF-8 are replaced, secrets are out."""
    try:
        with open_regular(path) as source:
            end = source.seek(0, os.SEEK_END)
            source.seek(max(0, end - _TAIL_BYTES))
            text = source.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return redacted("\n".join(text.splitlines()[-lines:]))


def log_of(run: RunData, process: str) -> Path:
    """The log of a process; its name is taken as one path component, so that a forged one leads to no other folder."""
    return run.paths.log_of(process.replace("/", "_").replace("\0", "_"))


def _worker_names(run: RunData) -> frozenset[str]:
    return frozenset(worker.name for worker in run.layout.workers) if run.layout else frozenset()

"""Why a run ended as it did, each cause once: its first line, how the log behind it ends, and where that log is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.logs import log_of, tail
from dynamo_mlperf.report.resuming import action_of
from dynamo_mlperf.report.run_files import is_there

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.record import Reason
    from dynamo_mlperf.report.figures import Figures
    from dynamo_mlperf.report.run_data import RunData
    from dynamo_mlperf.report.timeline import Process

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Cause:
    """One reason of a verdict.

    Attributes:
        check: What was checked.
        found: What was wanted and got, in one line.
        after: When the process that it names died, in words; empty where it names none.
        last_line: The last line of the log behind it, empty where there is none.
        log: That log; None where there is none, or where `action` names it.
        action: What to do.
    """

    check: str
    found: str
    after: str
    last_line: str
    log: Path | None
    action: str

    @property
    def text(self) -> str:
        """Check and finding in one line."""
        return f"{self.check}: {self.found}"

    @property
    def detail(self) -> str:
        """When it happened and how the log behind it ends; empty where neither is known."""
        ends = f"last line of its log: {self.last_line}" if self.last_line else ""
        return "; ".join(part for part in (self.after, ends) if part)


def causes_of(run: RunData, figures: Figures) -> tuple[Cause, ...]:
    """The verdict's reasons; the log of a process that died is told at the first reason that names the process."""
    told: set[str] = set()
    return tuple(_cause(run, reason, told) for reason in figures.reasons)


def _cause(run: RunData, reason: Reason, told: set[str]) -> Cause:
    got = reason.got.rstrip().splitlines() or [""]
    death = next((p for p in run.timeline.deaths if p.name not in told and _names(got[0], p)), None)
    last_line, log, after = _shortened(got[-1]) if len(got) > 1 else "", None, ""
    action = action_of(reason, run.paths.root)
    if death is not None:
        told.add(death.name)
        after = f"{q.duration(death.exited_s)} after the job began"
        log = log_of(run, death.name)
        last_line = last_line or last_log_line(log)
        log = log if is_there(log) and log.name not in action else None
    found = f"wanted {reason.wanted}, got {headline(reason.got)}"
    return Cause(reason.check, found, after, last_line, log, action)


def headline(text: str) -> str:
    """The first line of `text`, without the words that announce further lines."""
    first = next(iter(text.strip().splitlines()), "")
    return first.removesuffix("; its last lines:").rstrip(":") if len(text.strip().splitlines()) > 1 else first


def untold_deaths(run: RunData, figures: Figures) -> tuple[Process, ...]:
    """The deaths that no reason names, in their order."""
    said = [headline(reason.got) for reason in figures.reasons]
    return tuple(death for death in run.timeline.deaths if not any(_names(text, death) for text in said))


def untold_errors(run: RunData, figures: Figures) -> tuple[str, ...]:
    """First lines of the errors on record that no reason says."""
    said = {headline(reason.got) for reason in figures.reasons}
    # An error's text is that of the reason with what to try on a line of its own.
    heads = (headline(_without_action(error)) for error in run.timeline.errors)
    return tuple(head for head in dict.fromkeys(heads) if head not in said)


def _without_action(error: str) -> str:
    return error.rpartition("\n  Try: ")[0] or error


def last_log_line(log: Path) -> str:
    """The last line of a log that is not blank, without terminal colours; empty where there is none."""
    if not is_there(log):
        return ""
    lines = [line for line in _ANSI.sub("", tail(log)).splitlines() if line.strip()]
    return _shortened(lines[-1]) if lines else ""


def _names(text: str, process: Process) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(process.name)}(?![\w-])", text) is not None


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"

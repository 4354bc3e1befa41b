"""What a run of ours started, by its `commands.jsonl`, which has to hold every start that its `events.jsonl` tells."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import read_text, strict_json

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.files import RunPaths

_COPY = "copy the whole run directory"
_SIMULATED = ("dynamo.mocker", "many_mockers.py")
"""What the command lines of simulated engines end a word with."""
_NAMED = 3


def missing_record(path: Path, tells: str) -> MeasureError:
    """The error for a run of ours that lacks a record which tells what nothing else does."""
    return MeasureError(f"{path.parent} holds a run of ours without its {path.name}, which tells {tells}", _COPY)


def started_simulated(paths: RunPaths) -> bool:
    """Whether a run with a topology started simulated engines, whatever its topology file says by now.

    Raises:
        MeasureError: The records do not say any more all that was started.
        ValueError: One is none of ours; so are LookupError, TypeError and AttributeError.
    """
    for path, tells in ((paths.commands, "what engines it started"), (paths.events, "which processes it started")):
        if not path.exists():
            raise missing_record(path, tells)
    check_starts(paths)
    started = [command["argv"] for command in _lines(paths.commands)]
    if not started:
        raise MeasureError(f"{paths.commands} is empty", _COPY)
    if not _starts(paths):
        raise MeasureError(f"{paths.events} tells the start of no process", _COPY)
    if not all(isinstance(argv, list) and argv for argv in started):
        raise ValueError(f"{paths.commands.name} has a process that names no command line")
    return any(word.endswith(_SIMULATED) for argv in started for word in argv)


def check_starts(paths: RunPaths) -> None:
    """Every start that is told has its command line; measured through held engines there are more, their holder's.

    Raises:
        MeasureError: One has none.
        ValueError: A record is none of ours; so are LookupError, TypeError and AttributeError.
    """
    named = Counter(str(command.get("process")) for command in _lines(paths.commands))
    lost = sorted((_starts(paths) - named).elements())
    if lost:
        names = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
        many = f"{len(lost)} starts" if len(lost) > 1 else "1 start"
        raise MeasureError(f"{paths.commands} lacks {many} that {paths.events.name} tells: {names}", _COPY)


def _starts(paths: RunPaths) -> Counter[str]:
    """How often each process was started, by the events."""
    return Counter(str(one["process"]) for one in _lines(paths.events) if one["event"] == "process_started")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Every line, also one that was cut; none where there is no file."""
    return [strict_json(line) for line in read_text(path).splitlines()] if path.exists() else []

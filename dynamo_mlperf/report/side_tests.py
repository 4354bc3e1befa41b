"""Accuracy and compliance tests as a report shows them: one row each, from the `result.json` of their folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.report.run_files import is_there, parsed

if TYPE_CHECKING:
    from pathlib import Path

_FOLDERS = ("accuracy", "endpoints/accuracy", "TEST06", "TEST07", "TEST09")
_MOST_BYTES = 1_000_000
_DIGITS = 4


@dataclass(frozen=True)
class SideRow:
    """One test.

    Attributes:
        name: `accuracy`, or the compliance test's name.
        verdict: Its verdict; empty where its record cannot be read.
        scores: Its scores with what they are held to.
        why: Why it is not VALID, one line each; or what else a reader should know.
    """

    name: str
    verdict: str
    scores: str
    why: tuple[str, ...]

    def text(self) -> str:
        """One line for people."""
        return f"{self.verdict or 'cannot be read'}{f'  {self.scores}' if self.scores else ''}"


def side_rows(run: Path) -> tuple[SideRow, ...]:
    """The tests that the run directory holds, in the order in which they run."""
    return tuple(_row(run / folder / "result.json") for folder in _FOLDERS if is_there(run / folder / "result.json"))


def _row(path: Path) -> SideRow:
    name = path.parent.name
    try:
        value = parsed(read_bounded(path, _MOST_BYTES))
        targets = dict(value["targets"])
        scores = ", ".join(_score(metric, got, targets.get(metric)) for metric, got in value["scores"].items())
        reasons = tuple(str(entry["text"]) for entry in value["reasons"])
        return SideRow(str(value["test"]), str(value["verdict"]), scores, reasons or _told(value))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        return SideRow(name, "", "", (f"{path.name} cannot be read: {type(error).__name__}",))


def _told(value: dict[str, Any]) -> tuple[str, ...]:
    """Notes on what the scores are worth; those on LoadGen's warnings and the client are told elsewhere."""
    notes = (str(note) for note in value.get("notes") or ())
    return tuple(note for note in notes if note.startswith(("rehearsal:", "reduced:", "not scored:", "an official")))


def _score(metric: str, got: object, target: object) -> str:
    held = ""
    if isinstance(target, list):
        low, high = [*target, None, None][:2]
        bounds = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
        held = " and ".join(bound for bound in bounds if bound)
    elif isinstance(target, int | float):
        held = f"at least {target:g}"
    shown = f"{got:.{_DIGITS}f}".rstrip("0").rstrip(".") if isinstance(got, int | float) else str(got)
    return f"{metric} {shown}{f' ({held})' if held else ''}"

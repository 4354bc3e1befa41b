"""Progress on stderr: what goes on now, drawn over on a terminal, plain lines elsewhere."""

from __future__ import annotations

import textwrap
import time
from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dynamo_mlperf.report.words import in_words

if TYPE_CHECKING:
    from rich.status import Status

PHASE_TEXTS = {
    "check": "looking at the nodes",
    "stage": "staging weights",
    "start": "starting the deployment",
    "ready": "waiting for the workers",
    "canary": "a request for each worker, KV canary",
    "warmup": "warming up",
    "measure": "measuring",
    "search": "searching the highest rate",
    "judge": "judging",
    "hold": "holding the engines",
    "rest": "waiting until the engines are at rest",
    "accuracy": "accuracy test",
    "compliance": "compliance tests",
    "stop": "stopping",
    "record": "recording",
}
PLAIN_EVERY_S = 10.0
_SPINNER_CELLS = 2
_LIVE_LINES = 4
"""A probe of a search needs three of 80 columns: rate, purpose, the best so far, then its own counts and time left."""
_HANGING = "    "
"""Before what follows a break."""


def fitted(text: str, columns: int) -> str:
    """`text` broken between words into lines that fit a terminal, what follows a break indented; no word is broken."""
    return "\n".join(
        textwrap.fill(
            line,
            max(2 * len(_HANGING), columns - 1),
            subsequent_indent=_HANGING,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


class TerminalProgress:
    """The current phase, what it waits for, and for how long."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._phase = ""
        self._text = ""
        self._how = ""
        self._began = time.monotonic()
        self._phase_began = self._began
        self._printed = 0.0

    def phase(self, name: str) -> None:
        """A phase begins; the one before is left standing with its duration."""
        self._close_phase()
        self._phase, self._text, self._phase_began = name, "", time.monotonic()
        self._show(at_once=True)

    def say(self, text: str) -> None:
        """What is being waited for."""
        self._text = in_words(text)
        self._show(at_once=False)

    def note(self, text: str) -> None:
        """Something that has happened, on a line that stays."""
        before = "  " if self._status is not None else f"[{time.monotonic() - self._began:6.1f} s] "
        try:
            self._print(f"{before}{in_words(text)}")
        except OSError:
            self._mute()

    def close(self) -> None:
        """End what is drawn over."""
        self._close_phase()

    def cut_short(self, how: str) -> None:
        """The phase that runs ends before its end: `stopped` or `failed`."""
        self._how = how

    def _close_phase(self) -> None:
        try:
            self._draw_closing()
        except OSError:
            self._mute()
            self._phase = self._how = ""

    def _draw_closing(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._phase:
            took = f"  {self._label()}: {self._elapsed():.1f} s"
            ending = f", {self._how}: {self._text}" if self._text else f", {self._how}"
            done = f"  {self._text}" if self._text else ""
            self._print(f"{took}{ending if self._how else done}")
            self._phase = self._how = ""

    def _show(self, *, at_once: bool) -> None:
        try:
            self._draw(at_once=at_once)
        except OSError:
            self._mute()

    def _mute(self) -> None:
        """Whoever read this has gone, or its disk is full: that is no reason to lose a measurement."""
        self._status = None
        self._console = Console(file=StringIO())

    def _draw(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if self._status is None and self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        if self._status is not None:
            self._status.update(self._live_text())
        elif at_once or now - self._printed >= PLAIN_EVERY_S:
            self._printed = now
            self._print(f"[{now - self._began:6.1f} s] {self._label()}  {self._text}")

    def _live_text(self) -> Text:
        """A few lines that fit: what a terminal wraps by itself cannot be drawn over."""
        # The last column stays free: some terminals wrap as soon as it is written.
        room = max(1, self._console.width - _SPINNER_CELLS - 1)
        lines = fitted(f"{self._label()} {self._elapsed():.0f} s  {self._text}".rstrip(), room + 1).split("\n")
        shown = [Text(line) for line in lines[:_LIVE_LINES]]
        if len(lines) > _LIVE_LINES:
            shown[-1].append(" …")
        for line in shown:
            line.truncate(room, overflow="ellipsis")
        return Text("\n").join(shown)

    def _print(self, line: str) -> None:
        shown = fitted(line.rstrip(), self._console.width) if self._console.is_terminal else line.rstrip()
        self._console.print(shown, markup=False, soft_wrap=True)

    def _label(self) -> str:
        return PHASE_TEXTS.get(self._phase, self._phase)

    def _elapsed(self) -> float:
        return time.monotonic() - self._phase_began

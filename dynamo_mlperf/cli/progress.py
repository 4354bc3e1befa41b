"""Progress on stderr: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console

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
    "judge": "judging",
    "stop": "stopping",
    "record": "recording",
}
PLAIN_EVERY_S = 10.0


class TerminalProgress:
    """The current phase, what it waits for, and for how long."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._phase = ""
        self._text = ""
        self._began = time.monotonic()
        self._phase_began = self._began
        self._printed = 0.0

    def phase(self, name: str) -> None:
        """A phase begins; the one before is left standing with its duration."""
        self._close_phase()
        self._phase, self._text, self._phase_began = name, "", time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        self._show(force=True)

    def say(self, text: str) -> None:
        """What is being waited for."""
        changed, self._text = text != self._text, text
        self._show(force=changed and self._phase not in {"measure", "warmup"})

    def close(self) -> None:
        """End the live line."""
        self._close_phase()

    def _close_phase(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._phase:
            detail = f"  {self._text}" if self._text else ""
            self._console.print(f"  {self._label()}: {self._elapsed():.1f} s{detail}", markup=False, soft_wrap=True)
            self._phase = ""

    def _show(self, *, force: bool) -> None:
        now = time.monotonic()
        if self._status is not None:
            self._status.update(f"{self._label()} {self._elapsed():.0f} s  {self._text}")
        elif force or now - self._printed >= PLAIN_EVERY_S:
            self._printed = now
            self._console.print(
                f"[{now - self._began:6.1f} s] {self._label()}  {self._text}".rstrip(), markup=False, soft_wrap=True
            )

    def _label(self) -> str:
        return PHASE_TEXTS.get(self._phase, self._phase)

    def _elapsed(self) -> float:
        return time.monotonic() - self._phase_began

"""One child process in a session of its own, and the ways to end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import psutil

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.process.command import Command

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, so that none escapes the final sweep.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Runs in the child before exec: when the controller dies, even by SIGKILL, the child gets SIGTERM."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before it could be tied to us
        os._exit(1)


class Child:
    """A started process.

    Args:
        command: What is recorded of it: its name, its log, where its output goes.
        argv: Program and arguments.
        env: Its whole environment.
        stdout: An open descriptor for its standard output, in place of a file.

    Raises:
        SetupError: The program cannot be started (missing, not executable).
    """

    def __init__(
        self, command: Command, argv: Sequence[str], env: dict[str, str], *, stdout: int | None = None
    ) -> None:
        self.command = command
        self.started_s = time.monotonic()
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("ab") as log:
            out = command.output.open("wb") if command.output else log
            try:
                self._popen = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE if command.agent else subprocess.DEVNULL,
                    stdout=out if stdout is None else stdout,
                    stderr=log,
                    env=env,
                    cwd=command.cwd,
                    start_new_session=True,
                    preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509 - the controller has one thread
                )
            except OSError as problem:
                raise SetupError(
                    f"{command.name} cannot be started: {argv[0]}: {problem.strerror}",
                    "run make setup, or name the engines' Python in the site file (engine_python)",
                ) from problem
            finally:
                if command.output:
                    out.close()

    @property
    def pid(self) -> int:
        """Process id on the machine that runs the controller (of `srun` for a step)."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself; what it started, it stops itself."""
        if self.poll() is None:
            self._popen.send_signal(number)

    @property
    def listens(self) -> bool:
        """Whether it reads what we say."""
        return self._popen.stdin is not None and not self._popen.stdin.closed

    def say(self, text: str) -> None:
        """Write to its standard input; one that has ended hears nothing."""
        if self._popen.stdin is not None and self.listens:
            with contextlib.suppress(OSError):
                self._popen.stdin.write(text.encode())
                self._popen.stdin.flush()

    def hang_up(self) -> None:
        """End its standard input, which asks it to end."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def left_behind(self) -> bool:
        """Whether some process of its group still runs though it may have ended itself."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == self._popen.pid and process.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def kill_session(self) -> None:
        """SIGKILL to the process and to all that is left of its process group."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            self._popen.kill()


def kill_descendants() -> list[str]:
    """SIGKILL whatever still runs below this process; returns what was found, as `pid name`."""
    found: list[str] = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            found.append(f"{process.pid} {process.name()}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return found

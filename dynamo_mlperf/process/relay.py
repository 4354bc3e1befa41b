"""A program that a launcher such as srun runs on another machine, and the stop requests that reach it alone.

A signal to srun is no way to ask for a clean end: it kills the step on SIGTERM and on a second Ctrl-C (srun(1)). So
requests are words on the launcher's standard input, and this module, `python -m dynamo_mlperf.process.relay PROGRAM`,
makes signals of them where the program runs. The end of that input, when the caller has died or lost its connection,
is a request too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.child import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PATIENCE = 3
"""The stop request with which the launcher itself is killed: the program has had two, the second one for haste."""
_SIGNAL_BASE = 128


def through_launcher(argv: Sequence[str], env: Mapping[str, str], cwd: Path) -> int:
    """Run a launcher to its end; it has our output and error streams, and its program hears our stop requests.

    Args:
        argv: The launcher, with the relay as its program.
        env: Its whole environment.
        cwd: Its working directory.

    Returns:
        Its exit status; 128 and the signal's number where a signal ended it.

    Raises:
        SetupError: It cannot be started.
    """
    asked: list[signal.Signals] = []
    started: list[subprocess.Popen[bytes]] = []

    def hand_on(words: Sequence[signal.Signals]) -> None:
        for launcher in started:
            if len(asked) >= PATIENCE:
                launcher.kill()
            with contextlib.suppress(OSError):
                os.write(launcher.stdin.fileno() if launcher.stdin else -1, _lines(words))

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(signal.Signals(number))
        hand_on(asked[-1:])

    before = {number: signal.signal(number, note) for number in STOPPING}  # first: none comes before we listen
    try:
        # In a session of its own: Ctrl-C at a terminal is for us.
        launcher = subprocess.Popen(argv, stdin=subprocess.PIPE, env=dict(env), cwd=cwd, start_new_session=True)
        early = tuple(asked)
        started.append(launcher)
        hand_on(early)
        with launcher:
            return _shell_status(launcher.wait())
    except OSError as problem:
        raise SetupError(f"{argv[0]} cannot be started: {problem.strerror}", f"put {argv[0]} on PATH") from problem
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lines(words: Sequence[signal.Signals]) -> bytes:
    return "".join(f"{word.name}\n" for word in words).encode()


def _shell_status(status: int) -> int:
    return status if status >= 0 else _SIGNAL_BASE - status


def main(argv: Sequence[str]) -> int:
    """Run the program, hand on the stop requests of standard input and of signals, and end as it ends.

    Of a step's processes Slurm 22.05 signals the first alone, this one, by scancel and when the job ends.
    """
    number_of = {number.name.encode(): number for number in STOPPING}
    # A group of its own: a signal to ours would reach it twice, and a second stop request asks for haste.
    tied = partial(end_with_parent, os.getpid())
    program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=tied)  # noqa: PLW1509 - one thread
    for number in STOPPING:
        signal.signal(number, lambda got, _frame: program.send_signal(got))
    sources, unread = [os.pidfd_open(program.pid), 0], b""
    while program.poll() is None:
        ready, _, _ = select.select(sources, [], [])
        if 0 not in ready:
            continue
        block = os.read(0, 4096)
        *words, unread = (unread + block).split(b"\n")
        if not block:
            sources.remove(0)
            words = [b"SIGTERM"]
        for word in words:
            program.send_signal(number_of[word])
    return _shell_status(program.wait())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

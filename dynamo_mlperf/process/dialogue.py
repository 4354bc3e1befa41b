"""A program that answers one JSON line with another, kept running from question to question."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import tempfile
import time
from functools import partial
from os import getpid
from typing import TYPE_CHECKING, Any, Self

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.child import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_END_S = 5.0
_LOOK_S = 0.5
"""How often it is looked whether people want to stop, while an answer is waited for."""
_LAST_WORDS = 400
_BLOCK_BYTES = 1 << 20


class Dialogue:
    """Starts a program in a session of its own; a context that ends with it.

    Args:
        name: What people know it as.
        argv: Program and arguments.
        env: Its whole environment.

    Raises:
        SetupError: It cannot be started.
    """

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        self._rest = b""
        try:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(env),
                bufsize=0,
                start_new_session=True,
                preexec_fn=partial(end_with_parent, getpid()),  # noqa: PLW1509 - started before any thread is
            )
        except OSError as problem:
            self._errors.close()
            raise SetupError(
                f"{name} cannot be started: {argv[0]}: {problem.strerror}",
                "run make setup, or name the engines' Python in the site file (engine_python)",
            ) from problem

    def ask(
        self, question: Mapping[str, Any], timeout_s: float, check: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Send one question and read its answer; a program that owes one is ended, for the next is not to take it.

        Args:
            question: Anything that JSON can carry.
            timeout_s: How long an answer may take.
            check: Called while it is waited for; raises when people want to stop.

        Raises:
            SetupError: It ended, said something else than JSON, or did not answer in `timeout_s` seconds.
        """
        try:
            return self._answer(question, timeout_s, check)
        except BaseException:
            self._popen.kill()
            raise

    def _answer(self, question: Mapping[str, Any], timeout_s: float, check: Callable[[], None]) -> dict[str, Any]:
        out = self._popen.stdin
        if out is None:
            raise AssertionError(self._name)
        try:
            out.write((json.dumps(question) + "\n").encode())
        except OSError:
            raise self._ended() from None
        line = self._line(time.monotonic() + timeout_s, timeout_s, check)
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._failed(f"answered {line[:80]!r}") from None
        if not isinstance(answer, dict):
            raise self._failed(f"answered {line[:80]!r}")
        return answer

    def _line(self, until_s: float, timeout_s: float, check: Callable[[], None]) -> bytes:
        source = self._popen.stdout
        if source is None:
            raise AssertionError(self._name)
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise self._failed(f"did not answer in {timeout_s:g} s")
            if not select.select([source], [], [], min(left_s, _LOOK_S))[0]:
                check()
                continue
            block = source.read(_BLOCK_BYTES)
            if not block:
                raise self._ended()
            pieces.append(block)
        line, self._rest = b"".join(pieces).split(b"\n", 1)
        return line

    def _ended(self) -> SetupError:
        """It has closed its output: how it ended, as far as that is known at once."""
        try:
            status = self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            return self._failed("ended its answers")
        if status >= 0:
            return self._failed(f"ended with status {status}")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        who = "the kernel, where memory ran out (dmesg | grep -i 'killed process'), or a person"
        return self._failed(f"was killed by {name}", f"find who sent the {name}: {who}; then run it again")

    def _failed(
        self, how: str, action: str = "dynamo-mlperf doctor shows what the engines' Python lacks"
    ) -> SetupError:
        self._errors.seek(0)
        words = self._errors.read()[-_LAST_WORDS:].decode(errors="replace").strip()
        said = f"; its last words: {words}" if words else ""
        return SetupError(f"{self._name} {how}{said}", action)

    def close(self) -> None:
        """End it: by the end of its input, else by SIGKILL."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                stream.close()
        try:
            self._popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

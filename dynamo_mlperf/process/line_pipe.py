"""A pipe for lines whose writer waits until they are read: who simulates hours in a second gets no further than we see.

What is read is kept in a file at once, also where the writer ends badly.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
from typing import TYPE_CHECKING, Self

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_ROOMY_BYTES = 1 << 20
"""What any user may ask for (pipe(7), pipe-max-size)."""
_READ_BYTES = 1 << 16


class LinePipe:
    """The two ends of the pipe, and the file that keeps what came through.

    Each write is a packet of its own, and the pipe holds just one (Source: pipe(7), O_DIRECT and F_SETPIPE_SZ): when
    one line is being looked at, its writer has said one more and waits with the next.

    Args:
        kept: The file; what it held before is gone.

    Attributes:
        write_fd: For the child; `hand_over` closes it here once the child has it.
    """

    def __init__(self, kept: Path) -> None:
        self._kept = kept.open("wb")
        self._read_fd, self.write_fd = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        fcntl.fcntl(self._read_fd, fcntl.F_SETPIPE_SZ, 1)  # as few as there are: one page, which is one packet
        self._writable = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hand_over()
        os.close(self._read_fd)
        self._kept.close()

    def hand_over(self) -> None:
        """Close our copy of the writing end, so that its end is the child's."""
        if self._writable:
            self._writable = False
            os.close(self.write_fd)

    def widen(self) -> None:
        """Have it hold some hundred lines: a writer that keeps to real time shall not wait for a reader held up."""
        with contextlib.suppress(OSError):  # the user's pipes hold all they may (pipe-user-pages-soft): as it is then
            fcntl.fcntl(self._read_fd, fcntl.F_SETPIPE_SZ, _ROOMY_BYTES)

    def read(self, wait_s: float) -> bytes:
        """What has come, one line as a rule; empty when nothing comes within so many seconds.

        Raises:
            SetupError: It cannot be kept, the first time that is so.
        """
        select.select([self._read_fd], [], [], wait_s)
        try:
            chunk = os.read(self._read_fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if chunk:
            self._keep(chunk)
        else:  # it has closed its end; without a pause, asking again and again would take a whole core
            time.sleep(wait_s)
        return chunk

    def rest(self) -> bytes:
        """What is in it now, and little more where somebody goes on writing.

        Raises:
            SetupError: It cannot be kept.
        """
        said = b""
        while len(said) < _ROOMY_BYTES and (chunk := self.read(0.0)):
            said += chunk
        return said

    def _keep(self, chunk: bytes) -> None:
        if self._kept.closed:
            return
        try:
            self._kept.write(chunk)
            self._kept.flush()
        except OSError as problem:
            with contextlib.suppress(OSError):
                self._kept.close()
            raise SetupError(
                f"{self._kept.name} cannot be written: {problem.strerror}",
                "make room there; the same command then goes on",
            ) from problem

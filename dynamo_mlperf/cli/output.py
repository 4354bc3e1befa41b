"""Standard output that may go away: a reader such as `head` closes it when it has seen enough."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write_output(option: str, path: Path, text: str, example: str) -> None:
    """Write the file that an option names; a device is refused, since a whole file would take its place.

    Raises:
        ConfigError: It is no place for a file.
        SetupError: It cannot be written.
    """
    from dynamo_mlperf.errors import ConfigError, SetupError
    from dynamo_mlperf.files import write_atomic

    if path.is_dir():
        raise ConfigError(f"{option} {path} is a directory", f"{option} {path / example}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is a device or pipe, not a file", f"{option} {example}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no directory {path.parent}", f"mkdir -p {path.parent}")
    try:
        write_atomic(path.resolve(), text)
    except OSError as problem:
        raise SetupError(f"{option} {path}: {problem.strerror}", f"{option} {example}") from problem


class _Lasting(io.FileIO):
    """Standard error whose reader may go away: what is said then is said to nobody, and the work goes on."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - io's own: whatever has bytes
        """Write, or drop what nobody reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def lasting_stderr() -> None:
    """Let standard error outlive its reader: notes and progress are no reason to end a run, nor to report a bug."""
    own, first = sys.stderr, sys.__stderr__
    if first is None or own is not first:
        return  # started without one, or somebody else's
    raw = io.BufferedWriter(_Lasting(first.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, encoding=first.encoding, errors=first.errors, write_through=True)


def flush_stdout() -> None:
    """Write out what is buffered; a program started without standard output (`>&-`) has none.

    Raises:
        OSError: It cannot be written.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def quiet_stdout() -> None:
    """Send what is still to be written nowhere, so that Python's own flush at the end does not fail again."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

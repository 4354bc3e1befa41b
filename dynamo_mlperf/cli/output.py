"""What a verb gives out: JSON that every reader takes, files that destroy nothing, and standard output.

Standard output may go away: a reader such as `head` closes it when it has seen enough.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_HEAD_BYTES = 4096


def json_text(value: object, indent: int | None = None) -> str:
    """JSON text; what JSON has no number for (`nan`, `inf`, `-inf`) is a string."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_with_words(value), indent=indent, allow_nan=False)


def _with_words(value: object) -> object:
    if isinstance(value, dict):
        return {_with_words(key): _with_words(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def refuse_evidence(option: str, path: Path, run_dirs: Iterable[Path], mark: str, example: str) -> None:
    """Refuse a page in a run directory that is no page's place: it would take the place of what the run left.

    Args:
        option: The option that names it.
        path: The page to be written.
        run_dirs: Directories of runs.
        mark: What the beginning of a page holds that may be written anew.
        example: The name of a page.

    Raises:
        ConfigError: It is in one of them, and is another file than such a page, or is not called `.html`.
    """
    from dynamo_mlperf.errors import ConfigError

    real = path.resolve()
    if not any(real.is_relative_to(root.resolve()) for root in run_dirs):
        return
    action = f"{option} {example}"
    if os.path.lexists(real):
        if real.is_file() and not _begins_with(real, mark):
            raise ConfigError(f"{option} {path} would overwrite a file that the run left", action)
    elif real.suffix not in {".html", ".htm"}:
        raise ConfigError(f"{option} {path}: a page in a run directory has to end in .html", action)


def _begins_with(path: Path, mark: str) -> bool:
    try:
        with path.open("rb") as source:
            head = source.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.startswith(b"<!DOCTYPE html>") and mark.encode() in head


def write_output(option: str, path: Path, text: str, example: str) -> None:
    """Write the file that an option names; a device is refused, since a whole file would take its place.

    Raises:
        ConfigError: It is no place for a file.
        SetupError: It cannot be written.
    """
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.files import write_atomic

    check_output(option, path, example)
    try:
        write_atomic(path.resolve(), text)
    except OSError as problem:
        raise SetupError(f"{option} {path}: {problem.strerror}", f"{option} {example}") from problem


def check_output(option: str, path: Path, example: str) -> None:
    """Refuse what is no place for the file that an option names, before the work whose answer it is to take.

    Raises:
        ConfigError: It is none.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.files import shell_word

    if path.is_dir():
        raise ConfigError(f"{option} {path} is a directory", f"{option} {path / example}")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path} is a device or pipe, not a file", f"{option} {example}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(
            f"{option} {path}: there is no directory {path.parent}", f"mkdir -p {shell_word(path.parent)}"
        )
    if not os.access(path.resolve().parent, os.W_OK):
        raise ConfigError(f"{option} {path}: {path.resolve().parent} cannot be written to", f"{option} {example}")


class _Lasting(io.FileIO):
    """Standard error whose reader or disk space may go away: what is said then is lost, and the work goes on."""

    def write(self, data: Any) -> int:  # noqa: ANN401 - io's own: whatever has bytes
        """Write, or drop what nobody reads, and what has no room now."""
        try:
            return super().write(data)
        except OSError as problem:
            if problem.errno != errno.EPIPE:
                return len(data)
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

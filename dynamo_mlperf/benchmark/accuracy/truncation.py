"""The accuracy log as it goes into a submission: its beginning and its end.

The checker takes at most 10,240 bytes (`MAX_ACCURACY_LOG_SIZE` of mlcommons/inference b66003e1); the whole log is held
to by the hash in `accuracy.txt`. What is kept is what `tools/submission/truncate_accuracy_log.py` keeps.
"""

from __future__ import annotations

from pathlib import Path

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import open_regular, write_atomic

MAX_BYTES = 10_240
"""The longest accuracy log that the checker takes."""

_END_BYTES = 4_096
_GAP = b"\n\n...\n\n"


def truncated(source: Path) -> bytes:
    """The first and the last 4,096 bytes of a log with a mark between; a shorter log whole.

    Raises:
        OSError: It cannot be read.
    """
    size = source.stat().st_size
    with open_regular(source) as log:
        start = log.read(_END_BYTES)
        if size < _END_BYTES:
            return start
        log.seek(size - _END_BYTES)
        return start + _GAP + log.read(_END_BYTES)


def truncate_log(source: Path, target: Path) -> None:
    """Write the truncated `source` to `target`; the source stays as it is.

    Raises:
        ConfigError: Both are one file: the original has to be kept.
        OSError: One cannot be read or written.
    """
    if target.exists() and target.samefile(source):
        raise ConfigError(f"{target} is the accuracy log itself", "name another file: the original has to be kept")
    write_atomic(target, truncated(source))

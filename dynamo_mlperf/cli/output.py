"""Standard output that may go away: a reader such as `head` closes it when it has seen enough."""

from __future__ import annotations

import os
import sys


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

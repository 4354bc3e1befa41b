"""Standard output that may go away: a reader such as `head` closes it when it has seen enough."""

from __future__ import annotations

import os
import sys


def quiet_stdout() -> None:
    """Send what is still to be written nowhere, so that Python's own flush at the end does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

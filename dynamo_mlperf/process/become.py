"""Become another program: its exit code is then this process's, and signals reach it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def become(argv: Sequence[str]) -> None:
    """Replace this process by the program of `argv`, an absolute path and its arguments; comes back only by OSError."""
    os.execv(argv[0], list(argv))  # noqa: S606 - no shell is the point

"""Which commit of this package runs, where it runs from a git checkout."""

from __future__ import annotations

from pathlib import Path

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.programs import run_program

PACKAGE = Path(__file__).resolve().parent.parent
DIRTY = "-dirty"
_GIT_S = 10.0


def own_commit(package: Path = PACKAGE) -> str:
    """The commit as 40 hex digits, with `-dirty` behind it where the package's files differ; empty where none is known.

    Only the checkout that the package itself lies in counts, not one around a virtual environment that holds it.
    """
    if not (package.parent / ".git").exists():
        return ""
    git = ["git", "-C", str(package.parent)]
    try:
        head = run_program([*git, "rev-parse", "HEAD"], timeout_s=_GIT_S)
        state = run_program([*git, "status", "--porcelain", "--", package.name], timeout_s=_GIT_S)
    except SetupError:
        return ""
    if head.status or state.status:
        return ""
    return head.stdout.strip() + (DIRTY if state.stdout.strip() else "")

"""The official checker, run from a checkout of mlcommons/inference: its verdict, and a crash told apart from it."""

from __future__ import annotations

import csv
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.programs import UnansweredError, run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULE = "tools/submission/submission_checker/main.py"
DEADLINE_S = 600.0
PINNED = "b66003e1"
"""The commit of mlcommons/inference that this project was proved with."""

_LAST_LINES = 12
_OK, _ERRORS = "SUMMARY: submission looks OK", "SUMMARY: submission has errors"
_ERROR = re.compile(r"\bERROR\b[\]:]?\s*(?:main:)?(.*)")
_SWALLOWED = "Execution occurred in running check"


@dataclass(frozen=True)
class Official:
    """How the official checker ended.

    Attributes:
        outcome: `pass`, `fail`, or `crashed` where it gave no verdict of its own.
        errors: Its error lines; of a crash the last lines of what it said.
        rows: Its summary's rows, one a result that passed, by column.
    """

    outcome: Literal["pass", "fail", "crashed"]
    errors: tuple[str, ...]
    rows: tuple[dict[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"outcome": self.outcome, "errors": list(self.errors), "rows": list(self.rows)}


def run_official(
    tree: Path, checkout: Path, round_name: str, results: Sequence[str], deadline_s: float = DEADLINE_S
) -> Official:
    """Run the checker over `tree`, by the rules of the round.

    It is a package only inside a folder called `inference`, so it is reached through a link of that name in a directory
    of our own, and with nothing of the caller's working directory on Python's path.

    Args:
        tree: Holds `closed/`.
        checkout: A checkout of mlcommons/inference, under whatever name.
        round_name: Its `--version`; left out it would take v5.1.
        results: The results of the tree; a checker that passes fewer has not passed.
        deadline_s: After so many seconds it has crashed.

    Raises:
        ConfigError: The checkout holds no checker.
    """
    if not (checkout / MODULE).is_file():
        raise ConfigError(
            f"{checkout} is no checkout of mlcommons/inference: it has no {MODULE}",
            f"git clone https://github.com/mlcommons/inference && git -C inference checkout {PINNED}",
        )
    with tempfile.TemporaryDirectory(prefix="dynamo-mlperf-check-") as scratch:
        (Path(scratch) / "inference").symlink_to(checkout.resolve(), target_is_directory=True)
        summary = Path(scratch) / "summary.csv"
        argv = [sys.executable, "-m", "inference.tools.submission.submission_checker.main"]
        argv += ["--input", str(tree.resolve()), "--version", round_name, "--csv", str(summary)]
        isolated = {"PYTHONPATH": scratch, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = run_program(argv, timeout_s=deadline_s, env={**inherited_environment(), **isolated})
        except UnansweredError as problem:
            return Official("crashed", (problem.what.replace(scratch, "..."),))
        except SetupError as problem:
            return Official("crashed", (problem.what,))
        return verdict_of(done.status, done.stdout + done.stderr, _rows(summary), results)


def verdict_of(status: int, said: str, rows: tuple[dict[str, str], ...], results: Sequence[str]) -> Official:
    """The verdict in what the checker said; anything but its own two endings is a crash.

    Args:
        status: Its exit status.
        said: All that it printed.
        rows: Of its summary.
        results: What the tree holds: a filter or a folder name that hides some would pass as OK.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    errors = tuple(match[1].strip() for line in lines if (match := _ERROR.search(line)) and match[1].strip())
    ended_ok, ended_badly = _OK in said, _ERRORS in said
    if status == 0 and ended_ok and not ended_badly:
        if len(rows) != len(results):
            missing = f"it passed {len(rows)} results of {len(results)}"
            return Official("fail", (missing, *errors), rows)
        return Official("pass", (), rows)
    if status != 0 and ended_badly and not ended_ok and "Traceback" not in said:
        swallowed = tuple(line.strip() for line in lines if _SWALLOWED in line)
        return Official("fail", tuple(dict.fromkeys((*errors, *swallowed))), rows)
    return Official("crashed", (f"exit status {status}", *lines[-_LAST_LINES:]), rows)


def _rows(summary: Path) -> tuple[dict[str, str], ...]:
    if not summary.is_file() or not os.path.getsize(summary):  # noqa: PTH202 - one look at it
        return ()
    with summary.open(newline="") as source:
        return tuple(dict(row) for row in csv.DictReader(source))

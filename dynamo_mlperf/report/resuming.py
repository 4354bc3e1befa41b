"""What to do about a run that was cut: a search or sweep goes on from its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.files import shell_word
from dynamo_mlperf.report.probes import SEARCH_ANSWER
from dynamo_mlperf.report.run_files import is_there
from dynamo_mlperf.report.sweep import SWEEP_SUMMARY
from dynamo_mlperf.report.terminal import near
from dynamo_mlperf.tuning.records import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.record import Reason

_INTERRUPTED, _FAILED = "interrupted", "run"
"""What `failed_verdict` files a stop request under, and what else ends a run: a death, a full disk."""


def action_of(reason: Reason, root: Path) -> str:
    """What to do about a reason of the run in `root`."""
    how = how_to_resume(root) if reason.check in {_INTERRUPTED, _FAILED} else ""
    if reason.check == _INTERRUPTED:
        return how or reason.action
    return f"{reason.action}; {how}" if how else reason.action


def how_to_resume(root: Path) -> str:
    """The command that goes on with its search or sweep; empty where there is none, or it has its answer."""
    begun = root / SEARCH_ANSWER
    if is_there(root / SWEEP_SUMMARY):
        verb = "sweep"
    elif is_there(begun.with_name(SETTINGS)) and not is_there(begun):
        verb = "search"
    else:
        return ""
    run = shell_word(near(str(root)))
    return f"`dynamo-mlperf {verb} FILE --resume {run}` goes on where it was; on Slurm `sbatch FILE` with that --resume"

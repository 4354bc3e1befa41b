"""What a batch job itself printed: where that is, and the last error in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_text
from dynamo_mlperf.process.secret_words import redacted
from dynamo_mlperf.slurm.jobs import output_of

if TYPE_CHECKING:
    from dynamo_mlperf.slurm.runs import Run

_MOST_BYTES = 2**20
"""A job that made no run directory printed little; of more, nothing is read."""
# As every verb ends that refuses: `error: WHAT`, and `  Try: ACTION` below it; sbatch's script may fail before that.
_ERROR = re.compile(r"(?m)^(?:\S+: )?error: (.*)")


def output_here(run: Run) -> Path | None:
    """The job's output where Slurm puts it by default, beside `runs/`; None where it is not there."""
    path = run.root.parent.parent / f"slurm-{run.job_id}.out"
    return path if path.is_file() else None


def output_file(run: Run) -> Path | None:
    """The same, else the file that Slurm names; None where there is none, or Slurm does not answer."""
    if not run.job_id or run.step:
        return None
    if (here := output_here(run)) is not None:
        return here
    try:
        written = output_of(run.job_id)
    except SetupError:
        return None
    return Path(written) if written and Path(written).is_file() else None


def last_error(path: Path | None) -> str:
    """The last error that the job printed, in one line; empty where there is none."""
    try:
        found = _ERROR.findall(read_text(path, _MOST_BYTES, errors="replace")) if path is not None else []
    except (OSError, ValueError):
        return ""
    return redacted(found[-1].strip()) if found else ""

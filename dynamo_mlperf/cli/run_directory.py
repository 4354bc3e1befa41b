"""The directory that a person names, as `report` and `judge` take it: a path, or a run as `status` knows it."""

from __future__ import annotations

import os
from pathlib import Path

RUNS = Path("runs")


def run_directory(word: str) -> Path:
    """The directory that `word` means.

    Args:
        word: A directory; the name of one below runs/, or the beginning of one run's name; or the id of a job.

    Raises:
        ConfigError: It means no run, or several, or a job that has made no directory.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.slurm.runs import LIVE_REHEARSAL, find_run, is_live_rehearsal

    for candidate in (Path(word), RUNS / word):
        if os.path.isdir(candidate):  # noqa: PTH112 - Path.is_dir raises where a name is too long
            inside = candidate / LIVE_REHEARSAL
            return inside if is_live_rehearsal(inside) else candidate
    run = find_run(word, RUNS)
    if run.job_id and not run.root.is_dir():
        asked = f"`dynamo-mlperf status {run.job_id}` says how it stands, `logs {run.job_id}` what it printed"
        raise ConfigError(f"job {run.job_id} has made no run directory: {run.root} is not there", asked)
    return run.root

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
        ConfigError: It means no run, or several.
    """
    from dynamo_mlperf.slurm.runs import LIVE_REHEARSAL, find_run, is_live_rehearsal

    for candidate in (Path(word), RUNS / word):
        if os.path.isdir(candidate):  # noqa: PTH112 - Path.is_dir raises where a name is too long
            inside = candidate / LIVE_REHEARSAL
            return inside if is_live_rehearsal(inside) else candidate
    return find_run(word, RUNS).root

"""Scores of a side test, made by a process of their own while this one goes on to watch and to listen to signals."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.score_process import read_scores
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.benchmark.accuracy.scores import Scores
    from dynamo_mlperf.job.measurement import LoadPlace
    from dynamo_mlperf.load.side_results import Measured

SCORES_FILE = "scores.json"
"""In a scored test's folder: the scores with the counts behind them."""


def score_apart(place: LoadPlace, timeout_s: float, measured: Measured) -> Scores:
    """The scores of the accuracy log in the test's folder.

    Args:
        place: Where the process runs, and who watches it.
        timeout_s: How long it may take; it is then ended.
        measured: The test.

    Raises:
        ConfigError: The data set cannot be used.
        MeasureError: The log cannot be scored, or not in that time.
        Stopped: A signal came.
    """
    directory = measured.directory
    out = directory / SCORES_FILE
    words = (measured.settings.benchmark, str(directory / ACCURACY_LOG), str(measured.data_set), str(out))
    name = f"score-{directory.name}"
    command = Command(
        name,
        (sys.executable, "-m", "dynamo_mlperf.load.score_process", *words),
        {**inherited_environment(), RUN_VARIABLE: run_mark(place.run_id)},
        place.paths.log_of(name),
        node=place.node,
    )
    place.progress.say("scoring the answers")
    child = place.supervisor.start(command, Layer.TASK, may_end=True)
    try:
        status = place.supervisor.wait_for(child.poll, timeout_s, lambda: _late(timeout_s, directory))
    except MeasureError:
        place.supervisor.end([child])
        raise
    if status:
        raise place.supervisor.cause_of(child, MeasureError)
    return read_scores(out)


def _late(timeout_s: float, directory: Path) -> MeasureError:
    return MeasureError(
        f"the answers were not scored within {timeout_s:g} s (timeouts.scoring_s)",
        f"`dynamo-mlperf score {directory}` scores them, and shows how far it is",
    )

"""Scores an accuracy log: `python -m dynamo_mlperf.load.score_process BENCHMARK LOG DATA_SET OUT.json`.

A process of its own, because scores can take minutes (code that a model wrote is run) and who started it has to listen
to signals meanwhile. OUT holds the scores, or why there are none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, ExitCode, MeasureError
from dynamo_mlperf.files import read_json, write_json


def read_scores(path: Path) -> Scores:
    """What the process wrote.

    Raises:
        ConfigError: The data set could not be used.
        MeasureError: The log could not be scored, or there is no answer.
    """
    try:
        value: dict[str, Any] = read_json(path)
        if "what" in value:
            kind = ConfigError if value["usage"] else MeasureError
            raise kind(value["what"], value["action"])
        return Scores(
            benchmark=value["benchmark"],
            samples=value["samples"],
            metrics=value["scores"],
            log_sha256=value["log_sha256"],
            details=value["details"],
            not_scored=value["not_scored"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasureError(f"{path} holds no scores: {error}", "read the log of the process beside it") from error


def main(arguments: list[str]) -> int:
    """Score, and write the answer; the exit status says whether there are scores."""
    benchmark, log, data_set, out = arguments
    try:
        scores = score_accuracy_log(benchmark, Path(log), Path(data_set))
    except DynamoMlperfError as problem:
        usage = problem.exit_code == ExitCode.USAGE
        write_json(Path(out), {"what": problem.what, "action": problem.action, "usage": usage})
        return 0
    write_json(Path(out), scores.as_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The accuracy phase of endpoints: its own scorer's `accuracy_results.json`, judged.

The official checker reads the first score alone, and holds it against the floor for the image benchmark only
(mlcommons/inference b66003e1, `checks/accuracy_check.py`); here every answer has to be there as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import read_json
from dynamo_mlperf.load.over_limit import figure
from dynamo_mlperf.load.side_results import ACCURACY, NO_MEANING, SideResult, write_result
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass

RESULTS = "accuracy_results.json"


def judge_accuracy(report_dir: Path, settings: LoadSettings, result_class: ResultClass) -> SideResult:
    """Judge the accuracy phase, and write `accuracy/result.json` of it.

    Only an official one is held to the floor, as LoadGen's accuracy tests are.

    Raises:
        MeasureError: Its results are missing, cut or garbage.
    """
    entry = _entry(report_dir / ACCURACY / RESULTS)
    floors = benchmark(settings.benchmark, settings.round_name).accuracy_floor[settings.scenario]
    metric, floor = next(iter(floors.items()))
    score = figure(entry["score"])
    reasons = _answers(entry, settings.accuracy_sample_count)
    if result_class == "official" and (score is None or score < floor):
        got = "none" if score is None else f"{score:.6f}"
        action = "compare weights, chat template and quantization with the reference's"
        reasons.append(Reason(metric, f"{floor:g} or more", got, action))
    result = SideResult(
        ACCURACY,
        "INVALID" if reasons else "VALID",
        result_class,
        settings,
        tuple(reasons),
        (NO_MEANING,) if result_class == "rehearsal" else (),
        {} if score is None else {metric: score},
        {metric: floor},
    )
    write_result(report_dir / ACCURACY, result)
    return result


def _entry(path: Path) -> dict[str, Any]:
    """The one entry of an accuracy data set."""
    again = "run the measurement again"
    try:
        entries = read_json(path)["accuracy_scores"]
        found = [entry for entry in entries if entry["dataset_type"] == "accuracy"]
        figure(found[0]["score"])
        counts = found[0].get("response_counts", {})
        for value in (found[0]["total_samples"], *counts.values()):
            figure(value)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise MeasureError(f"scores of endpoints in {path} cannot be read: {error}", again) from error
    if len(found) != 1:
        raise MeasureError(f"{path} holds {len(found)} scores", again)
    entry: dict[str, Any] = found[0]
    return entry


def _answers(entry: dict[str, Any], wanted: int) -> list[Reason]:
    """Every sample was asked once, answered, and scored."""
    reasons = []
    if entry["total_samples"] != wanted:
        got = str(entry["total_samples"])
        reasons.append(Reason("samples", str(wanted), got, "give the scenario's own data set"))
    counts = entry.get("response_counts", {})
    if counts.get("scored") != entry["total_samples"] or entry.get("complete") is not True:
        got = ", ".join(f"{counts.get(key, '?')} {key}" for key in ("scored", "empty", "missing"))
        action = "see the workers' logs: an answer that failed is scored as a wrong one"
        reasons.append(Reason("answers scored", str(entry["total_samples"]), got, action))
    return reasons

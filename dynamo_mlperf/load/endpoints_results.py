"""The output directory of MLCommons endpoints (`inference-endpoint`): `config.yaml` and `result_summary.json`.

Layout as its 0.1.0 writes it: `config.yaml` beside `performance/result_summary.json` (in a submission tree) or in the
run's own report directory. Times are nanoseconds; `early_stopping_percentiles` has null where the run is too short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import read_json, read_text
from dynamo_mlperf.load.over_limit import Percentiles, figure

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "config.yaml"
SUMMARY = "performance/result_summary.json"
_SERIES = {"end_to_end": "latency", "ttft": "ttft", "tpot": "tpot"}
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class EndpointsResults:
    """What endpoints wrote.

    Attributes:
        config: `config.yaml`: what was asked for.
        summary: `result_summary.json`: what was measured.
    """

    config: dict[str, Any]
    summary: dict[str, Any]

    def setting(self, *keys: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value at `keys` of the configuration; None where there is none."""
        return _at(self.config, keys)

    def measured(self, *keys: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value at `keys` of the summary; None where there is none."""
        return _at(self.summary, keys)

    @property
    def issued(self) -> int:
        """Samples issued."""
        return int(self.measured("n_samples_issued") or 0)

    @property
    def failed(self) -> int:
        """Samples that failed, never came back, or were never sent."""
        completed = int(self.measured("n_samples_completed") or 0)
        return max(int(self.measured("n_samples_failed") or 0), abs(self.issued - completed))

    @property
    def duration_s(self) -> float:
        """Seconds of the measured window."""
        return (figure(self.measured("duration_ns")) or 0.0) / 1e9

    @property
    def model(self) -> str:
        """The model that the configuration names; empty where it names none."""
        return str(self.setting("submission_ref", "model") or self.setting("model_params", "name") or "")

    def percentile_ms(self, constraint: str, share: float, *, early_stopping: bool = False) -> float | None:
        """A percentile in milliseconds of `end_to_end`, `ttft` or `tpot`; None where there is none."""
        kind = "early_stopping_percentiles" if early_stopping else "percentiles"
        values = self.measured(_SERIES[constraint], kind)
        if not isinstance(values, dict):
            return None
        by_share = {float(key): value for key, value in values.items()}
        value = by_share.get(round(share * 100, 6))
        number = figure(value)
        return None if number is None else number / _NS_PER_MS

    def percentiles(self, constraint: str) -> Percentiles | None:
        """All plain percentiles of `end_to_end`, `ttft` or `tpot`; None where there are none."""
        series = self.measured(_SERIES[constraint])
        values = _at(series, ("percentiles",))
        if not isinstance(values, dict) or not values:
            return None
        by_share = {round(float(key) / 100, 6): float(value) / _NS_PER_MS for key, value in values.items()}
        low, high = (float(series[key]) / _NS_PER_MS for key in ("min", "max"))
        return Percentiles(self.issued, low, high, by_share, at_places=False)


def _at(value: Any, keys: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever the file holds
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def is_endpoints(directory: Path) -> bool:
    """Whether endpoints wrote this directory."""
    return (directory / SUMMARY).is_file()


def read_results(directory: Path) -> EndpointsResults:
    """What endpoints wrote into `directory`.

    Raises:
        MeasureError: A file is missing, cut or garbage, or the run did not end.
    """
    again = "run the measurement again"
    try:
        summary = read_json(directory / SUMMARY)
        config = yaml.safe_load(read_text(directory / CONFIG))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise MeasureError(f"results of endpoints in {directory} cannot be read: {error}", again) from error
    if not isinstance(summary, dict) or not isinstance(config, dict):
        raise MeasureError(f"{directory} holds no results of endpoints", again)
    results = EndpointsResults(config, summary)
    ended = summary.get("complete") is True and summary.get("state", "complete") == "complete"
    if not ended or results.issued < 1 or not results.duration_s:
        state = summary.get("state", "unknown")
        raise MeasureError(f"the run of endpoints in {directory} did not end: its state is {state!r}", again)
    return results

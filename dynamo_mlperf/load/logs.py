"""LoadGen's logs: `mlperf_log_detail.txt` (one MLLOG JSON object a line) and the summary.

Facts from LoadGen 6.0.17: errors do not change its validity, so they are collected here; `result_token_throughput`
of the detail log is off by orders of magnitude, `result_completed_tokens_per_second` is right.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError

if TYPE_CHECKING:
    from pathlib import Path

DETAIL = "mlperf_log_detail.txt"
SUMMARY = "mlperf_log_summary.txt"
_MARK = ":::MLLOG "
_GENERATED = re.compile(rb'"key": "(generated_query_count|generated_samples_per_query)", "value": (\d+)')
_UNUSABLE = frozenset({"result_token_throughput"})


@dataclass(frozen=True)
class LoadgenLog:
    """What LoadGen logged.

    Attributes:
        values: The last value of every key.
        errors: Every error entry, as `key: value`; `num_errors` beyond them counts too.
        warnings: Every warning entry, as `key: value`.
        summary: The summary text; empty when there is none.
    """

    values: dict[str, Any]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    summary: str = field(default="", repr=False)

    @property
    def validity(self) -> str | None:
        """VALID or INVALID; None for an accuracy run, which has no result."""
        value = self.values.get("result_validity")
        return None if value is None else str(value)

    @property
    def effective(self) -> dict[str, Any]:
        """The settings in force, by their keys (`effective_*`)."""
        return {key: value for key, value in self.values.items() if key.startswith("effective_")}

    @property
    def results(self) -> dict[str, Any]:
        """Every usable `result_*` value."""
        return {key: value for key, value in self.values.items() if key.startswith("result_") and key not in _UNUSABLE}

    @property
    def error_count(self) -> int:
        """Errors by LoadGen's own count or by ours, whichever is more."""
        return max(len(self.errors), int(self.values.get("num_errors", 0)))

    @property
    def audit_config_applied(self) -> bool:
        """Whether LoadGen says that an `audit.config` changed its settings."""
        return any("Audit Config file" in warning for warning in self.warnings)


def read_logs(directory: Path) -> LoadgenLog:
    """LoadGen's logs in `directory`.

    Lines without the MLLOG mark are passed over; a marked line that is no JSON, a log without its settings or without
    its end are not.

    Raises:
        MeasureError: The detail log is missing, cut or garbage.
    """
    path = directory / DETAIL
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise MeasureError(f"LoadGen's log {path} cannot be read: {error}", "run the measurement again") from error
    values: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        at = line.find(_MARK)
        if at >= 0:
            key, value, metadata = _entry(path, number, line[at + len(_MARK) :])
            values[key] = value
            if metadata.get("is_error"):
                errors.append(f"{key}: {value}")
            if metadata.get("is_warning"):
                warnings.append(f"{key}: {value}")
    _check_whole(path, values)
    summary = directory / SUMMARY
    return LoadgenLog(values, tuple(errors), tuple(warnings), summary.read_text() if summary.exists() else "")


def _entry(path: Path, number: int, raw: str) -> tuple[str, Any, dict[str, Any]]:
    try:
        entry = json.loads(raw)
        return str(entry["key"]), entry["value"], dict(entry["metadata"])
    except (ValueError, KeyError, TypeError) as error:
        raise MeasureError(
            f"LoadGen's log {path} is cut or garbled at line {number}", "run the measurement again"
        ) from error


def _check_whole(path: Path, values: dict[str, Any]) -> None:
    mode = values.get("effective_test_mode")
    if mode is None:
        raise MeasureError(
            f"LoadGen's log {path} shows no settings: the test did not start", "look at loadgen's output"
        )
    last = "num_errors" if mode == "PerformanceOnly" else "generated_query_count"
    if last not in values or (mode == "PerformanceOnly" and "result_validity" not in values):
        raise MeasureError(f"LoadGen's log {path} has no result: the test did not end", "run the measurement again")


def generated_queries(path: Path) -> int | None:
    """How many samples LoadGen said it would issue, read from a log that may still be growing; None = not yet."""
    try:
        found = dict(_GENERATED.findall(path.read_bytes()))
    except OSError:
        return None
    if len(found) < 2:  # noqa: PLR2004 - queries, and samples in each
        return None
    return int(found[b"generated_query_count"]) * int(found[b"generated_samples_per_query"])

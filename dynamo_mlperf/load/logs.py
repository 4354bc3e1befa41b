"""LoadGen's logs: `mlperf_log_detail.txt` (one MLLOG JSON object a line) and the summary.

Facts from LoadGen 6.0.17: errors do not change its validity, so they are collected here; `result_token_throughput`
of the detail log is off by orders of magnitude, `result_completed_tokens_per_second` is right.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import MOST_LOG_BYTES, RepeatedKeyError, read_bounded, read_text, strict_json

if TYPE_CHECKING:
    from pathlib import Path

DETAIL = "mlperf_log_detail.txt"
SUMMARY = "mlperf_log_summary.txt"
AGAIN = "copy the directory again where this is a copy, else run the measurement again"
"""What to do about a record that is missing, cut or garbled."""
_MARK = ":::MLLOG "
_GENERATED = re.compile(rb'"key": "(generated_query_count|generated_samples_per_query)", "value": (\d+)')
_ONCE = ("effective_", "result_", "generated_")
"""How keys begin that one test logs once."""
_AUDIT_NOTICE = "Audit Config file"
_UNUSABLE = frozenset({"result_token_throughput"})


_MET = (
    "result_min_duration_met",
    "result_min_queries_met",
    "result_perf_constraints_met",
    "early_stopping_met",
)


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
    def contradictions(self) -> tuple[str, ...]:
        """What in the detail log of a test that it calls VALID says that it is not; LoadGen itself writes none."""
        if self.validity != "VALID":
            return ()
        unmet = [f"{key} false" for key in _MET if self.values.get(key, True) is not True]
        cause = str(self.values.get("result_invalid_reason") or "").strip()
        return (*unmet, *([cause] if cause else []))

    @property
    def audit_config_applied(self) -> bool:
        """Whether LoadGen says that an `audit.config` changed its settings."""
        return any(_AUDIT_NOTICE in warning for warning in self.warnings)


def read_logs(directory: Path) -> LoadgenLog:
    """LoadGen's logs in `directory`.

    Lines without the MLLOG mark are passed over; a marked line that is no JSON, a log without its settings or without
    its end are not.

    Raises:
        MeasureError: The detail log is missing, cut or garbage.
    """
    path, summary = directory / DETAIL, directory / SUMMARY
    try:
        text = read_text(path, MOST_LOG_BYTES)
        said = read_text(summary) if summary.is_file() else ""
    except (OSError, ValueError) as error:
        raise MeasureError(f"LoadGen's log {path} cannot be read: {error}", AGAIN) from error
    values: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        at = line.find(_MARK)
        if at >= 0:
            key, value, metadata = _entry(path, number, line[at + len(_MARK) :])
            if key.startswith(_ONCE) and key in values and values[key] != value:
                raise MeasureError(
                    f"LoadGen's log {path} shows {key} twice, as {values[key]} and {value}: logs of two tests",
                    "take the log of one test, as LoadGen wrote it",
                )
            values[key] = value
            if metadata.get("is_error") or (key.startswith("error_") and not metadata.get("is_warning")):
                errors.append(f"{key}: {value}")
            if metadata.get("is_warning"):
                warnings.append(f"{key}: {value}")
    _check_whole(path, values)
    return LoadgenLog(values, tuple(errors), tuple(warnings), said)


def _entry(path: Path, number: int, raw: str) -> tuple[str, Any, dict[str, Any]]:
    try:
        entry = strict_json(raw, finite=True)
        return str(entry["key"]), entry["value"], dict(entry["metadata"])
    except RepeatedKeyError as error:
        raise MeasureError(f"LoadGen's log {path} is garbled at line {number}: {error}", AGAIN) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeasureError(f"LoadGen's log {path} is cut or garbled at line {number}", AGAIN) from error


def _check_whole(path: Path, values: dict[str, Any]) -> None:
    mode = values.get("effective_test_mode")
    if mode is None:
        raise MeasureError(
            f"LoadGen's log {path} shows no settings: the test did not start", "look at loadgen's output"
        )
    needed = ("num_errors", "result_validity") if mode == "PerformanceOnly" else ("generated_query_count", "power_end")
    if not values.keys() >= set(needed):
        raise MeasureError(f"LoadGen's log {path} has no result: the test did not end", AGAIN)


def logged_values(path: Path) -> dict[str, Any]:
    """The values of a log that may still be growing, the last of every key; a line cut by its growth is left out.

    Raises:
        OSError: The file cannot be read.
    """
    values: dict[str, Any] = {}
    for line in read_text(path, MOST_LOG_BYTES, errors="replace").split("\n")[:-1]:
        _, mark, raw = line.partition(_MARK)
        if mark:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(raw)
                values[str(entry["key"])] = entry["value"]
    return values


def generated_queries(path: Path) -> int | None:
    """How many samples LoadGen said it would issue, read from a log that may still be growing; None = not yet."""
    try:
        found = dict(_GENERATED.findall(read_bounded(path, MOST_LOG_BYTES)))
    except (OSError, ValueError):
        return None
    if len(found) < 2:  # noqa: PLR2004 - queries, and samples in each
        return None
    return int(found[b"generated_query_count"]) * int(found[b"generated_samples_per_query"])


def audit_notice(path: Path) -> bool:
    """Whether a log that may still be growing says that an `audit.config` changed the settings."""
    try:
        return _AUDIT_NOTICE.encode() in read_bounded(path, MOST_LOG_BYTES)
    except (OSError, ValueError):
        return False

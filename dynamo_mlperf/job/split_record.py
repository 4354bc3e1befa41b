"""`split.json`: what was found of one split of a sweep, as a later sweep, a summary or a bound reads it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import RepeatedKeyError, read_json
from dynamo_mlperf.job.redoing import changes
from dynamo_mlperf.tuning.sweep import FAILED, SplitResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dynamo_mlperf.topology.role_splits import RoleSplit

SPLIT_FILE = "split.json"


def is_rate(value: object) -> bool:
    """Whether it is a number of queries per second above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def finished_split(folder: Path, sought: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """A split's record; None where there is none, or it failed to measure: a resumed sweep tries that one again.

    Args:
        folder: The split's folder.
        sought: What is asked for now: one that was found with other settings does not count. None = any counts.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    if not (folder / SPLIT_FILE).is_file():
        return None
    value = read_split(folder / SPLIT_FILE)
    other = sought is not None and split_changes(value, sought)
    return None if value["kind"] == FAILED or other else value


def split_changes(value: Mapping[str, Any], sought: Mapping[str, Any]) -> list[str]:
    """How the settings differ that a split's answer was found with; see `changes`."""
    return changes(value.get("sought"), sought, located=value.get("located") is True)


def read_split(path: Path) -> dict[str, Any]:
    """A `split.json`.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    value = read_object(path)
    wrong = [name for name, good in _KEYS.items() if not good(value.get(name))]
    if value.get("rate_qps") is not None:
        wrong += [name for name in ("confirmed_in", "target_qps") if value.get(name) is None]
    if wrong:
        told = f"{wrong[0]} is {value.get(wrong[0])!r:.40}"
        raise ConfigError(f"{path} is not as a sweep wrote it: {told}", "remove it; its split is then measured again")
    return value


def _none_or(good: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or good(value)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < math.inf


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_folder(value: object) -> bool:
    """The name of a probe's or a run's folder, never a path."""
    return isinstance(value, str) and re.fullmatch(r"(probe|rate)-[0-9]{3,6}", value) is not None


_KEYS: Mapping[str, Callable[[object], bool]] = {
    "rate_qps": _none_or(is_rate),
    "ceiling_qps": _none_or(is_rate),
    "target_qps": _none_or(is_rate),
    "confirmed_in": _none_or(_is_folder),
    "kind": _is_text,
    "reason": _is_text,
    "restarts": _is_amount,
    "engine_seconds": _is_amount,
}
"""What a resumed sweep reads of `split.json`."""


def read_object(path: Path, action: str = "remove it; its split is then measured again") -> dict[str, Any]:
    """A record that is a JSON object.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    try:
        value = read_json(path)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}", action) from problem
    except RepeatedKeyError as problem:
        raise ConfigError(f"{path} holds the key {problem.key} twice", action) from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} is no JSON: {problem}", action) from problem
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no JSON object", action)
    return value


def result_of(value: Mapping[str, Any], split: RoleSplit) -> SplitResult:
    """A `split.json` as the sweep's steps take it."""
    found = value.get("bottleneck")
    told = found if isinstance(found, dict) else {}
    role = told.get("role")
    if role not in [count.role for count in split.counts]:
        return SplitResult(split, value["rate_qps"], value.get("ceiling_qps"))
    return SplitResult(
        split,
        value["rate_qps"],
        value.get("ceiling_qps"),
        role,
        _share(told.get("held_share")),
        str(told.get("text", "")),
    )


def _share(value: object) -> float:
    """A share of 1; 0 where it is none."""
    return value if isinstance(value, float | int) and 0.0 <= value <= 1.0 else 0.0

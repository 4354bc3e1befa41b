"""A `user.conf` that a person gives: read strictly, and held to what the rules and the topology file say.

Each of its lines has to have an effect, and none may lower what the rules ask for: that is what `reduced:` is for,
which changes the class of the result. What it raises goes into the settings, so LoadGen is told and its log compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_text
from dynamo_mlperf.load.settings import LoadSettings
from dynamo_mlperf.load.user_conf import parse_user_conf

_TOO_MUCH = 1e11
"""Nothing is that long or that many, and LoadGen is told it to the last digit."""


@dataclasses.dataclass(frozen=True)
class _Rule:
    """How one key may differ from the settings.

    Attributes:
        field: The field of the settings; empty where the key may only repeat what holds anyway.
        wanted: What is allowed, for people.
        allowed: Whether a value is, given what holds.
        scale: The file's unit in those of the settings.
    """

    field: str
    wanted: str
    allowed: Callable[[float, float], bool]
    scale: float = 1.0


def _at_least(value: float, now: float) -> bool:
    return value >= now


def _at_most(value: float, now: float) -> bool:
    return 0 < value <= now


def _percentile(value: float, now: float) -> bool:
    return now <= value < 100  # noqa: PLR2004 - percent


def _the_same(value: float, now: float) -> bool:
    return value == now


_RULES = {
    "target_qps": _Rule("target_qps", "the same as measure.target_qps, {now:g}", _the_same),
    "target_latency": _Rule("target_latency_ms", "{now:g} or less", _at_most),
    "ttft_latency": _Rule("ttft_ms", "{now:g} or less", _at_most),
    "tpot_latency": _Rule("tpot_ms", "{now:g} or less", _at_most),
    "target_latency_percentile": _Rule("percentile", "{now:g} or more, and less than 100", _percentile, 0.01),
    "use_token_latencies": _Rule("use_token_latencies", "{now:g}", _the_same),
    "min_duration": _Rule("min_duration_ms", "{now:g} or more", _at_least),
    "max_duration": _Rule("", "0: a run ends by its rules", _the_same),
    "min_query_count": _Rule("min_query_count", "{now:g} or more", _at_least),
    "max_query_count": _Rule("", "0: a run ends by its rules", _the_same),
    "performance_sample_count_override": _Rule("performance_sample_count", "{now:g} or more", _at_least),
    "accuracy_sample_count_override": _Rule("accuracy_sample_count", "{now:g}", _the_same),
    "sample_concatenate_permutation": _Rule("sample_concatenate_permutation", "{now:g}", _the_same),
}


def with_user_conf(settings: LoadSettings, path: Path) -> LoadSettings:
    """The settings with what the person's `user.conf` raises.

    Args:
        settings: By the rules and the topology file.
        path: The person's file.

    Raises:
        ConfigError: It cannot be read, a line has no effect, or one lowers what holds.
    """
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"user.conf {path} cannot be read: {error}", "name a file of text") from error
    try:
        values = parse_user_conf(text, settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.what}", error.action) from error
    changed = settings
    for key, value in values.items():
        changed = _with(changed, path, key, value)
    if changed.performance_sample_count > settings.dataset_samples:
        raise ConfigError(
            f"{path}: performance_sample_count_override is {changed.performance_sample_count}, and the data set has "
            f"{settings.dataset_samples} samples",
            f"write {settings.dataset_samples} or less",
        )
    return changed


def _with(settings: LoadSettings, path: Path, key: str, written: float) -> LoadSettings:
    rule = _RULES[key]
    holds = getattr(settings, rule.field) if rule.field else 0
    unjudged = key == "target_latency_percentile" and not settings.limits_ms
    if holds is None or unjudged:
        raise ConfigError(
            f"{path}: {key} is {written:g}, and {settings.benchmark} {settings.scenario} is not judged by it",
            f"leave {key} out",
        )
    if written >= _TOO_MUCH:
        raise ConfigError(f"{path}: {key} is {written:g}", f"write less than {_TOO_MUCH:g}")
    now = round(float(holds) / rule.scale, 9)
    if not rule.allowed(written, now):
        action = "correct it, or lower the rules in reduced: (the result's class is then reduced)"
        raise ConfigError(f"{path}: {key} is {written:g}, and this run wants {rule.wanted.format(now=now)}", action)
    if not rule.field:
        return settings
    changes: dict[str, Any] = {rule.field: type(holds)(written * rule.scale)}
    return dataclasses.replace(settings, **changes)

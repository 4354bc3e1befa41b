"""`user.conf`: what LoadGen is told beyond its embedded rules, and what its log must then show.

LoadGen ignores what it does not understand without a word: a line without blanks round `=`, an unknown key, an
unknown model, a comment without a blank after `#`. So the text is written from the settings, read back strictly,
and the log's own `effective_*` values are what counts.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rules import BENCHMARKS, MIN_QUERY_COUNT, PERCENTILE, Benchmark
from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from dynamo_mlperf.load.settings import LoadSettings

KEYS = (
    "target_qps",
    "target_latency",
    "target_latency_percentile",
    "ttft_latency",
    "tpot_latency",
    "use_token_latencies",
    "min_duration",
    "max_duration",
    "min_query_count",
    "max_query_count",
    "performance_sample_count_override",
    "accuracy_sample_count_override",
    "sample_concatenate_permutation",
)
"""Keys of `user.conf` that have an effect in Server or Offline; seeds and modes are not the user's."""

_FRACTIONAL = ("target_qps", "target_latency_percentile")
"""Keys whose value may have a fraction; LoadGen reads every other one as a whole number."""

_NUMBERS = {
    "number": re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?"),
    "whole number": re.compile(r"[+-]?[0-9]{1,30}"),
}
"""As LoadGen reads them; Python reads more (`1_000`, digits of other scripts, nan)."""

_OFFLINE_SLACK = 1.1
"""LoadGen makes an Offline query this much larger than rate times duration (its test settings' source)."""

_NS_PER_MS = 1_000_000


def _embedded(rules: Benchmark, settings: LoadSettings) -> dict[str, float]:
    """What the embedded `mlperf.conf` already says for these settings' entry."""
    interactive = settings.loadgen_model.endswith("-interactive")
    limits = rules.limits["Interactive" if interactive else "Server"]
    named_offline = settings.scenario == "Offline" and rules.name != "gpt-oss-120b"
    values = {
        "target_latency": limits.latency_ms or 0,
        "target_latency_percentile": PERCENTILE * 100,
        "ttft_latency": limits.ttft_ms or 0,
        "tpot_latency": limits.tpot_ms or 0,
        "min_duration": rules.min_duration_ms,
        "min_query_count": rules.offline_min_samples if named_offline else MIN_QUERY_COUNT,
        "performance_sample_count_override": rules.performance_sample_count["Server"],
    }
    if rules.name == "gpt-oss-120b":
        values["accuracy_sample_count_override"] = rules.accuracy_sample_count["Server"]
    return values


def _wanted(rules: Benchmark, settings: LoadSettings) -> dict[str, float]:
    values: dict[str, float] = {
        "min_duration": settings.min_duration_ms,
        "min_query_count": settings.min_query_count,
        "performance_sample_count_override": settings.performance_sample_count,
    }
    if settings.loadgen_scenario == "Server":
        values["target_latency"] = settings.target_latency_ms or 0
        values["target_latency_percentile"] = settings.percentile * 100
        values["ttft_latency"] = settings.ttft_ms or 0
        values["tpot_latency"] = settings.tpot_ms or 0
    if settings.accuracy_sample_count != rules.accuracy_sample_count[settings.scenario]:
        values["accuracy_sample_count_override"] = settings.accuracy_sample_count
    return values


def user_conf(settings: LoadSettings) -> str:
    """The text of `user.conf`: the rate, and each value that differs from LoadGen's embedded rules."""
    rules = BENCHMARKS[settings.benchmark]
    embedded = _embedded(rules, settings)
    lines = [f"{settings.loadgen_model}.{settings.loadgen_scenario}.target_qps = {settings.target_qps:.12g}"]
    for key, value in _wanted(rules, settings).items():
        if embedded.get(key) != value:
            scenario = "*" if key.endswith("_override") else settings.loadgen_scenario
            lines.append(f"{settings.loadgen_model}.{scenario}.{key} = {value:.12g}")
    return "".join(f"{line}\n" for line in lines)


def parse_user_conf(text: str, settings: LoadSettings) -> dict[str, float]:
    """The values that LoadGen takes from `text` for these settings, in the file's own units (ms, percent).

    Raises:
        ConfigError: A line would have no effect: no blanks round `=`, an unknown key, another model or scenario,
            a comment without a blank after `#`, a value that is no number, a key set twice. The error names the
            line.
    """
    values: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if words and words[0] != "#":
            key, value = _setting(number, line, words, settings)
            if key in values:
                raise ConfigError(
                    f"user.conf line {number} has no effect, or an earlier one has none: {key} is set twice",
                    "leave one of them out",
                )
            values[key] = value
    return values


def _setting(number: int, line: str, words: list[str], settings: LoadSettings) -> tuple[str, float]:
    start = f"user.conf line {number} has no effect: {line.strip()!r}"
    if words[0].startswith("#"):
        raise ConfigError(f"{start} (a comment needs a blank after #)", f"write # {words[0][1:]}")
    if len(words) != 3 or words[1] != "=":  # noqa: PLR2004 - key, sign, value
        key, _, value = line.partition("#")[0].partition("=")
        hint = f"write {key.strip()} = {value.strip()}" if value.strip() else "write MODEL.SCENARIO.KEY = VALUE"
        raise ConfigError(f"{start} (LoadGen reads three words: key, = and value)", hint)
    if words[0].count(".") < 2:  # noqa: PLR2004 - model, scenario, key
        hint = f"write *.{settings.loadgen_scenario}.{words[0]} = {words[2]}"
        raise ConfigError(f"{start} (LoadGen wants MODEL.SCENARIO.KEY)", hint)
    model, scenario, key = words[0].rsplit(".", 2)
    if key not in KEYS:
        near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]
        raise ConfigError(f"{start} (no key {key!r})", f"write {model}.{scenario}.{near} = {words[2]}")
    if model not in ("*", settings.loadgen_model):
        hint = f"write *.{scenario}.{key} = {words[2]}"
        raise ConfigError(f"{start} (the test's model is {settings.loadgen_model})", hint)
    if scenario not in ("*", settings.loadgen_scenario):
        hint = f"write {model}.{settings.loadgen_scenario}.{key} = {words[2]}"
        raise ConfigError(f"{start} (LoadGen's scenario is {settings.loadgen_scenario})", hint)
    kind = "number" if key in _FRACTIONAL else "whole number"
    if not _NUMBERS[kind].fullmatch(words[2]):
        raise ConfigError(f"{start} ({words[2]!r} is no {kind})", f"write a {kind}")
    return key, float(words[2]) if key in _FRACTIONAL else int(words[2])


def expected_samples_per_query(settings: LoadSettings) -> int:
    """Samples in a query as LoadGen plans it: 1, or in Offline rate times duration with a tenth of slack."""
    if settings.loadgen_scenario == "Server":
        return 1
    by_rate = int(_OFFLINE_SLACK * (settings.min_duration_ms / 1000) * settings.target_qps)
    return max(settings.min_query_count, by_rate)


def expected_queries(settings: LoadSettings) -> int:
    """About how many queries (samples in Offline) a test issues: padded up to whole data sets."""
    if settings.mode == "accuracy":
        return settings.accuracy_sample_count
    if settings.loadgen_scenario == "Offline":
        count = expected_samples_per_query(settings)
    else:
        count = max(settings.min_query_count, round(settings.target_qps * settings.min_duration_ms / 1000))
    return in_whole_sets(count, settings.performance_sample_count) if settings.sample_concatenate_permutation else count


def in_whole_sets(queries: float, data_set: int) -> int:
    """So many queries, or the next whole multiple of the data set: equal issue sends it whole (LoadGen 6.0.17)."""
    return math.ceil(max(queries, 1.0) / data_set - 1e-9) * data_set


def expected_effective(settings: LoadSettings) -> dict[str, Any]:
    """Every setting that `mlperf_log_detail.txt` must show, by its key there, in the log's units.

    TTFT and TPOT limits and the token-latency switch have no `effective_*` entry: the log shows them as
    `requested_*`, as read from the embedded rules and `user.conf` together.
    """
    server = settings.loadgen_scenario == "Server"
    rules = BENCHMARKS[settings.benchmark]
    by_rule = rules.accuracy_sample_count[settings.scenario]
    overridden = rules.name == "gpt-oss-120b" or settings.accuracy_sample_count != by_rule
    values: dict[str, Any] = {
        "effective_scenario": settings.loadgen_scenario,
        "effective_test_mode": "PerformanceOnly" if settings.mode == "performance" else "AccuracyOnly",
        "effective_samples_per_query": expected_samples_per_query(settings),
        "effective_target_qps": settings.target_qps,
        "effective_target_latency_ns": round((settings.target_latency_ms or 0) * _NS_PER_MS) if server else 0,
        "effective_target_latency_percentile": settings.percentile if server else PERCENTILE,
        "effective_max_async_queries": 0 if server else 1,
        "effective_target_duration_ms": settings.min_duration_ms if server else 0,
        "effective_min_duration_ms": settings.min_duration_ms,
        "effective_max_duration_ms": 0,
        "effective_min_query_count": settings.min_query_count if server else 1,
        "effective_max_query_count": 0,
        "effective_min_sample_count": settings.min_query_count if server else expected_samples_per_query(settings),
        "effective_qsl_rng_seed": settings.seeds.qsl,
        "effective_sample_index_rng_seed": settings.seeds.sample_index,
        "effective_schedule_rng_seed": settings.seeds.schedule,
        "effective_accuracy_log_rng_seed": 0,
        "effective_accuracy_log_probability": 0,
        "effective_accuracy_log_sampling_target": 0,
        "effective_print_timestamps": False,
        "effective_performance_issue_unique": False,
        "effective_performance_issue_same": False,
        "effective_performance_issue_same_index": 0,
        "effective_performance_sample_count": settings.performance_sample_count,
        "effective_accuracy_sample_count": settings.accuracy_sample_count if overridden else settings.dataset_samples,
        "effective_sample_concatenate_permutation": settings.sample_concatenate_permutation,
    }
    if settings.use_token_latencies:
        values["requested_use_token_latencies"] = True
    if settings.use_token_latencies and server:
        values["requested_server_ttft_latency"] = round((settings.ttft_ms or 0) * _NS_PER_MS)
        values["requested_server_tpot_latency"] = round((settings.tpot_ms or 0) * _NS_PER_MS)
    return values

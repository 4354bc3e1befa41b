"""The settings of one LoadGen test: the rules of its benchmark and scenario, less what `reduced:` lowers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dynamo_mlperf.benchmark.rounds import round_of
from dynamo_mlperf.benchmark.rules import (
    MIN_QUERY_COUNT,
    ROUND,
    Benchmark,
    Limits,
    Reduction,
    Seeds,
    check_scenario,
)
from dynamo_mlperf.errors import ConfigError

Mode = Literal["performance", "accuracy"]


class TooFewSamplesError(ConfigError):
    """The data set is smaller than the rules ask for (exit 2).

    Args:
        what: What happened.
        have: Samples of the data set.
    """

    def __init__(self, what: str, have: int) -> None:
        action = f"stage the full data set, or write reduced: {{samples: {have}}} (the result's class is then reduced)"
        super().__init__(what, action)
        self.have = have


DEFAULT_REQUEST_TIMEOUT_S = 600.0
"""A request without an end after this long has failed."""

DEFAULT_MAX_IN_FLIGHT = 1024
"""Requests that one client process keeps in flight in Offline; Server and Interactive have no bound."""


@dataclass(frozen=True)
class LoadSettings:
    """Everything that LoadGen and our client are told about one test.

    Attributes:
        benchmark: Name in the submission tree.
        scenario: Offline, Server or Interactive.
        loadgen_scenario: What LoadGen calls it: Offline or Server.
        loadgen_model: The model name that selects the entry in `mlperf.conf`.
        target_qps: Offered rate in queries (Offline: expected samples) per second.
        min_duration_ms: Shortest run in milliseconds.
        min_query_count: Fewest queries, or samples in Offline.
        performance_sample_count: Samples that a performance run draws from.
        accuracy_sample_count: Samples of an accuracy run.
        dataset_samples: Samples of the data set at hand.
        percentile: Judged percentile, 0 to 1.
        target_latency_ms: End-to-end limit in milliseconds; None where TTFT and TPOT count, or nothing does.
        ttft_ms: Limit of the time to first token in milliseconds, or None.
        tpot_ms: Limit of the time per output token in milliseconds, or None.
        use_token_latencies: Whether LoadGen is told of first tokens and token counts.
        sample_concatenate_permutation: Whether LoadGen pads to whole data sets (equal issue).
        seeds: Seeds of the round.
        mode: performance or accuracy.
        request_timeout_s: Seconds after which a request has failed.
        max_in_flight: Requests in flight per client process in Offline.
        reduced: Whether anything is below what the rules ask for.
        round_name: The round whose rules and seeds these are.
    """

    benchmark: str
    scenario: str
    loadgen_scenario: Literal["Offline", "Server"]
    loadgen_model: str
    target_qps: float
    min_duration_ms: int
    min_query_count: int
    performance_sample_count: int
    accuracy_sample_count: int
    dataset_samples: int
    percentile: float
    target_latency_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    use_token_latencies: bool
    sample_concatenate_permutation: bool
    seeds: Seeds
    mode: Mode = "performance"
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT
    reduced: bool = False
    round_name: str = ROUND

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limits in force, in milliseconds, by constraint: `end_to_end`, or `ttft` and `tpot`; empty in Offline."""
        every = {"end_to_end": self.target_latency_ms, "ttft": self.ttft_ms, "tpot": self.tpot_ms}
        return {name: limit for name, limit in every.items() if limit is not None}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, for the process that runs the test."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LoadSettings:
        """The settings that `to_json` wrote.

        Raises:
            ConfigError: A key is missing, unknown or of no use.
        """
        try:
            found = cls(**{**value, "seeds": Seeds(**value["seeds"])})
            rated = 0 < found.target_qps < float("inf")
        except (KeyError, TypeError) as error:
            raise ConfigError(f"load settings that cannot be read: {error}") from error
        if not rated:
            raise ConfigError(f"load settings that cannot be read: target_qps is {found.target_qps}")
        return found


def build_settings(  # noqa: PLR0917 - one argument per independent decision
    benchmark: Benchmark,
    scenario: str,
    target_qps: float,
    dataset_samples: int,
    reduction: Reduction | None = None,
    mode: Mode = "performance",
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    round_name: str = ROUND,
) -> LoadSettings:
    """The settings of one test by the rules of `benchmark`, less what `reduction` names.

    Args:
        benchmark: The rules.
        scenario: Offline, Server or Interactive.
        target_qps: Offered rate in queries per second (Offline: the expected rate in samples per second).
        dataset_samples: Samples of the data set at hand.
        reduction: The topology file's `reduced:` block.
        mode: performance or accuracy.
        request_timeout_s: Seconds after which a request has failed.
        max_in_flight: Requests that each client process keeps in flight in Offline.
        round_name: The round that `benchmark` was taken from; decides the seeds.

    Raises:
        ConfigError: An unknown scenario, a rate that is none, a reduction that lowers nothing, or a data set
            smaller than what the rules (or the reduction) ask for.
    """
    check_scenario(scenario, benchmark)
    if not 0 < target_qps < float("inf"):
        raise ConfigError(f"target_qps is {target_qps}", "write a rate above 0, for example target_qps: 1")
    lowered = reduction or Reduction()
    limits = _limits(benchmark, scenario, lowered)
    performance = _samples(benchmark.performance_sample_count[scenario], lowered, "performance")
    accuracy = _samples(benchmark.accuracy_sample_count[scenario], lowered, "accuracy")
    _check_data_set(benchmark, scenario, dataset_samples, performance if mode == "performance" else accuracy)
    return LoadSettings(
        benchmark=benchmark.name,
        scenario=scenario,
        loadgen_scenario="Offline" if scenario == "Offline" else "Server",
        loadgen_model=benchmark.loadgen_name(scenario),
        target_qps=float(target_qps),
        min_duration_ms=_min_duration_ms(benchmark, lowered),
        min_query_count=_min_query_count(benchmark, scenario, lowered),
        performance_sample_count=performance,
        accuracy_sample_count=accuracy,
        dataset_samples=dataset_samples,
        percentile=limits.percentile,
        target_latency_ms=limits.latency_ms,
        ttft_ms=limits.ttft_ms,
        tpot_ms=limits.tpot_ms,
        use_token_latencies=benchmark.use_token_latencies,
        sample_concatenate_permutation=True,
        seeds=round_of(round_name).seeds,
        mode=mode,
        request_timeout_s=request_timeout_s,
        max_in_flight=max_in_flight,
        reduced=lowered != Reduction(),
        round_name=round_name,
    )


def below_rules(settings: LoadSettings) -> list[str]:
    """The fields of these settings that ask for less than the rules of their round do, or for something else."""
    rules = round_of(settings.round_name).benchmarks[settings.benchmark]
    full = build_settings(
        rules,
        settings.scenario,
        settings.target_qps,
        max(settings.dataset_samples, settings.performance_sample_count, *rules.performance_sample_count.values())
        + max(rules.accuracy_sample_count.values()),
        mode=settings.mode,
        round_name=settings.round_name,
    )
    at_least = ("min_duration_ms", "min_query_count", "performance_sample_count", "percentile")
    at_most = ("target_latency_ms", "ttft_ms", "tpot_ms")
    same = (
        "loadgen_scenario",
        "loadgen_model",
        "accuracy_sample_count",
        "use_token_latencies",
        "sample_concatenate_permutation",
        "seeds",
    )
    now, wanted = vars(settings), vars(full)
    return [
        *(name for name in at_least if not now[name] >= wanted[name]),
        *(name for name in at_most if wanted[name] is not None and not 0 < (now[name] or 0) <= wanted[name]),
        *(name for name in same if now[name] != wanted[name]),
    ]


def _limits(benchmark: Benchmark, scenario: str, lowered: Reduction) -> Limits:
    limits = benchmark.limits[scenario]
    percentile = limits.percentile
    if lowered.percentile is not None:
        if not 50 <= lowered.percentile <= 99:  # noqa: PLR2004 - below the median nothing is judged
            raise ConfigError(
                f"reduced percentile is {lowered.percentile:g}, in percent", "write a value from 50 to 99, such as 90"
            )
        percentile = lowered.percentile / 100
    latency_ms = limits.latency_ms
    if lowered.latency_limit_ms is not None and scenario != "Offline":
        if latency_ms is None:
            raise ConfigError(
                f"reduced latency_limit_ms is for end-to-end limits, and {benchmark.name} {scenario} has none: "
                f"TTFT {limits.ttft_ms:g} ms and TPOT {limits.tpot_ms:g} ms count",
                "take latency_limit_ms out of reduced:",
            )
        if lowered.latency_limit_ms < 1 or lowered.latency_limit_ms % 1:
            raise ConfigError(
                f"reduced latency_limit_ms is {lowered.latency_limit_ms:g}, and LoadGen reads whole milliseconds",
                "write a whole number of 1 or more",
            )
        latency_ms = lowered.latency_limit_ms
    return Limits(percentile=percentile, latency_ms=latency_ms, ttft_ms=limits.ttft_ms, tpot_ms=limits.tpot_ms)


def _samples(by_rule: int, lowered: Reduction, what: str) -> int:
    if lowered.samples is None:
        return by_rule
    if not 1 <= lowered.samples <= by_rule:
        raise ConfigError(
            f"reduced samples is {lowered.samples}, and the rules ask for {by_rule} {what} samples",
            f"write a number from 1 to {by_rule}, or leave samples out",
        )
    return lowered.samples


def _min_duration_ms(benchmark: Benchmark, lowered: Reduction) -> int:
    if lowered.min_duration_s is None:
        return benchmark.min_duration_ms
    asked_ms = lowered.min_duration_s * 1000
    if not 1 <= asked_ms <= benchmark.min_duration_ms:
        raise ConfigError(
            f"reduced min_duration_s is {lowered.min_duration_s:g}, and the rules ask for "
            f"{benchmark.min_duration_ms / 1000:g} s",
            f"write a number above 0 and up to {benchmark.min_duration_ms / 1000:g}, or leave min_duration_s out",
        )
    return round(asked_ms)


def _min_query_count(benchmark: Benchmark, scenario: str, lowered: Reduction) -> int:
    by_rule = benchmark.offline_min_samples if scenario == "Offline" else MIN_QUERY_COUNT
    return by_rule if lowered.samples is None else min(by_rule, lowered.samples)


def _check_data_set(benchmark: Benchmark, scenario: str, have: int, need: int) -> None:
    if have < need:
        raise TooFewSamplesError(f"the data set has {have} samples, and {benchmark.name} {scenario} needs {need}", have)

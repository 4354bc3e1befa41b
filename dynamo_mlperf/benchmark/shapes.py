"""What a benchmark's rules consist of: seeds, limits, counts, bounds. The data lies in `limits.py` and `rounds.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

SCENARIOS = ("Offline", "Server", "Interactive")
"""What the rules and the checker call a scenario; LoadGen itself knows Interactive only as Server."""

PERCENTILE = 0.99
"""The percentile of every latency constraint of the rounds here, as a fraction."""

MIN_DURATION_MS = 600_000
"""Shortest performance run, in milliseconds."""

MIN_QUERY_COUNT = 100
"""LoadGen's own minimum of queries, in force where `mlperf.conf` names none."""


@dataclass(frozen=True)
class Seeds:
    """The random seeds of a round; every log of the round has to show them."""

    qsl: int
    sample_index: int
    schedule: int


@dataclass(frozen=True)
class Limits:
    """Latency limits of one scenario; None where the scenario has no such constraint.

    Attributes:
        percentile: Share of queries that must be within the limit, 0 to 1.
        latency_ms: End-to-end limit in milliseconds.
        ttft_ms: Limit of the time to first token in milliseconds.
        tpot_ms: Limit of the mean time per output token after the first, in milliseconds.
    """

    percentile: float = PERCENTILE
    latency_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def by_constraint(self) -> dict[str, float]:
        """The limits in milliseconds by constraint: `end_to_end`, or `ttft` and `tpot`; empty without any."""
        every = {"end_to_end": self.latency_ms, "ttft": self.ttft_ms, "tpot": self.tpot_ms}
        return {name: limit for name, limit in every.items() if limit is not None}


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of a round.

    Attributes:
        name: The name in the submission tree.
        loadgen_model: The base model name in `mlperf.conf`.
        interactive_entry: Whether `mlperf.conf` has an entry `<loadgen_model>-interactive`.
        limits: Latency limits by scenario; the scenarios that the round has for this benchmark.
        performance_sample_count: Samples that a performance run draws from, by scenario.
        accuracy_sample_count: Samples of an accuracy run, by scenario.
        offline_min_samples: Fewest samples of an Offline run.
        max_new_tokens: Cap on output tokens per request in performance runs.
        accuracy_max_new_tokens: The same in accuracy runs.
        min_duration_ms: Shortest performance run in milliseconds.
        unit: Unit of the result in Server and Interactive.
        offline_unit: Unit of the result in Offline.
        tokens_per_sample: Lowest and highest mean of output tokens per sample of an accuracy run; None = no bound.
        accuracy_floor: Lowest accepted value per metric, by scenario.
        compliance_tests: Compliance tests that a submission needs.
        use_token_latencies: Whether TTFT and TPOT are judged (else the end-to-end latency).
        clients: Load clients that the round accepts for this benchmark.
        reasoning_effort: Test (performance, accuracy or a compliance test) -> how much the model is told to reason, for
            models whose chat template asks.
    """

    name: str
    loadgen_model: str
    interactive_entry: bool
    limits: Mapping[str, Limits]
    performance_sample_count: Mapping[str, int]
    accuracy_sample_count: Mapping[str, int]
    offline_min_samples: int
    max_new_tokens: int
    accuracy_max_new_tokens: int
    unit: str
    offline_unit: str
    tokens_per_sample: tuple[float | None, float | None]
    accuracy_floor: Mapping[str, Mapping[str, float]]
    compliance_tests: tuple[str, ...]
    use_token_latencies: bool
    min_duration_ms: int = MIN_DURATION_MS
    clients: tuple[str, ...] = ("loadgen", "endpoints")
    reasoning_effort: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def scenarios(self) -> tuple[str, ...]:
        """The scenarios of this benchmark in its round."""
        return tuple(self.limits)

    def loadgen_name(self, scenario: str) -> str:
        """The model name that selects this scenario's entry in `mlperf.conf`.

        A name without an entry is accepted by LoadGen without a word and gets a 10 ms limit, so the base name is
        used where there is no Interactive entry; its limits are then set explicitly.
        """
        if scenario == "Interactive" and self.interactive_entry:
            return f"{self.loadgen_model}-interactive"
        return self.loadgen_model


@dataclass(frozen=True)
class Reduction:
    """The topology file's `reduced:` block: what a run lowers; None = as the rules say.

    Attributes:
        min_duration_s: Shortest run in seconds.
        samples: Number of samples of the data set, and of queries at least.
        percentile: Judged percentile in percent, for example 90.
        latency_limit_ms: The end-to-end limit in milliseconds.
    """

    min_duration_s: float | None = None
    samples: int | None = None
    percentile: float | None = None
    latency_limit_ms: float | None = None

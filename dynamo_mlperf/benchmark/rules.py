"""The rules of MLPerf Inference v6.1 (datacenter, closed) for the benchmarks that this project runs, as data.

Sources: the submission checker's constants of round v6.1 (accuracy floors, token bounds, sample counts, seeds),
`mlperf.conf` as embedded in LoadGen 6.0.17 (limits, seeds, durations), and the inference policies (latency table).
Where they disagree, the checker and the embedded `mlperf.conf` are what a submission is held to.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dynamo_mlperf.errors import ConfigError

ROUND = "v6.1"
SCENARIOS = ("Offline", "Server", "Interactive")
"""What the rules and the checker call a scenario; LoadGen itself knows Interactive only as Server."""

PERCENTILE = 0.99
"""The percentile of every latency constraint of the round, as a fraction."""

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


SEEDS = Seeds(qsl=2085463073848966840, sample_index=2747215439041700203, schedule=16159082839903944936)
"""Round v6.1, as embedded in LoadGen 6.0.17 and in the checker's constants."""


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


@dataclass(frozen=True)
class Benchmark:
    """One benchmark of the round.

    Attributes:
        name: The name in the submission tree.
        loadgen_model: The base model name in `mlperf.conf`.
        interactive_entry: Whether `mlperf.conf` has an entry `<loadgen_model>-interactive`.
        limits: Latency limits by scenario.
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


def _each(value: int) -> Mapping[str, int]:
    return MappingProxyType(dict.fromkeys(SCENARIOS, value))


def _floor(**metrics: float) -> Mapping[str, Mapping[str, float]]:
    return MappingProxyType(dict.fromkeys(SCENARIOS, MappingProxyType(metrics)))


def _token_limits(server: tuple[float, float], interactive: tuple[float, float]) -> Mapping[str, Limits]:
    return MappingProxyType(
        {
            "Offline": Limits(),
            "Server": Limits(ttft_ms=server[0], tpot_ms=server[1]),
            "Interactive": Limits(ttft_ms=interactive[0], tpot_ms=interactive[1]),
        }
    )


_QWEN3_VL = Benchmark(
    name="qwen3-vl-235b-a22b",
    loadgen_model="qwen3-vl-235b-a22b",
    interactive_entry=False,
    limits=MappingProxyType(
        {"Offline": Limits(), "Server": Limits(latency_ms=12_000), "Interactive": Limits(latency_ms=1_500)}
    ),
    performance_sample_count=MappingProxyType({"Offline": 48_289, "Server": 48_289, "Interactive": 8_000}),
    accuracy_sample_count=MappingProxyType({"Offline": 48_289, "Server": 48_289, "Interactive": 8_000}),
    offline_min_samples=48_289,
    max_new_tokens=150,
    accuracy_max_new_tokens=150,
    unit="Queries/s",
    offline_unit="Samples/s",
    tokens_per_sample=(None, None),
    accuracy_floor=MappingProxyType(
        {
            "Offline": MappingProxyType({"F1_HIERARCHICAL": 0.782397}),
            "Server": MappingProxyType({"F1_HIERARCHICAL": 0.782397}),
            "Interactive": MappingProxyType({"F1_HIERARCHICAL": 0.779922}),
        }
    ),
    compliance_tests=(),
    use_token_latencies=False,
)

_GPT_OSS = Benchmark(
    name="gpt-oss-120b",
    loadgen_model="gpt-oss-120b",
    interactive_entry=True,
    limits=_token_limits(server=(3_000, 80), interactive=(2_000, 15)),
    performance_sample_count=_each(6_396),
    accuracy_sample_count=_each(4_395),
    offline_min_samples=6_396,
    max_new_tokens=10_240,
    accuracy_max_new_tokens=32_768,
    unit="Tokens/s",
    offline_unit="Tokens/s",
    tokens_per_sample=(None, 10_998.9),
    accuracy_floor=_floor(exact_match=82.2987),
    compliance_tests=("TEST07", "TEST09"),
    use_token_latencies=True,
)

_DEEPSEEK_R1 = Benchmark(
    name="deepseek-r1",
    loadgen_model="deepseek-r1",
    interactive_entry=True,
    limits=_token_limits(server=(2_000, 80), interactive=(1_500, 15)),
    performance_sample_count=_each(4_388),
    accuracy_sample_count=_each(4_388),
    offline_min_samples=4_388,
    max_new_tokens=20_000,
    accuracy_max_new_tokens=20_000,
    unit="Tokens/s",
    offline_unit="Tokens/s",
    tokens_per_sample=(3_497.6047, 4_274.8501),
    accuracy_floor=_floor(exact_match=80.544618),
    compliance_tests=("TEST06",),
    use_token_latencies=True,
)

_LLAMA2 = Benchmark(
    name="llama2-70b-99.9",
    loadgen_model="llama2-70b",
    interactive_entry=True,
    limits=_token_limits(server=(2_000, 200), interactive=(450, 40)),
    performance_sample_count=_each(24_576),
    accuracy_sample_count=_each(24_576),
    offline_min_samples=24_576,
    max_new_tokens=1_024,
    accuracy_max_new_tokens=1_024,
    unit="Tokens/s",
    offline_unit="Tokens/s",
    tokens_per_sample=(265.005, 323.895),
    accuracy_floor=_floor(ROUGE1=44.3867688, ROUGE2=22.0131648, ROUGEL=28.5875838),
    compliance_tests=("TEST06",),
    use_token_latencies=True,
)

BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {entry.name: entry for entry in (_QWEN3_VL, _GPT_OSS, _DEEPSEEK_R1, _LLAMA2)}
)


def _nearest(name: str, legal: tuple[str, ...]) -> str:
    folded = {option.lower(): option for option in legal}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.0)
    return folded[found[0]]


def benchmark(name: str) -> Benchmark:
    """The benchmark called `name`.

    Raises:
        ConfigError: There is none; the error names the nearest legal name.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    legal = tuple(BENCHMARKS)
    raise ConfigError(
        f"no benchmark {name!r} in MLPerf Inference {ROUND}; there are {', '.join(legal)}",
        f"write benchmark: {_nearest(name, legal)}",
    )


def check_scenario(name: str) -> str:
    """`name` itself when it is a scenario, spelled as the checker spells it.

    Raises:
        ConfigError: It is none; the error names the nearest one.
    """
    if name in SCENARIOS:
        return name
    raise ConfigError(
        f"no scenario {name!r}; there are {', '.join(SCENARIOS)}", f"write scenario: {_nearest(name, SCENARIOS)}"
    )

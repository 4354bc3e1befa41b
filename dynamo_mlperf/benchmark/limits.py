"""The four benchmarks by the rules of round v6.1 (datacenter, closed); `rounds.py` says where others differ.

Sources, all of mlcommons/inference at b66003e1: accuracy floors, bounds of tokens per sample, sample counts and
compliance tests from `MODEL_CONFIG["v6.1"]`, TTFT and TPOT limits from `LLM_LATENCY_LIMITS` and the Offline minimum
from `OFFLINE_MIN_SPQ_SINCE_V4` in `tools/submission/submission_checker/constants.py`; what LoadGen itself applies
from `loadgen/mlperf.conf` (embedded in LoadGen 6.0.17). Output caps and reasoning effort as the reference
implementations set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dynamo_mlperf.benchmark.shapes import SCENARIOS, Benchmark, Limits


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


QWEN3_VL = Benchmark(
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

GPT_OSS = Benchmark(
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
    reasoning_effort=MappingProxyType({"performance": "low", "accuracy": "high", "TEST07": "high", "TEST09": "low"}),
)

DEEPSEEK_R1 = Benchmark(
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
    tokens_per_sample=(3_497.60466, 4_274.85014),
    accuracy_floor=_floor(exact_match=80.544618),
    compliance_tests=("TEST06",),
    use_token_latencies=True,
)

LLAMA2 = Benchmark(
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
    clients=("loadgen",),
)

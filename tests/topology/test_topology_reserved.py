"""Flags and values that would set what the launcher owns, or cache across queries, by another spelling."""

from __future__ import annotations

import pytest

from dynamo_mlperf.errors import ConfigError
from tests.topology.test_topology_engines import alone

REFUSED = [
    # One key of a flag's JSON, in vLLM's dotted form, abbreviated too.
    ("vllm", "args: {kv-transfer-config.kv_connector: LMCacheConnectorV1}", "the role's name"),
    ("vllm", "args: {kv-transfer-c.kv_connector: LMCacheConnectorV1}", "it abbreviates kv-transfer-config"),
    # A flag as another flag's value.
    ("vllm", "args: {enforce-eager: --enable-prefix-caching}", "would be taken for a flag"),
    ("vllm", "args: {middleware: [x, --enable-prefix-caching]}", "would be taken for a flag"),
    ("vllm", "args: {seed: -tp}", "would be taken for a flag"),
    # Other caches across queries.
    ("vllm", "args: {kv-offloading-size: 10}", "MLPerf forbids caching"),
    ("vllm", "args: {ec-transfer-config: {ec_connector: x}}", "MLPerf forbids caching"),
    ("vllm", "args: {multimodal-embedding-cache-capacity-gb: 4}", "MLPerf forbids caching"),
    ("sglang", "args: {enable-hierarchical-cache: true}", "MLPerf forbids caching"),
    ("sglang", "args: {disaggregation-decode-enable-radix-cache: true}", "MLPerf forbids caching"),
    ("sglang", "args: {disagg-config: /x.yaml}", "engine_config"),
    ("trtllm", "args: {connector: kvbm}", "MLPerf forbids caching"),
    ("trtllm", "engine_config: {kv_connector_config: {connector_module: x}}", "MLPerf forbids caching"),
    # Whose weights.
    ("vllm", "args: {load-format: dummy}", "dummy weights are random ones"),
    ("vllm", "args: {load-forma: dummy}", "it abbreviates load-format"),
    ("vllm", "args: {load_forma: dummy}", "it abbreviates load-format"),
    ("sglang", "args: {load: dummy}", "it abbreviates load-format"),
    ("vllm", "args: {max-model: 16}", "it abbreviates max-model-len"),
    # Numbers that no parser of the engine takes.
    ("vllm", "args: {max-model-len: hello}", "wanted a whole number"),
    ("vllm", "args: {max-model-len: 1.5K}", "wanted a whole number"),
    ("vllm", "args: {max-num-seqs: true}", "wanted a whole number"),
    ("vllm", "args: {gpu-memory-utilization: 92}", "wanted a number above 0 and up to 1"),
    ("sglang", "args: {context-length: 8k}", "wanted a whole number"),
    ("trtllm", "args: {max-seq-len: 0}", "wanted a whole number"),
    ("mocker", "args: {speedup-ratio: fast}", "wanted a number above 0"),
    # Who starts the ranks, and which code runs.
    ("vllm", "args: {distributed-executor-backend: ray}", "the launcher starts the ranks itself"),
    ("vllm", "args: {distributed-executor: ray}", "it abbreviates distributed-executor-backend"),
    ("vllm", "env: {LD_PRELOAD: /x.so}", "in the site's environment"),
    ("vllm", "env: {PYTHONPATH: /x}", "in the site's environment"),
    ("sglang", "env: {LD_LIBRARY_PATH: /x}", "in the site's environment"),
    ("mocker", "env: {PATH: /x}", "in the site's environment"),
    # Whose GPUs they are.
    ("vllm", "args: {prefill-context-parallel-size: 2}", "tensor_parallel x data_parallel GPUs"),
    ("vllm", "args: {data-parallel-external-lb: true}", "data_parallel sets it"),
    ("trtllm", "args: {gpus-per-node: 2}", "the launcher sets it"),
    ("vllm", "env: {HIP_VISIBLE_DEVICES: 0}", "the launcher sets it"),
    ("trtllm", "args: {free-gpu-memory-fraction: [0.5]}", "wanted a number from 0 to 1"),
    # What the launcher merges into has to be a mapping, and KV moves by NIXL.
    ("trtllm", "engine_config: {cache_transceiver_config: null}", "wanted a mapping"),
    ("trtllm", "engine_config: {cache_transceiver_config: {backend: UCX}}", "KV cache always moves by NIXL"),
]


@pytest.mark.parametrize(("engine", "role", "said"), REFUSED)
def test_another_spelling_is_refused(engine: str, role: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        alone(engine, role)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "role"),
    [
        ("vllm", "args: {compilation-config.mode: 3, seed: -1, hf-overrides: {a: -x}}"),
        ("vllm", "args: {stop: ['-0.5', -.5]}"),
        ("vllm", "args: {max-model-len: auto, max-num-batched-tokens: 8k, load-format: auto, dtype: null}"),
        ("vllm", "args: {max-model-len: -1, gpu-memory-utilization: '0.9'}, env: {PYTHONHASHSEED: 0}"),
        ("trtllm", "engine_config: {cache_transceiver_config: {backend: NIXL, max_tokens_in_buffer: 8}, note: -x}"),
    ],
)
def test_what_only_looks_like_it_is_not(engine: str, role: str) -> None:
    assert alone(engine, role).engine == engine

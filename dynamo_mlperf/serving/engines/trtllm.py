"""TensorRT-LLM, through `python -m dynamo.trtllm` or as plain `trtllm-serve` workers.

Flags and how options are merged: `dynamo/trtllm/backend_args.py` and `workers/llm_worker.py` of ai-dynamo 1.6.1;
`tensorrt_llm/commands/serve.py` of NVIDIA/TensorRT-LLM 1.3.0rc29, which ai-dynamo 1.6.1 pins. The interface of KV
transfer: `cpp/tensorrt_llm/common/envUtils.cpp` (getEnvNixlInterface).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo_mlperf.serving.engines.facts import DYNAMO_MODES, Start, WorkerFacts, compact_json, flags

_MEMORY_FLAG = "free-gpu-memory-fraction"


def dynamo_trtllm(facts: WorkerFacts, node_rank: int) -> Start:
    """A worker of Dynamo. Options go in as JSON, which is merged over everything else."""
    worker, role = facts.worker, facts.role
    argv = [
        facts.python,
        "-m",
        "dynamo.trtllm",
        "--model",
        str(facts.nodes[node_rank].model_dir),
        "--served-model-name",
        facts.endpoints.model,
        "--disaggregation-mode",
        DYNAMO_MODES[worker.role],
        "--tensor-parallel-size",
        str(role.tensor_parallel),
    ]
    if role.expert_parallel:
        argv += ["--expert-parallel-size", str(role.expert_parallel)]
    if role.data_parallel > 1:
        argv += ["--enable-attention-dp"]
    argv += ["--override-engine-args", compact_json(_options(facts))]
    env = {
        "DYN_SYSTEM_PORT": str(facts.endpoints.system(worker)[1]),
        "TRTLLM_NIXL_INTERFACE": facts.place(node_rank).interface,
        "CUDA_VISIBLE_DEVICES": facts.devices(node_rank),
    }
    return Start((*argv, *flags(_other_flags(role.args))), env)


def trtllm_serve(facts: WorkerFacts, node_rank: int) -> Start:
    """A worker that answers OpenAI requests by itself, at the worker's own first port.

    `python -m tensorrt_llm.commands.serve` is what the `trtllm-serve` script runs. Its flags have underscores.
    """
    role, place = facts.role, facts.place(node_rank)
    options = _options(facts)
    if role.data_parallel > 1:
        options["enable_attention_dp"] = True
    config = facts.files / f"{facts.process.name}.yaml"
    argv = [
        facts.python,
        "-m",
        "tensorrt_llm.commands.serve",
        "serve",
        str(facts.nodes[node_rank].model_dir),
        "--served_model_name",
        facts.endpoints.model,
        "--host",
        place.address,
        "--port",
        str(facts.endpoints.system(facts.worker)[1]),
        "--backend",
        "pytorch",
        "--tp_size",
        str(role.tensor_parallel),
    ]
    if role.expert_parallel:
        argv += ["--ep_size", str(role.expert_parallel)]
    argv += ["--config", str(config)]
    spelled = {name.replace("-", "_"): value for name, value in _other_flags(role.args).items()}
    # JSON is YAML too.
    return Start(
        (*argv, *flags(spelled)),
        {"CUDA_VISIBLE_DEVICES": facts.devices(node_rank)},
        {config: compact_json(options) + "\n"},
    )


def _other_flags(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name != _MEMORY_FLAG}


def _options(facts: WorkerFacts) -> dict[str, Any]:
    """The engine's options: the file's, and what the launcher must have.

    `kv_cache_config` replaces what flags made of it, so the memory flag's value moves into it.
    """
    role = facts.role
    options = dict(role.engine_config)
    memory = role.args.get(_MEMORY_FLAG)
    options["kv_cache_config"] = {
        **({} if memory is None else {"free_gpu_memory_fraction": memory}),
        **options.get("kv_cache_config", {}),
        # MLPerf: nothing is cached across queries.
        "enable_block_reuse": False,
    }
    if facts.worker.role != "aggregated":
        options["cache_transceiver_config"] = {"backend": "NIXL", **options.get("cache_transceiver_config", {})}
    if facts.worker.role == "prefill":
        # A prefill worker hands its KV over after one step: overlapping with the next one is not possible there.
        options["disable_overlap_scheduler"] = True
    return options

"""vLLM through `python -m dynamo.vllm`, on GPUs and on CPUs.

Flags: `dynamo/vllm/args.py`, `backend_args.py` and `headless.py` of ai-dynamo 1.6.1; `vllm/engine/arg_utils.py`,
`vllm/config/parallel.py` and `vllm/entrypoints/cli/serve.py` (run_headless) of vLLM 0.31.0.
"""

from __future__ import annotations

import json
from pathlib import Path

from dynamo_mlperf.serving.engines.facts import (
    DATA_PARALLEL_OFFSET,
    DYNAMO_MODES,
    RENDEZVOUS_OFFSET,
    Start,
    WorkerFacts,
    flags,
)

CPU_STARTUP = Path(__file__).parent.parent / "cpu_startup"
"""On PYTHONPATH, it adjusts the start-up of a CPU engine."""
_POLITE = ("nice", "-n", "10")
"""CPU engines take every core there is: the load client and the router, which share them, come first."""
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def vllm(facts: WorkerFacts, node_rank: int) -> Start:
    """How vLLM starts on one node of a worker.

    A worker of several nodes is one engine: node rank 0 holds engine core, scheduler and Dynamo's endpoints, the
    others are headless and only run ranks. They meet at rank 0's address by torch.distributed.
    """
    worker, endpoints, role = facts.worker, facts.endpoints, facts.role
    argv = [
        *(_POLITE if facts.topology.device == "cpu" else ()),
        facts.python,
        "-m",
        "dynamo.vllm",
        "--model",
        str(facts.nodes[node_rank].model_dir),
        "--served-model-name",
        endpoints.model,
        "--disaggregation-mode",
        DYNAMO_MODES[worker.role],
        "--tensor-parallel-size",
        str(role.tensor_parallel),
        # MLPerf: nothing is cached across queries, neither KV blocks nor processed images.
        "--no-enable-prefix-caching",
        "--mm-processor-cache-gb",
        "0",
    ]
    if role.data_parallel > 1:
        argv += ["--data-parallel-size", str(role.data_parallel)]
    if role.expert_parallel and role.expert_parallel > 1:
        argv += ["--enable-expert-parallel"]
    if facts.wide:
        argv += _several_nodes(facts, node_rank)
    kv_role = _KV_ROLES.get(worker.role)
    if kv_role:
        transfer = {"kv_connector": "NixlConnector", "kv_role": kv_role}
        if facts.topology.device == "cpu":
            transfer["kv_buffer_device"] = "cpu"
        argv += ["--kv-transfer-config", json.dumps(transfer)]
    return Start((*argv, *flags(role.args)), _environment(facts, node_rank))


def _several_nodes(facts: WorkerFacts, node_rank: int) -> list[str]:
    argv = [
        "--nnodes",
        str(len(facts.nodes)),
        "--node-rank",
        str(node_rank),
        "--master-addr",
        facts.leader.address,
        "--master-port",
        str(facts.port(RENDEZVOUS_OFFSET)),
    ]
    if facts.role.data_parallel > 1:
        argv += ["--data-parallel-rpc-port", str(facts.port(DATA_PARALLEL_OFFSET))]
    return [*argv, *(["--headless"] if node_rank else [])]


def _environment(facts: WorkerFacts, node_rank: int) -> dict[str, str]:
    place = facts.place(node_rank)
    env = {"VLLM_HOST_IP": place.address, "VLLM_NO_USAGE_STATS": "1"}
    if node_rank == 0:
        env["DYN_SYSTEM_PORT"] = str(facts.endpoints.system(facts.worker)[1])
    env |= {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": place.address,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(facts.endpoints.side_channel_port(facts.worker)),
        "GLOO_SOCKET_IFNAME": place.interface,
    }
    if facts.topology.device == "cpu":
        return env | _cpu_environment(facts, node_rank)
    if facts.wide:
        env["NCCL_SOCKET_IFNAME"] = place.interface
    return {**env, "CUDA_VISIBLE_DEVICES": facts.devices(node_rank)}


def _cpu_environment(facts: WorkerFacts, node_rank: int) -> dict[str, str]:
    """What vLLM needs on a CPU with more processes than cores: few threads, none pinned; KV over memory or TCP."""
    # Eager means eager: otherwise the first sampled request waits for a C++ compiler, which may not even be there.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if facts.role.args.get("enforce-eager") is True else {}
    return {
        **eager,
        "PYTHONPATH": str(CPU_STARTUP),
        "OMP_NUM_THREADS": str(facts.nodes[node_rank].threads),
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "UCX_TLS": "posix,cma,self,tcp" if facts.shares_memory else "tcp,self",
        "UCX_NET_DEVICES": facts.place(node_rank).interface,
    }

"""SGLang through `python -m dynamo.sglang`.

Flags: `dynamo/sglang/args.py`, `_disagg.py` (how the bootstrap address is found) and `capacity.py` of ai-dynamo 1.6.1;
`python/sglang/srt/server_args.py` and `environ.py` of SGLang 0.5.21, which ai-dynamo 1.6.1 pins. Examples:
ai-dynamo/dynamo `examples/backends/sglang/launch/disagg.sh` and `disagg_dp_attn.sh`.
"""

from __future__ import annotations

from dynamo_mlperf.serving.engines.facts import Start, WorkerFacts, flags

BOOTSTRAP_OFFSET = 1
NCCL_OFFSET = 2
SERVER_OFFSET = 3
INIT_OFFSET = 4
"""SGLang takes this port and the six above it where its ranks meet by `--dist-init-addr`; no side channels here."""
_MODES = {"prefill": "prefill", "decode": "decode"}


def sglang(facts: WorkerFacts, node_rank: int) -> Start:
    """How SGLang starts on one node of a worker; on several nodes, those after the first only run ranks."""
    role, place = facts.role, facts.place(node_rank)
    argv = [
        facts.python,
        "-m",
        "dynamo.sglang",
        "--model-path",
        str(facts.nodes[node_rank].model_dir),
        "--served-model-name",
        facts.endpoints.model,
        "--host",
        place.address,
        "--port",
        str(facts.port(SERVER_OFFSET)),
        "--nccl-port",
        str(facts.port(NCCL_OFFSET)),
        "--tp-size",
        str(role.tensor_parallel),
        *_degrees(facts),
        # MLPerf: nothing is cached across queries.
        "--disable-radix-cache",
        "--enable-metrics",
        *_transfer(facts),
        *_meeting(facts, node_rank),
    ]
    env = {
        "SGLANG_HOST_IP": place.address,
        "SGLANG_VLM_CACHE_SIZE_MB": "0",
        "GLOO_SOCKET_IFNAME": place.interface,
        "CUDA_VISIBLE_DEVICES": facts.devices(node_rank),
    }
    if node_rank == 0:
        env["DYN_SYSTEM_PORT"] = str(facts.endpoints.system(facts.worker)[1])
    if facts.wide:
        env["NCCL_SOCKET_IFNAME"] = place.interface
    return Start((*argv, *flags(role.args)), env)


def _shared_attention(facts: WorkerFacts) -> bool:
    """Whether data-parallel ranks of attention share the tensor-parallel GPUs."""
    return facts.role.data_parallel > 1 and facts.role.expert_parallel is not None


def _degrees(facts: WorkerFacts) -> list[str]:
    role = facts.role
    argv = ["--dp-size", str(role.data_parallel)] if role.data_parallel > 1 else []
    argv += ["--enable-dp-attention"] if _shared_attention(facts) else []
    return argv + (["--ep-size", str(role.expert_parallel)] if role.expert_parallel else [])


def _transfer(facts: WorkerFacts) -> list[str]:
    mode = _MODES.get(facts.worker.role)
    if mode is None:
        return []
    argv = ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "nixl"]
    # Decode workers ask the prefill worker that the router names; only that one listens.
    return argv + (["--disaggregation-bootstrap-port", str(facts.port(BOOTSTRAP_OFFSET))] if mode == "prefill" else [])


def _meeting(facts: WorkerFacts, node_rank: int) -> list[str]:
    argv = ["--nnodes", str(len(facts.nodes)), "--node-rank", str(node_rank)] if facts.wide else []
    if facts.wide or _shared_attention(facts):
        argv += ["--dist-init-addr", f"{facts.leader.address}:{facts.port(INIT_OFFSET)}"]
    return argv

"""What each engine can do of what a topology asks for: degrees of parallelism, pairs of roles, servers.

The tables hold what the engines' own sources refuse: vLLM 0.31.0 (`kv_connector/v1/nixl/metadata.py`, the
compatibility hash, `base_worker.py`, the handshake, and `kv_connector/utils.py`, TransferTopology), SGLang 0.5.21
(`srt/disaggregation/common/conn.py`, try_ensure_parallel_info), TensorRT-LLM 1.3.0rc29 (`cacheFormatter.cpp`,
inquireSupport).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.topology.document import Problem
from dynamo_mlperf.topology.flag_values import number_problems

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Role, Topology

PAIRED_FLAGS: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "block-size",
        "kv-cache-dtype",
        "dtype",
        "attention-backend",
        "speculative-config",
        "disable-hybrid-kv-cache-manager",
    ),
    "sglang": ("page-size", "kv-cache-dtype", "dtype"),
    "trtllm": ("kv-block-size",),
    "mocker": (),
}
"""Flags in which prefill and decode must agree: a difference crashes, or serves wrong answers with HTTP 200."""

PAIRED_OPTIONS = ("tokens_per_block", "dtype")
"""The same for TensorRT-LLM, as keys of `engine_config.kv_cache_config`."""

OWNED_OPTIONS: Mapping[str, str] = {
    "model": "model.weights sets it",
    "tensor_parallel_size": "tensor_parallel sets it",
    "moe_expert_parallel_size": "expert_parallel sets it",
    "enable_attention_dp": "data_parallel sets it",
    "pipeline_parallel_size": "a worker takes exactly tensor_parallel x data_parallel GPUs",
    "context_parallel_size": "a worker takes exactly tensor_parallel x data_parallel GPUs",
    "gpus_per_node": "the plan sets it",
    "kv_connector_config": "MLPerf forbids caching across queries, and such a connector keeps KV cache",
}
"""Keys of `engine_config` that are not the file's to set, and what sets them."""

_MOST_SURE_DEGREE = 4
"""Up to this tensor_parallel, each rank of every model of the rules has a KV head of its own."""


def engine_problems(topology: Topology) -> list[Problem]:
    """Why the engine would refuse this topology, or serve it wrongly; empty when nothing is known against it."""
    roles = topology.roles.present()
    return [
        *_server_problems(topology),
        *(problem for name, role in roles for problem in _option_problems(topology, name, role)),
        *(problem for name, role in roles for problem in number_problems(topology.engine, name, role)),
        *(
            Problem(("roles", name, "args", "load-format"), "dummy weights are random ones: no result is of the model")
            for name, role in roles
            if role.args.get("load-format") == "dummy"
        ),
        *_pair_problems(topology),
    ]


def degree_problem(engine: str, role: Role) -> str | None:
    """Why the engine cannot spread a worker over its GPUs as the role says, with what to write instead; else None."""
    shared = role.gpus != role.tensor_parallel * role.data_parallel
    asked = f"tensor_parallel {role.tensor_parallel}, data_parallel {role.data_parallel}"
    if engine == "vllm":
        if shared:
            return (
                f"vllm starts tensor_parallel x data_parallel ranks, {asked} is for {role.gpus} GPUs; "
                f"write tensor_parallel: {role.tensor_parallel // role.data_parallel}, or for "
                f"{role.tensor_parallel * role.data_parallel} GPUs "
                f"expert_parallel: {role.tensor_parallel * role.data_parallel}"
            )
        if role.expert_parallel not in {None, 1, role.gpus}:
            return (
                f"vllm spreads experts over all GPUs of a worker; write expert_parallel: {role.gpus}, or leave it out"
            )
    if engine == "trtllm" and role.data_parallel > 1 and (not shared or role.data_parallel != role.tensor_parallel):
        return (
            f"{asked}: trtllm's attention is data-parallel over all GPUs of a worker or over none; write "
            f"tensor_parallel: {role.gpus}, data_parallel: {role.gpus} and expert_parallel, or data_parallel: 1"
        )
    if engine == "sglang" and role.expert_parallel is not None and role.gpus > role.tensor_parallel:
        return (
            f"{asked}: sglang's data-parallel attention shares the tensor_parallel GPUs; "
            f"write tensor_parallel: {role.gpus}"
        )
    return None


def degrees_problem(topology: Topology) -> str | None:
    """Why no KV cache can move between the degrees of prefill and decode; else None."""
    prefill, decode = topology.roles.prefill, topology.roles.decode
    if prefill is None or decode is None or topology.engine != "vllm":
        return None
    low, high = sorted((prefill.tensor_parallel, decode.tensor_parallel))
    if high % low == 0:
        return None
    return (
        f"tensor_parallel {prefill.tensor_parallel} (prefill) and {decode.tensor_parallel} (decode): "
        "vllm moves KV cache only between degrees of which one divides the other"
    )


def pair_warnings(topology: Topology) -> tuple[str, ...]:
    """Pairs of roles that no table vouches for: they are planned, and the canary decides before any load."""
    prefill, decode = topology.roles.prefill, topology.roles.decode
    if prefill is None or decode is None or topology.engine == "mocker":
        return ()
    theirs, ours = prefill.tensor_parallel, decode.tensor_parallel
    degrees = f"tensor_parallel {theirs} (prefill) and {ours} (decode)"
    proof = "the canary sends a request through every pair before any load"
    if topology.engine == "vllm":
        if theirs > max(ours, _MOST_SURE_DEGREE):
            return (f"{degrees}: vllm needs at least {theirs} KV heads in the model for that; {proof}",)
        return ()
    if theirs != ours or prefill.data_parallel != decode.data_parallel:
        return (f"{degrees}: not known to work with {topology.engine}; {proof}",)
    return ()


def _server_problems(topology: Topology) -> list[Problem]:
    if topology.server == "dynamo":
        return []
    found = []
    if topology.engine != "trtllm":
        found.append(Problem(("server",), f"trtllm-serve is trtllm's; engine: {topology.engine} takes server: dynamo"))
    if topology.disaggregated:
        text = "trtllm-serve workers answer by themselves: write roles: {aggregated: ...}, or server: dynamo"
        found.append(Problem(("server",), text))
    if "frontends" in topology.model_fields_set:
        text = "trtllm-serve workers have no frontend; leave it out, or write server: dynamo"
        found.append(Problem(("frontends",), text))
    return found


def _option_problems(topology: Topology, name: str, role: Role) -> list[Problem]:
    place = ("roles", name, "engine_config")
    if role.engine_config and topology.engine != "trtllm":
        return [Problem(place, f"is for engine: trtllm; {topology.engine} takes flags, write them under args")]
    found = [
        Problem((*place, key), f"not an option to set here: {OWNED_OPTIONS[key]}")
        for key in role.engine_config
        if key in OWNED_OPTIONS
    ]
    memory = role.args.get("free-gpu-memory-fraction")
    if topology.engine == "trtllm" and memory is not None and not _is_share(memory):
        found.append(Problem(("roles", name, "args", "free-gpu-memory-fraction"), "wanted a number from 0 to 1"))
    kv_cache = role.engine_config.get("kv_cache_config", {})
    if not isinstance(kv_cache, Mapping):
        return [*found, Problem((*place, "kv_cache_config"), "wanted a mapping")]
    if "enable_block_reuse" in kv_cache:
        text = "MLPerf forbids caching across queries, so the launcher always turns it off; leave it out"
        found.append(Problem((*place, "kv_cache_config", "enable_block_reuse"), text))
    return found + _transceiver_problems(place, role)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


def _transceiver_problems(place: tuple[str, ...], role: Role) -> list[Problem]:
    transceiver = role.engine_config.get("cache_transceiver_config", {})
    if not isinstance(transceiver, Mapping):
        return [Problem((*place, "cache_transceiver_config"), "wanted a mapping")]
    if transceiver.get("backend", "NIXL") != "NIXL":
        text = "KV cache always moves by NIXL; leave it out"
        return [Problem((*place, "cache_transceiver_config", "backend"), text)]
    return []


def _pair_problems(topology: Topology) -> list[Problem]:
    prefill, decode = topology.roles.prefill, topology.roles.decode
    if prefill is None or decode is None:
        return []
    found = _differences(prefill.args, decode.args, PAIRED_FLAGS[topology.engine], ("args",))
    if topology.engine == "trtllm":
        theirs, ours = (role.engine_config.get("kv_cache_config", {}) for role in (prefill, decode))
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            found += _differences(theirs, ours, PAIRED_OPTIONS, ("engine_config", "kv_cache_config"))
    return found


def _differences(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], names: tuple[str, ...], below: tuple[str, ...]
) -> list[Problem]:
    """Settings that both ends of a KV transfer must share and do not."""
    found = []
    for name in names:
        values = {"prefill": theirs.get(name), "decode": ours.get(name)}
        if values["prefill"] != values["decode"]:
            place = ("roles", "decode" if name in ours else "prefill", *below, name)
            each = " and ".join(
                f"{role} {'leaves the default' if value is None else f'has {value}'}" for role, value in values.items()
            )
            found.append(Problem(place, f"{each}; KV transfer needs the same in both"))
    return found

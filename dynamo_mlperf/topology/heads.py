"""Attention heads: whether the GPUs that share a worker's attention can share its heads evenly.

Engines refuse what they cannot, each worker by itself and only while it starts: vLLM 0.31.0 in
`verify_with_parallel_config` of its `config/model.py`, the models of SGLang and TensorRT-LLM in assertions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.errors import CapacityError
from dynamo_mlperf.topology.model_files import served_model

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dynamo_mlperf.benchmark.model_shapes import ModelShape
    from dynamo_mlperf.topology.model_files import ServedModel
    from dynamo_mlperf.topology.spec import Role, Topology


def attention_shards(role: Role) -> int:
    """GPUs of a worker that share the attention of one sequence; data-parallel ranks have attention of their own."""
    if role.gpus == role.tensor_parallel * role.data_parallel:
        return role.tensor_parallel
    return role.tensor_parallel // role.data_parallel


def can_stand(topology: Topology, role: Role) -> bool:
    """Whether a node, or whole nodes of one NVLink domain, can hold a worker of the role."""
    here = topology.nodes.gpus
    return role.gpus <= here * (topology.nodes.nvlink_domain or 1) and (role.gpus <= here or role.gpus % here == 0)


def head_problem(engine: str, shape: ModelShape, role: Role) -> str | None:
    """Why the GPUs of a worker cannot share the model's heads, for people; None where they can.

    Each GPU takes as many attention heads as the others. Of KV heads each takes as many, or each head stands on as many
    GPUs; TensorRT-LLM alone rounds those up.
    """
    shards = attention_shards(role)
    if shape.heads % shards:
        return f"{shape.heads} attention heads are not divisible by {shards}"
    few, many = sorted((shape.kv_heads, shards))
    if engine != "trtllm" and few and many % few:
        return f"{shape.kv_heads} KV heads and {shards} GPUs: neither divides by the other"
    return None


def refuse_uneven_heads(topology: Topology, model: ServedModel) -> None:
    """Refuse roles whose GPUs cannot share the heads of the model.

    Raises:
        CapacityError: Names the role, both numbers, and the nearest `tensor_parallel` that works.
    """
    for name, role in topology.roles.present():
        problem = head_problem(topology.engine, model.shape, role)
        if problem is None:
            continue
        degree = role.tensor_parallel
        below = _first(topology, model, role, range(degree - 1, 0, -1))
        above = _first(topology, model, role, range(degree + 1, 2 * degree + 1))
        ways = " or ".join(f"{one}" for one in (below, above) if one is not None)
        raise CapacityError(
            f"{topology.name}: roles.{name}: tensor_parallel {degree}: {problem}",
            f"write tensor_parallel: {ways}" if ways else f"choose degrees that divide {model.shape.heads} heads",
        )


def check_heads(topology: Topology, base: Path) -> None:
    """The same before anything is planned, so that no plan near one that cannot load is proposed.

    Simulated engines have no heads.

    Raises:
        CapacityError: See `refuse_uneven_heads`.
    """
    if topology.engine != "mocker" and (model := served_model(topology, base)) is not None:
        refuse_uneven_heads(topology, model)


def _first(topology: Topology, model: ServedModel, role: Role, degrees: Iterable[int]) -> int | None:
    """The first of these `tensor_parallel` at which the role can stand and share the heads."""
    for degree in degrees:
        wanted = role.model_copy(update={"tensor_parallel": degree})
        shared = wanted.gpus != degree * role.data_parallel
        if wanted.gpus % (role.expert_parallel or 1) or (shared and degree % role.data_parallel):
            continue
        if can_stand(topology, wanted) and head_problem(topology.engine, model.shape, wanted) is None:
            return degree
    return None

"""GPU memory: whether the weights of each role's workers fit, and how many sequences the rest holds.

An estimate on the safe side of nothing but arithmetic: weights and KV cache are counted, activations, CUDA graphs and
the engine's own buffers are not. So what is refused here cannot load; what passes may still be tight.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.model_shapes import LONGEST_PROMPT_TOKENS, PRECISION_BYTES
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import CapacityError
from dynamo_mlperf.topology.capacity import fits
from dynamo_mlperf.topology.flag_values import NUMBERS, length_of
from dynamo_mlperf.topology.heads import attention_shards, can_stand, head_problem, refuse_uneven_heads
from dynamo_mlperf.topology.model_files import served_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynamo_mlperf.benchmark.model_shapes import ModelShape
    from dynamo_mlperf.topology.model_files import ServedModel
    from dynamo_mlperf.topology.spec import Role, RoleName, Topology

GIB = 2**30
GPU_BYTES: Mapping[str, int] = {
    "h100": 80_000_000_000,
    "h200": 141_000_000_000,
    "b200": 180_000_000_000,
    "gb200": 186_000_000_000,
    "b300": 288_000_000_000,
    "gb300": 288_000_000_000,
    "mi300x": 192_000_000_000,
    "mi325x": 256_000_000_000,
    "mi355x": 288_000_000_000,
}
"""Memory by `nodes.gpu`: the GB that vendors and MLPerf's system descriptions name, read as powers of ten, the smaller
reading (`accelerator_memory_capacity` of the v6.0 and v6.1 results; NVIDIA's and AMD's data sheets)."""

USED_SHARE: Mapping[str, tuple[str, float]] = {
    "vllm": ("gpu-memory-utilization", 0.92),
    "sglang": ("mem-fraction-static", 0.88),
    "trtllm": ("free-gpu-memory-fraction", 0.9),
}
"""By engine: the flag that says which share of a GPU's memory it takes for weights and KV cache, and the share without
it (vLLM 0.31.0 `config/cache.py`; SGLang chooses by GPU, about this much; TensorRT-LLM's KvCacheConfig counts the
share of what weights leave, so a little more is left there than is counted here)."""
_LENGTH_FLAGS: Mapping[str, str] = {"vllm": "max-model-len", "sglang": "context-length", "trtllm": "max-seq-len"}
_UNCOUNTED = ("quantization", "cpu-offload-gb", "kv-cache-memory-bytes")
"""Flags that change what memory holds in ways not counted here: roles that set one are not judged."""
_MOST_RAISED = 16
_MISSPELT = 0.8
"""From this likeness (difflib) on, a flag is taken for a slip of the pen in one that counts."""
_VARIANTS = 1.3
"""A GPU's memory by its name is trusted up to this factor: there are variants, and GB are told for GiB."""


@dataclass(frozen=True)
class RoleMemory:
    """GPU memory of the workers of one role.

    Attributes:
        role: prefill, decode or aggregated.
        gpu_bytes: Memory of a GPU.
        usable_bytes: What the engine takes of it.
        weight_bytes: Weights on each GPU.
        sequence_tokens: Tokens of a sequence of the greatest length.
        sequence_bytes: Its KV cache on each GPU that holds some of it.
        sequences: How many such sequences a worker holds at once.
    """

    role: RoleName
    gpu_bytes: float
    usable_bytes: float
    weight_bytes: float
    sequence_tokens: int
    sequence_bytes: float
    sequences: int

    def as_json(self) -> dict[str, Any]:
        """For `plan --json`; GiB with two decimals."""
        return {
            "role": self.role,
            "gpu_gib": round(self.gpu_bytes / GIB, 2),
            "usable_gib": round(self.usable_bytes / GIB, 2),
            "weights_per_gpu_gib": round(self.weight_bytes / GIB, 2),
            "sequence_tokens": self.sequence_tokens,
            "kv_per_sequence_gib": round(self.sequence_bytes / GIB, 3),
            "sequences_per_worker": self.sequences,
        }

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.role} {_gib(self.weight_bytes)} of weights on each GPU ({_gib(self.usable_bytes)} usable), "
            f"room for {self.sequences} sequences of {self.sequence_tokens} tokens per worker"
        )


def memory_of(topology: Topology, base: Path) -> tuple[RoleMemory, ...]:
    """The memory of each role that can be judged; empty where the file names no GPU or the model is not known.

    What cannot load at any memory is refused too: attention heads that the role's GPUs cannot share evenly.

    Args:
        topology: The topology.
        base: What its paths are relative to.

    Raises:
        CapacityError: Weights do not fit, or beside them not one sequence; the error names the numbers, and what would
            fit: a higher `tensor_parallel`, a lower precision, shorter sequences, else larger GPUs. Or heads do not
            divide; the error names the nearest `tensor_parallel` that they do divide by.
    """
    if topology.engine not in USED_SHARE:
        return ()
    model = served_model(topology, base)
    if model is None:
        return ()
    refuse_uneven_heads(topology, model)
    gpu = topology.nodes.gpu_memory_gib
    gpu_bytes = gpu * GIB if gpu else GPU_BYTES.get(topology.nodes.gpu or "")
    if gpu_bytes is None or topology.device != "cuda":
        return ()
    found = []
    for name, role in topology.roles.present():
        if any(flag in role.args for flag in _UNCOUNTED):
            continue
        here = _role_memory(topology, model, gpu_bytes, name, role)
        if here.sequences < 1:
            raise _refusal(topology, model, here, role)
        found.append(here)
    return tuple(found)


def _role_memory(topology: Topology, model: ServedModel, gpu_bytes: float, name: RoleName, role: Role) -> RoleMemory:
    flag, share = USED_SHARE[topology.engine]
    given = role.args.get(flag)
    usable = gpu_bytes * (share if given is None else float(given))
    shards = attention_shards(role)
    weights = model.scale * model.shape.weight_bytes(
        model.precision, shards, role.gpus if model.shape.experts else shards
    )
    tokens = _sequence_tokens(topology, model.shape, role)
    cache_type = str(role.args.get("kv-cache-dtype", "auto"))
    each = model.shape.sequence_bytes(tokens, shards, 1.0 if "8" in cache_type else 2.0)
    fit = max(0, int((usable - weights) // each))
    return RoleMemory(name, gpu_bytes, usable, weights, tokens, each, fit * (role.gpus // shards))


def _sequence_tokens(topology: Topology, shape: ModelShape, role: Role) -> int:
    """What the role says is the greatest length, else what vLLM then reserves, else what the benchmark needs."""
    given = length_of(role.args.get(_LENGTH_FLAGS[topology.engine]))
    if given is not None:
        return given
    if topology.engine == "vllm" and shape.longest:
        return shape.longest
    return _needed_tokens(topology)


def _needed_tokens(topology: Topology) -> int:
    """Of the longest sequence that the benchmark is known to have."""
    rules = benchmark(topology.measure.benchmark)
    return LONGEST_PROMPT_TOKENS.get(rules.name, 0) + rules.max_new_tokens


def _refusal(topology: Topology, model: ServedModel, memory: RoleMemory, role: Role) -> CapacityError:
    kind = topology.nodes.gpu or "a GPU"
    told = " (gpu_memory_gib)" if topology.nodes.gpu_memory_gib else ""
    room = (
        f"{kind} has {_gib(memory.gpu_bytes)}{told}, of which {topology.engine} uses {_gib(memory.usable_bytes)}"
        f" ({USED_SHARE[topology.engine][0]})"
    )
    degree = f"tensor_parallel {role.tensor_parallel}"
    if memory.weight_bytes > memory.usable_bytes:
        what = f"{_gib(memory.weight_bytes)} of weights on each GPU ({model.precision}, {degree}); {room}"
    else:
        what = (
            f"beside {_gib(memory.weight_bytes)} of weights ({degree}) no sequence of {memory.sequence_tokens} tokens "
            f"fits, which takes {_gib(memory.sequence_bytes)}; {room}"
        )
    ways = _ways_out(topology, model, memory, role)
    if (slip := _misspelt(topology, role)) is not None:
        written, meant = slip
        what = f"{written} is not {meant}, and does not count; {what}"
        ways = [f"{meant} instead of {written} under roles.{memory.role}.args", *ways]
    if (doubt := memory_doubt(topology)) is not None:
        what = f"{what}; {doubt}"
    return CapacityError(f"{topology.name}: roles.{memory.role}: {what}", ", or ".join(ways))


def _misspelt(topology: Topology, role: Role) -> tuple[str, str] | None:
    """A flag of the role that most likely is meant as one that counts here, and that one; None where there is none."""
    counted = (_LENGTH_FLAGS[topology.engine], USED_SHARE[topology.engine][0])
    missing = [flag for flag in counted if flag not in role.args]
    for written in (flag for flag in role.args if flag not in NUMBERS[topology.engine]):
        if meant := difflib.get_close_matches(written, missing, n=1, cutoff=_MISSPELT):
            return written, meant[0]
    return None


def memory_doubt(topology: Topology) -> str | None:
    """That the memory that the file gives is not that of the GPU that it names, for people; None where they agree."""
    given, named = topology.nodes.gpu_memory_gib, topology.nodes.gpu
    if given is None or named is None or 1 / _VARIANTS <= given * GIB / GPU_BYTES[named] <= _VARIANTS:
        return None
    return f"nodes.gpu_memory_gib: {given:g}, but {named} has about {_gib(GPU_BYTES[named])}: correct one of the two"


def _ways_out(topology: Topology, model: ServedModel, memory: RoleMemory, role: Role) -> list[str]:
    """What would fit, each by itself, in words that can be followed."""
    lower = _lower_precisions(model)
    wider = _wider(topology, model, memory, role)
    ways = [] if wider is None else [_shape(memory.role, wider)]
    if (tokens := _most_tokens(topology, model, memory, role)) is not None:
        ways.append(f"{_LENGTH_FLAGS[topology.engine]} {tokens} or less under roles.{memory.role}.args")
    light = [one for one in lower if _role_memory(topology, one, memory.gpu_bytes, memory.role, role).sequences]
    ways += [f"weights in {one.precision}" for one in light[:1]]
    if ways:
        return ways
    both = ((one, _wider(topology, one, memory, role)) for one in lower)
    found = [f"weights in {one.precision} with {_shape(memory.role, wide)}" for one, wide in both if wide is not None]
    return found[:1] or [_larger_gpus(topology, model, memory, role)]


def _shape(name: RoleName, role: Role) -> str:
    return f"roles.{name}: {{workers: {role.workers}, tensor_parallel: {role.tensor_parallel}}}"


def _lower_precisions(model: ServedModel) -> list[ServedModel]:
    """The model in each precision below its own, the highest first."""
    own = PRECISION_BYTES[model.precision]
    lower = sorted((size, name) for name, size in PRECISION_BYTES.items() if size < own)
    return [replace(model, precision=name) for _size, name in reversed(lower)]


def _most_tokens(topology: Topology, model: ServedModel, memory: RoleMemory, role: Role) -> int | None:
    """Tokens of the longest sequence that fits beside the weights; None where the benchmark has longer ones."""
    room, shards = memory.usable_bytes - memory.weight_bytes, attention_shards(role)
    value_bytes = memory.sequence_bytes / model.shape.sequence_bytes(memory.sequence_tokens, shards, 1.0)
    low, high = 0, memory.sequence_tokens
    while high - low > 1:
        middle = (low + high) // 2
        fit = model.shape.sequence_bytes(middle, shards, value_bytes) <= room
        low, high = (middle, high) if fit else (low, middle)
    return low if low >= _needed_tokens(topology) else None


def _larger_gpus(topology: Topology, model: ServedModel, memory: RoleMemory, role: Role) -> str:
    """The smallest GPUs that hold it, on as many of them for each worker as there may be."""
    share = memory.usable_bytes / memory.gpu_bytes

    def least_gib(one: Role) -> float:
        here = _role_memory(topology, model, memory.gpu_bytes, memory.role, one)
        return math.floor((here.weight_bytes + here.sequence_bytes) / share / GIB * 10 + 1) / 10

    for one in sorted(_wider_roles(topology, model.shape, role), key=least_gib):
        if least_gib(one) < least_gib(role) and (wider := _as_many_as_fit(topology, memory.role, one)) is not None:
            return f"GPUs of {least_gib(one):g} GiB or more with {_shape(memory.role, wider)}"
    return f"GPUs of {least_gib(role):g} GiB or more"


def _wider(topology: Topology, model: ServedModel, memory: RoleMemory, role: Role) -> Role | None:
    """The role with the smallest doubling of `tensor_parallel` that loads, and as many workers as then fit."""
    for wider in _wider_roles(topology, model.shape, role):
        if _role_memory(topology, model, memory.gpu_bytes, memory.role, wider).sequences:
            return _as_many_as_fit(topology, memory.role, wider)
    return None


def _wider_roles(topology: Topology, shape: ModelShape, role: Role) -> Iterator[Role]:
    """The role at each doubling of `tensor_parallel` that the GPUs can hold and the model's heads divide by."""
    for times in (2, 4, 8, _MOST_RAISED):
        wider = role.model_copy(update={"tensor_parallel": role.tensor_parallel * times})
        if can_stand(topology, wider) and head_problem(topology.engine, shape, wider) is None:
            yield wider


def _as_many_as_fit(topology: Topology, name: RoleName, wider: Role) -> Role | None:
    """The role with the most workers, up to as many as it has, that fit beside the others; None where not one does."""

    def with_count(count: int) -> Topology:
        changed: dict[str, Role] = {name: wider.model_copy(update={"workers": count})}
        return topology.model_copy(update={"roles": topology.roles.model_copy(update=changed)})

    low, high = 0, wider.workers + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(with_count(middle)) else (low, middle)
    return wider.model_copy(update={"workers": low}) if low else None


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"

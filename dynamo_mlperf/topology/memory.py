"""GPU memory: whether the weights of each role's workers fit, and how many sequences the rest holds.

An estimate on the safe side of nothing but arithmetic: weights and KV cache are counted, activations, CUDA graphs and
the engine's own buffers are not. So what is refused here cannot load; what passes may still be tight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.model_shapes import LONGEST_PROMPT_TOKENS, PUBLISHED, ModelShape, shape_of
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import CapacityError, ConfigError
from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.topology.capacity import fits
from dynamo_mlperf.topology.document import read_document
from dynamo_mlperf.topology.flag_values import length_of

if TYPE_CHECKING:
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
_WEIGHT_SUFFIX = ".safetensors"


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


@dataclass(frozen=True)
class _Model:
    """What is served: its shape, and how many bytes its files are where they can be seen."""

    shape: ModelShape
    precision: str
    scale: float


def memory_of(topology: Topology, base: Path) -> tuple[RoleMemory, ...]:
    """The memory of each role that can be judged; empty where the file names no GPU or the model is not known.

    Args:
        topology: The topology.
        base: What its paths are relative to.

    Raises:
        CapacityError: Weights do not fit, or beside them not one sequence; the error names the numbers, and workers of
            a higher `tensor_parallel` that load and fit the nodes, where there are any.
    """
    gpu = topology.nodes.gpu_memory_gib
    gpu_bytes = gpu * GIB if gpu else GPU_BYTES.get(topology.nodes.gpu or "")
    if gpu_bytes is None or topology.device != "cuda" or topology.engine not in USED_SHARE:
        return ()
    model = _model_of(topology, base)
    if model is None:
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


def _role_memory(topology: Topology, model: _Model, gpu_bytes: float, name: RoleName, role: Role) -> RoleMemory:
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


def attention_shards(role: Role) -> int:
    """GPUs of a worker that share the attention of one sequence; data-parallel ranks have attention of their own."""
    if role.gpus == role.tensor_parallel * role.data_parallel:
        return role.tensor_parallel
    return role.tensor_parallel // role.data_parallel


def _sequence_tokens(topology: Topology, shape: ModelShape, role: Role) -> int:
    """What the role says is the greatest length, else what vLLM then reserves, else what the benchmark needs."""
    given = length_of(role.args.get(_LENGTH_FLAGS[topology.engine]))
    if given is not None:
        return given
    if topology.engine == "vllm" and shape.longest:
        return shape.longest
    rules = benchmark(topology.measure.benchmark)
    return LONGEST_PROMPT_TOKENS.get(rules.name, 0) + rules.max_new_tokens


def _refusal(topology: Topology, model: _Model, memory: RoleMemory, role: Role) -> CapacityError:
    kind = topology.nodes.gpu or "a GPU"
    room = (
        f"{kind} has {_gib(memory.gpu_bytes)}, of which {topology.engine} uses {_gib(memory.usable_bytes)}"
        f" ({USED_SHARE[topology.engine][0]})"
    )
    degree = f"tensor_parallel {role.tensor_parallel}"
    if memory.weight_bytes > memory.usable_bytes:
        what = f"{_gib(memory.weight_bytes)} of weights on each GPU ({model.precision}, {degree}); {room}"
        other = "weights of a lower precision"
    else:
        what = (
            f"beside {_gib(memory.weight_bytes)} of weights ({degree}) no sequence of {memory.sequence_tokens} tokens "
            f"fits, which takes {_gib(memory.sequence_bytes)}; {room}"
        )
        other = f"a lower {_LENGTH_FLAGS[topology.engine]} under roles.{memory.role}.args"
    wider = _wider(topology, model, memory, role)
    if wider is None:
        return CapacityError(f"{topology.name}: roles.{memory.role}: {what}", other)
    shape = f"{{workers: {wider.workers}, tensor_parallel: {wider.tensor_parallel}}}"
    return CapacityError(f"{topology.name}: roles.{memory.role}: {what}", f"roles.{memory.role}: {shape}, or {other}")


def _wider(topology: Topology, model: _Model, memory: RoleMemory, role: Role) -> Role | None:
    """The role with the smallest doubling of `tensor_parallel` that loads, and as many workers as then fit."""
    most = topology.nodes.gpus * (topology.nodes.nvlink_domain or 1)
    for times in (2, 4, 8, _MOST_RAISED):
        wider = role.model_copy(update={"tensor_parallel": role.tensor_parallel * times})
        whole = wider.gpus <= topology.nodes.gpus or wider.gpus % topology.nodes.gpus == 0
        if wider.gpus > most or not whole:
            continue
        if _role_memory(topology, model, memory.gpu_bytes, memory.role, wider).sequences:
            return _as_many_as_fit(topology, memory.role, wider)
    return None


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


def _model_of(topology: Topology, base: Path) -> _Model | None:
    """The model from its files where they can be seen from here, else as published under its name."""
    paths = topology.resolve(base)
    directory, there = paths.weights, 0
    if paths.manifest is not None:
        directory, there = _staged(paths.manifest, base)
    shape = _read_shape(directory) or shape_of(PUBLISHED.get(topology.model.name, {}))
    if shape is None:
        return None
    precision = topology.model.precision or shape.precision
    if directory is not None and not there:
        there = sum(file.stat().st_size for file in directory.glob(f"*{_WEIGHT_SUFFIX}") if file.is_file())
    scale = there / shape.weight_bytes(precision, 1, 1) if there else 1.0
    return _Model(shape, precision, scale)


def _read_shape(directory: Path | None) -> ModelShape | None:
    try:
        value = json.loads(read_bounded(directory / "config.json")) if directory else None
    except (OSError, ValueError):
        return None
    return shape_of(value) if isinstance(value, dict) else None


def _staged(manifest: Path, base: Path) -> tuple[Path | None, int]:
    """The source of a staging manifest, and the bytes of the weights that it lists."""
    try:
        value = read_document(manifest).value if manifest.is_file() else {}
        files = [(str(file["path"]), int(file["bytes"])) for file in value.get("files", ())]
        source = value.get("source")
    except (ConfigError, KeyError, TypeError, ValueError):
        return None, 0
    there = sum(count for path, count in files if path.endswith(_WEIGHT_SUFFIX))
    return (base / source if isinstance(source, str) else None), there


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"

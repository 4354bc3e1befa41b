"""What stands in for each role's engine in a rehearsal: a timing profile, a KV cache, the scheduler's limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED, shape_of
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.flag_values import length_of
from dynamo_mlperf.topology.heads import attention_shards
from dynamo_mlperf.topology.memory import GPU_BYTES, RoleMemory, memory_of
from dynamo_mlperf.tuning.profile_sources import Served, roofline
from dynamo_mlperf.tuning.profiles import Profile, find_shipped, read_profile, shipped_profiles

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Role, Topology

BLOCK_SIZE = 64
"""Tokens per KV block of the simulated engines (the mocker's default for vLLM)."""
_EXAMPLE = "topologies/q3vl-gb200x16-interactive-4p8d.yaml"
_DEFAULT_BLOCKS = 16_384
_DEFAULT_SEQS, _DEFAULT_BATCHED = 1_024, 8_192
"""vLLM's `max_num_seqs` and `max_num_batched_tokens` of a server on a large GPU (0.31.0, `engine/arg_utils.py`)."""
KV_GBPS = 100.0
"""GB/s at which KV cache is assumed to move between two workers."""


@dataclass(frozen=True)
class Factors:
    """What a profile is multiplied by, and what the rest of the system adds to each request.

    Attributes:
        prefill: Of prefill times.
        itl: Of decode steps.
        overhead_ms: Added to the time to first token and to the whole request: frontends, image processing, network.
    """

    prefill: float = 1.0
    itl: float = 1.0
    overhead_ms: float = 0.0

    def as_json(self) -> dict[str, float]:
        """For `prediction.json`."""
        return {"prefill": self.prefill, "itl": self.itl, "overhead_ms": self.overhead_ms}


@dataclass(frozen=True, eq=False)
class EngineModel:
    """One role's engine as it is simulated.

    Attributes:
        role: prefill, decode or aggregated.
        profile: Timing of one worker.
        blocks: KV blocks of `BLOCK_SIZE` tokens, per data-parallel rank.
        ranks: Data-parallel ranks of a worker.
        max_seqs: Sequences that are computed at a time.
        max_batched_tokens: Tokens of one step.
        kv_bytes_per_token: Bytes that move per prompt token from prefill to decode; None where not known.
    """

    role: str
    profile: Profile
    blocks: int
    ranks: int
    max_seqs: int
    max_batched_tokens: int
    kv_bytes_per_token: int | None

    def scaled(self, factors: Factors) -> EngineModel:
        """The same with a calibrated profile."""
        return replace(self, profile=self.profile.scaled(factors.prefill, factors.itl))

    def replay_config(self, npz: Path) -> dict[str, Any]:
        """The engine as Dynamo's replay takes it (`AISimulate` launch configuration, ai-dynamo 1.6.1)."""
        engine: dict[str, Any] = {
            "backend": "vllm",
            "worker_type": self.role,
            "num_gpu_blocks": self.blocks,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": self.max_seqs,
            "max_num_batched_tokens": self.max_batched_tokens,
            "enable_prefix_caching": False,
            "timing_model": {"type": "external", "provider": "dynamo_profile", "config": {"path": str(npz)}},
        }
        if self.role != "aggregated" and self.kv_bytes_per_token:
            engine |= {"kv_transfer_bandwidth": KV_GBPS, "kv_transfer_bytes_per_token": self.kv_bytes_per_token}
        return {"engine": engine, "dp_size": self.ranks}

    def mocker_flags(self, npz: Path) -> dict[str, Any]:
        """The same as flags of `dynamo.mocker`, for a role's `args`."""
        flags: dict[str, Any] = {
            "planner-profile-data": str(npz),
            "num-gpu-blocks-override": self.blocks,
            "block-size": BLOCK_SIZE,
            "max-num-seqs": self.max_seqs,
            "max-num-batched-tokens": self.max_batched_tokens,
        }
        if self.role != "aggregated" and self.kv_bytes_per_token:
            flags |= {"kv-transfer-bandwidth": KV_GBPS, "kv-bytes-per-token": self.kv_bytes_per_token}
        return flags

    def as_json(self) -> dict[str, Any]:
        """For `prediction.json`."""
        return {
            "profile": self.profile.name,
            "origin": self.profile.facts.get("origin", "not said"),
            "source": self.profile.facts.get("source"),
            "date": self.profile.facts.get("date"),
            "kv_blocks": self.blocks,
            "block_size": BLOCK_SIZE,
            "kv_bytes_per_token": self.kv_bytes_per_token,
        }


def engines_of(
    topology: Topology, base: Path, chosen: Mapping[str, str]
) -> tuple[dict[str, EngineModel], tuple[str, ...]]:
    """The simulated engine of each role of a topology, and what a reader should know of them.

    Args:
        topology: The deployment.
        base: What its paths are relative to.
        chosen: Profile by role: an NPZ file or the name of a shipped one; roles that are left out get a shipped
            profile of their GPU, precision and degree, else a roofline.

    Raises:
        ConfigError: A profile cannot be used, or there is none and nothing to make one from.
        CapacityError: The weights do not fit the GPUs.
    """
    memory = {each.role: each for each in memory_of(topology, base)}
    found: dict[str, EngineModel] = {}
    notes: list[str] = []
    for name, role in topology.roles.present():
        profile = _profile(topology, role, chosen.get(name))
        if profile.facts.get("origin") == "analytic":
            notes.append(f"{name}: the profile {profile.name} is analytic: a roofline, not a measurement")
        if name not in memory:
            notes.append(f"{name}: the size of the KV cache is not known; {_DEFAULT_BLOCKS} blocks are assumed")
        found[name] = _engine(name, role, profile, memory.get(name))
    return found, tuple(notes)


def _engine(name: str, role: Role, profile: Profile, memory: RoleMemory | None) -> EngineModel:
    blocks, moved = _DEFAULT_BLOCKS, None
    if memory is not None:
        per_token = memory.sequence_bytes / memory.sequence_tokens
        blocks = max(1, int((memory.usable_bytes - memory.weight_bytes) / per_token) // BLOCK_SIZE)
        moved = round(per_token * attention_shards(role))
    given = length_of(role.args.get("num-gpu-blocks-override"))
    return EngineModel(
        role=name,
        profile=profile,
        blocks=given or blocks,
        ranks=role.gpus // attention_shards(role),
        max_seqs=length_of(role.args.get("max-num-seqs")) or _DEFAULT_SEQS,
        max_batched_tokens=length_of(role.args.get("max-num-batched-tokens")) or _DEFAULT_BATCHED,
        kv_bytes_per_token=moved,
    )


def _unknown(topology: Topology, gpu: str | None, *, known: bool) -> ConfigError:
    """What the file lacks to be rehearsed, and the way out of just that."""
    lacking, ways = [], []
    if gpu is None:
        lacking.append("nodes.gpu is not in the file")
        ways.append(f"nodes: {{gpu: NAME}} with one of {', '.join(GPU_BYTES)}")
    if not known:
        lacking.append(f"model {topology.model.name} has no known shape")
        ways.append(f"model: {{name: NAME}} with one of {', '.join(PUBLISHED)}")
    way = f"write {' and '.join(ways)}" if ways else "write model: {precision: nvfp4}"
    return ConfigError(
        f"no timing profile for {topology.name}: {' and '.join(lacking) or 'model.precision is not in the file'}",
        f"{way}, as {_EXAMPLE} has it, or give --profile NPZ (dynamo-mlperf profile makes one of runs of yours)",
    )


def _profile(topology: Topology, role: Role, chosen: str | None) -> Profile:
    benchmark, gpu = topology.measure.benchmark, topology.nodes.gpu
    if chosen is not None:
        named = {path.stem: path for path in shipped_profiles(benchmark)}
        return read_profile(named.get(chosen, Path(chosen)))
    shape = shape_of(PUBLISHED.get(topology.model.name, {}))
    precision = topology.model.precision or (shape.precision if shape else None)
    profile = find_shipped(benchmark, gpu, precision, role.gpus)
    if profile is not None:
        return profile
    if gpu is None or shape is None or precision is None:
        raise _unknown(topology, gpu, known=shape is not None)
    return roofline(Served(topology.model.name, precision, gpu, role.gpus), shape)

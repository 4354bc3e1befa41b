"""A tiny Qwen3-VL-MoE checkpoint with random weights: the benchmark's own architecture, made on the spot.

It serves for rehearsals, tests and demonstrations where the real weights are not. Nothing here needs torch,
transformers or a hub, and the bytes are the same on every machine: weights are integers from a fixed
hash, scaled by powers of two.

The model answers as the benchmark asks: a JSON object with a category path, a brand, the second-hand
flag and a note of random words, which it ends by itself. A few hidden dimensions are reserved for that:
each carries "the current token belongs to step S of an answer" from the embedding to the output layer
untouched, where it admits the tokens of that step and of the next. All other dimensions are random, so
what is picked among the admitted words depends on the whole prompt, image included.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.tiny_config import (
    CHAT_TEMPLATE,
    DEEPSTACK_BLOCKS,
    EXPERT_HIDDEN,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MERGE,
    PATCH,
    POSITIONS,
    TEMPORAL_PATCH,
    VISION_DEPTH,
    VISION_FFN,
    VISION_HIDDEN,
    model_files,
)
from dynamo_mlperf.benchmark.tiny_tokenizer import (
    VOCABULARY_SIZE,
    WORD_STEPS,
    TinyTokenizer,
    answer_steps,
    tiny_tokenizer,
)
from dynamo_mlperf.files import write_atomic, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    Tensor = npt.NDArray[np.float32]

SHARDS = 3
RESERVED = len(answer_steps())
"""Hidden dimensions that the layers neither write nor read: 0 for tokens outside an answer, S for tokens of its
step S, counted from 1. The end token closes an answer and counts as outside."""

_FLAG = 4.0
_ADMIT = 8.0
_ATTENTION_SHARPNESS = np.float32(2.0)
_LEAVE = np.float32(0.875)
"""Extra bias of a token that ends a step of words, over the words' own; it sets the length of answers."""


def _hash_bytes(name: str, count: int) -> npt.NDArray[np.uint8]:
    """`count` bytes that depend on `name` and place only: SplitMix64 (Steele, Lea and Flood, 2014) over a counter."""
    seed = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
    state = seed + np.arange(1, -(-count // 8) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state.astype("<u8").view(np.uint8)[:count]


def _random(name: str, shape: Sequence[int], shift: int) -> Tensor:
    """Odd multiples of 2**-shift, uniform within 255 * 2**-shift of zero (deviation 147 * 2**-shift)."""
    integers = _hash_bytes(name, int(np.prod(shape))).astype(np.int32) * 2 - 255
    return (integers.astype(np.float32) * np.float32(2.0**-shift)).reshape(tuple(shape))


def _zero_outputs(weight: Tensor, axis: int) -> Tensor:
    """`weight`, writing nothing to the reserved dimensions along its output `axis`."""
    np.moveaxis(weight, axis, 0)[:RESERVED] = 0.0
    return weight


def _ones(size: int) -> Tensor:
    return np.ones(size, np.float32)


def _zeros(size: int) -> Tensor:
    return np.zeros(size, np.float32)


def _inner_norm() -> Tensor:
    """A norm's weights inside the layers: blind to the reserved dimensions."""
    return _zero_outputs(_ones(HIDDEN), 0)


def _step_ids(tokenizer: TinyTokenizer) -> list[list[int]]:
    """Token ids of each step of an answer; entry 0, outside an answer, stays empty."""
    return [[], *([tokenizer.id_of(text) for text in step] for step in answer_steps())]


def _embedding(tokenizer: TinyTokenizer) -> Tensor:
    weight = _random("embed_tokens", (VOCABULARY_SIZE, HIDDEN), 8)
    steps = np.zeros(VOCABULARY_SIZE, np.int64)
    for step, members in enumerate(_step_ids(tokenizer)[:-1]):
        steps[members] = step
    weight[:, :RESERVED] = 0.0
    weight[np.arange(VOCABULARY_SIZE), steps] = _FLAG
    return weight


def _output_layer(tokenizer: TinyTokenizer) -> Tensor:
    """Rows of the tokens that an answer is made of; all others are zero and are never picked."""
    rows = _random("lm_head", (VOCABULARY_SIZE, HIDDEN), 11)
    weight = np.zeros_like(rows)
    for step, members in enumerate(_step_ids(tokenizer)[1:], start=1):
        leaves_words = step - 1 in WORD_STEPS
        if not leaves_words:  # a token that ends a step of words has its bias alone, so that it comes at an even rate
            weight[members, RESERVED:] = rows[members, RESERVED:]
        weight[members, step - 1] = _ADMIT + _LEAVE if leaves_words else _ADMIT
        if step in WORD_STEPS:
            weight[members, step] = _ADMIT
    return weight


def _layer(prefix: str) -> dict[str, Tensor]:
    """One text layer. Fused experts lie as published: gate_up [E, H, 2 I], down [E, I, H], inputs before outputs."""
    shapes = {"q_proj": (HEADS * HEAD_DIM, HIDDEN), "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN)}
    shapes |= {"v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD_DIM)}
    attention = {f"self_attn.{part}.weight": _random(prefix + part, shape, 11) for part, shape in shapes.items()}
    _zero_outputs(attention["self_attn.o_proj.weight"], 0)
    gate_up = _random(prefix + "gate_up", (EXPERTS, HIDDEN, 2 * EXPERT_HIDDEN), 11)
    down = _random(prefix + "down", (EXPERTS, EXPERT_HIDDEN, HIDDEN), 11)
    tensors = attention | {
        "self_attn.q_norm.weight": _ones(HEAD_DIM) * _ATTENTION_SHARPNESS,
        "self_attn.k_norm.weight": _ones(HEAD_DIM),
        "input_layernorm.weight": _inner_norm(),
        "post_attention_layernorm.weight": _inner_norm(),
        "mlp.gate.weight": _random(prefix + "gate", (EXPERTS, HIDDEN), 10),
        "mlp.experts.gate_up_proj": gate_up,
        "mlp.experts.down_proj": _zero_outputs(down, 2),
    }
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _linear(prefix: str, outputs: int, inputs: int, shift: int) -> dict[str, Tensor]:
    return {f"{prefix}.weight": _random(prefix, (outputs, inputs), shift), f"{prefix}.bias": _zeros(outputs)}


def _layer_norm(prefix: str, size: int) -> dict[str, Tensor]:
    return {f"{prefix}.weight": _ones(size), f"{prefix}.bias": _zeros(size)}


def _vision_block(prefix: str) -> dict[str, Tensor]:
    return {
        **_layer_norm(prefix + "norm1", VISION_HIDDEN),
        **_layer_norm(prefix + "norm2", VISION_HIDDEN),
        **_linear(prefix + "attn.qkv", 3 * VISION_HIDDEN, VISION_HIDDEN, 11),
        **_linear(prefix + "attn.proj", VISION_HIDDEN, VISION_HIDDEN, 11),
        **_linear(prefix + "mlp.linear_fc1", VISION_FFN, VISION_HIDDEN, 11),
        **_linear(prefix + "mlp.linear_fc2", VISION_HIDDEN, VISION_FFN, 11),
    }


def _merger(prefix: str, norm_size: int, flag: float) -> dict[str, Tensor]:
    """Joins MERGE x MERGE patches to one text token; `flag` is what it writes to reserved dimension 0."""
    joined = VISION_HIDDEN * MERGE * MERGE
    tensors = {
        **_layer_norm(prefix + "norm", norm_size),
        **_linear(prefix + "linear_fc1", joined, joined, 12),
        **_linear(prefix + "linear_fc2", HIDDEN, joined, 11),
    }
    _zero_outputs(tensors[prefix + "linear_fc2.weight"], 0)
    tensors[prefix + "linear_fc2.bias"][0] = flag
    return tensors


def _vision() -> Iterator[dict[str, Tensor]]:
    root = "model.visual."
    patches = (VISION_HIDDEN, 3, TEMPORAL_PATCH, PATCH, PATCH)
    yield {
        f"{root}patch_embed.proj.weight": _random("patch_embed", patches, 12),
        f"{root}patch_embed.proj.bias": _zeros(VISION_HIDDEN),
        f"{root}pos_embed.weight": _random("pos_embed", (POSITIONS, VISION_HIDDEN), 9),
    }
    for place in range(VISION_DEPTH):
        yield _vision_block(f"{root}blocks.{place}.")
    yield _merger(f"{root}merger.", VISION_HIDDEN, _FLAG)
    for place in range(len(DEEPSTACK_BLOCKS)):
        yield _merger(f"{root}deepstack_merger_list.{place}.", VISION_HIDDEN * MERGE * MERGE, 0.0)


def tiny_weights(tokenizer: TinyTokenizer) -> Iterator[dict[str, Tensor]]:
    """All tensors, in groups that belong together, by the names of the published Qwen3-VL-MoE checkpoints."""
    yield from _vision()
    yield {"model.language_model.embed_tokens.weight": _embedding(tokenizer)}
    for place in range(LAYERS):
        yield _layer(f"model.language_model.layers.{place}.")
    yield {"model.language_model.norm.weight": _ones(HIDDEN), "lm_head.weight": _output_layer(tokenizer)}


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """One safetensors file: header length (8 bytes, little-endian), JSON header padded to 8 bytes, raw tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end_bytes = 0
    for name, tensor in tensors.items():
        begin_bytes, end_bytes = end_bytes, end_bytes + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin_bytes, end_bytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join(
        [struct.pack("<Q", len(text)), text, *(tensor.astype("<f4").tobytes() for tensor in tensors.values())]
    )


def _write_weights(directory: Path, groups: Sequence[Mapping[str, Tensor]]) -> None:
    """Spread the groups over SHARDS files of similar size, with the index that names each tensor's file."""
    total_bytes = sum(tensor.nbytes for group in groups for tensor in group.values())
    shards: list[dict[str, Tensor]] = [{} for _ in range(SHARDS)]
    done_bytes = 0
    for group in groups:
        shards[min(SHARDS - 1, done_bytes * SHARDS // total_bytes)].update(group)
        done_bytes += sum(tensor.nbytes for tensor in group.values())
    names = [f"model-{place:05d}-of-{SHARDS:05d}.safetensors" for place in range(1, SHARDS + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_atomic(directory / name, _safetensors(shard))
    places = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(places.items()))}
    write_json(directory / "model.safetensors.index.json", index)


def write_tiny_model(directory: Path) -> None:
    """Write the checkpoint into `directory`, which is made if it is not there: about 34 MB, float32, three shards.

    Raises:
        OSError: The directory cannot be written or the disk is full.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    for name, content in model_files(tokenizer).items():
        write_json(directory / name, content)
    write_atomic(directory / "chat_template.jinja", CHAT_TEMPLATE)
    _write_weights(directory, list(tiny_weights(tokenizer)))

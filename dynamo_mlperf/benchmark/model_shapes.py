"""The shapes of the benchmarks' models: how many parameters, and how much KV cache a token takes.

`PUBLISHED` holds what decides that from the `config.json` files of Qwen/Qwen3-VL-235B-A22B-Instruct,
openai/gpt-oss-120b, deepseek-ai/DeepSeek-R1 and meta-llama/Llama-2-70b-chat-hf on Hugging Face (the second and third
are also the defaults of transformers' GptOssConfig and DeepseekV3Config). A `config.json` of another model is read the
same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

PRECISION_BYTES: Mapping[str, float] = MappingProxyType({"bf16": 2.0, "fp8": 1.0, "nvfp4": 0.5625, "mxfp4": 0.53125})
"""Bytes per weight, scales included: NVFP4 has one byte of scale per 16 weights, MXFP4 (OCP MX) one per 32."""
_EXPERTS_ONLY = ("mxfp4",)
"""Precisions that models keep to their experts; the others take in attention and dense layers as well."""
_MOST = 10**9
_SIZES = frozenset(
    {
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
        *("intermediate_size", "moe_intermediate_size", "first_k_dense_replace", "max_position_embeddings"),
        *("num_local_experts", "num_experts", "n_routed_experts", "n_shared_experts", "sliding_window"),
        *("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        *("depth", "out_hidden_size", "spatial_merge_size", "patch_size", "temporal_patch_size", "in_channels"),
        "num_position_embeddings",
    }
)
"""Keys of a `config.json` whose values are whole numbers below `_MOST`, where they are there."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model.

    Attributes:
        layers: Decoder layers.
        heads: Attention heads.
        kv_heads: Key-value heads; 0 with a latent cache.
        head_dim: Width of one head.
        latent: Width of what multi-head latent attention caches per token and layer, key and value in one; else 0.
        window: Tokens that a sliding-window layer keeps; 0 where there is no such layer.
        window_layers: How many layers those are.
        attention: Parameters of all attention layers.
        dense: Parameters of all dense MLP layers, shared experts included.
        experts: Parameters of all routed experts.
        rest: Parameters that are never quantized: embeddings, output head, norms, routers, vision tower.
        longest: Tokens that the model can attend to at most.
        precision: Of the published weights.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent: int
    window: int
    window_layers: int
    attention: int
    dense: int
    experts: int
    rest: int
    longest: int
    precision: str

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.attention + self.dense + self.experts + self.rest

    def weight_bytes(self, precision: str, shards: int, expert_shards: int) -> float:
        """Bytes of weights on one GPU.

        Args:
            precision: One of `PRECISION_BYTES`.
            shards: GPUs that share attention, dense layers and embeddings.
            expert_shards: GPUs that share the experts.
        """
        small, full = PRECISION_BYTES[precision], PRECISION_BYTES["bf16"]
        shared = (self.attention + self.dense) * (full if precision in _EXPERTS_ONLY else small) + self.rest * full
        return shared / shards + self.experts * small / expert_shards

    def sequence_bytes(self, tokens: int, shards: int, bytes_per_value: float) -> float:
        """Bytes of KV cache of a sequence on each of the GPUs that share its attention."""
        if self.latent:
            return tokens * self.layers * self.latent * bytes_per_value
        heads = -(-self.kv_heads // shards)
        per_layer = 2 * heads * self.head_dim * bytes_per_value
        return per_layer * ((self.layers - self.window_layers) * tokens + self.window_layers * min(tokens, self.window))


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a `config.json` describes; None where it does not say enough, or in a way not known here."""
    try:
        _refuse_odd_sizes(config)
        found = _shape(config)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    parts = (found.attention, found.dense, found.experts, found.rest)
    return found if min(found.layers, found.heads, found.head_dim) > 0 and min(parts) >= 0 else None


def _refuse_odd_sizes(config: Mapping[str, Any]) -> None:
    """A text times a number is a text, and a number without bound no size: a file may be anybody's.

    Raises:
        ValueError: A size is none.
    """
    for part in (config, config.get("text_config") or {}, config.get("vision_config") or {}):
        for name, value in part.items():
            if name in _SIZES and value is not None and not (type(value) is int and 0 <= value < _MOST):
                raise ValueError(f"{name} is {value!r:.40}")


def _shape(config: Mapping[str, Any]) -> ModelShape:
    text = config.get("text_config") or config
    layers, hidden, heads = text["num_hidden_layers"], text["hidden_size"], text["num_attention_heads"]
    head_dim = text.get("head_dim") or hidden // heads
    kv_heads = text.get("num_key_value_heads") or heads
    experts = next((text[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if text.get(key)), 0)
    expert_width = text.get("moe_intermediate_size") or text.get("intermediate_size", 0)
    dense_layers = text.get("first_k_dense_replace", 0) if experts else layers
    latent = text.get("kv_lora_rank") or 0
    windows = [kind == "sliding_attention" for kind in text.get("layer_types") or ()]
    shared = text.get("n_shared_experts") or 0
    tables = 1 if config.get("tie_word_embeddings", text.get("tie_word_embeddings")) else 2
    return ModelShape(
        layers=layers,
        heads=heads,
        kv_heads=0 if latent else kv_heads,
        head_dim=head_dim,
        latent=latent + text["qk_rope_head_dim"] if latent else 0,
        window=text.get("sliding_window") or 0 if any(windows) else 0,
        window_layers=sum(windows),
        attention=layers * (_latent_attention(text) if latent else 2 * hidden * head_dim * (heads + kv_heads)),
        dense=3 * hidden * (dense_layers * text["intermediate_size"] + (layers - dense_layers) * shared * expert_width),
        experts=3 * hidden * expert_width * experts * (layers - dense_layers),
        rest=tables * text["vocab_size"] * hidden
        + hidden * experts * (layers - dense_layers)
        + 2 * layers * hidden
        + _vision(config.get("vision_config") or {}),
        longest=text.get("max_position_embeddings") or 0,
        precision=_precision(config),
    )


def _latent_attention(text: Mapping[str, Any]) -> int:
    """Parameters of one layer of multi-head latent attention (DeepSeek-V2 report, section 2.1)."""
    hidden, heads, latent = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
    nope, rope, value, query = (
        text[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
    )
    queries = hidden * query + query * heads * (nope + rope)
    keys = hidden * (latent + rope) + latent * heads * (nope + value)
    return int(queries + keys + heads * value * hidden)


def _vision(vision: Mapping[str, Any]) -> int:
    """Parameters of a vision tower of transformer blocks; its mergers to the text model's width included."""
    if not vision:
        return 0
    hidden, out = vision["hidden_size"], vision["out_hidden_size"]
    merged = hidden * vision["spatial_merge_size"] ** 2
    mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
    patches = vision["patch_size"] ** 2 * vision["temporal_patch_size"] * vision["in_channels"] * hidden
    blocks = vision["depth"] * (4 * hidden * hidden + 2 * hidden * vision["intermediate_size"])
    places = vision["num_position_embeddings"] * hidden
    return int(blocks + mergers * (merged * merged + merged * out) + patches + places)


def _precision(config: Mapping[str, Any]) -> str:
    quantized = config.get("quantization_config") or {}
    named = str(quantized.get("quant_algo") or quantized.get("quant_method") or "").lower()
    return next((name for name in PRECISION_BYTES if name in named), "bf16")


PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3-vl-235b-a22b": {
            "text_config": {
                "num_hidden_layers": 94,
                "hidden_size": 4096,
                "num_attention_heads": 64,
                "num_key_value_heads": 4,
                "head_dim": 128,
                "intermediate_size": 12288,
                "moe_intermediate_size": 1536,
                "num_experts": 128,
                "vocab_size": 151936,
                "max_position_embeddings": 262144,
            },
            "vision_config": {
                "depth": 27,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "out_hidden_size": 4096,
                "spatial_merge_size": 2,
                "patch_size": 16,
                "temporal_patch_size": 2,
                "in_channels": 3,
                "num_position_embeddings": 2304,
                "deepstack_visual_indexes": [8, 16, 24],
            },
        },
        "gpt-oss-120b": {
            "num_hidden_layers": 36,
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "num_local_experts": 128,
            "vocab_size": 201088,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
            "max_position_embeddings": 131072,
            "quantization_config": {"quant_method": "mxfp4"},
        },
        "deepseek-r1": {
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "first_k_dense_replace": 3,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "vocab_size": 129280,
            "max_position_embeddings": 163840,
            "quantization_config": {"quant_method": "fp8"},
        },
        "llama2-70b": {
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 28672,
            "vocab_size": 32000,
            "max_position_embeddings": 4096,
        },
    }
)
"""By `model.name`; what decides parameters and KV cache, as published."""

LONGEST_PROMPT_TOKENS: Mapping[str, int] = MappingProxyType({"qwen3-vl-235b-a22b": 61_566})
"""By benchmark: the longest prompt listed among the published calibration rows; 0 is assumed for the others."""

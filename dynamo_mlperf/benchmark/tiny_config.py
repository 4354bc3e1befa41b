"""Configuration files of the tiny Qwen3-VL-MoE checkpoint: sizes, image limits, sampling, chat template."""

from __future__ import annotations

from typing import Any

from dynamo_mlperf.benchmark.tiny_tokenizer import END, SPECIAL_TOKENS, VOCABULARY_SIZE, TinyTokenizer

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 4, 4, 2, 64
EXPERTS, EXPERTS_PER_TOKEN, EXPERT_HIDDEN = 8, 2, 192
VISION_DEPTH, VISION_HIDDEN, VISION_HEADS, VISION_FFN = 4, 128, 2, 256
PATCH, TEMPORAL_PATCH, MERGE, POSITIONS = 16, 2, 2, 2304
DEEPSTACK_BLOCKS = (0, 1, 2)
MAX_POSITIONS = 32768
MIN_PIXELS, MAX_PIXELS = 1 << 16, 1 << 20
"""Bounds on an image's pixels. vLLM profiles an image of the upper size at start, so a larger one starts slowly."""

CHAT_TEMPLATE = """\
{%- macro parts(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type in ("image", "image_url") -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif part.type in ("video", "video_url") -%}<|vision_start|><|video_pad|><|vision_end|>
      {%- elif "text" in part -%}{{ part.text }}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{- "<|im_start|>" + message.role + "\\n" + parts(message.content) + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
"""Turns between Qwen's markers, images and videos as one placeholder each; rendered by Jinja in the engine."""


def _text_config(tokenizer: TinyTokenizer) -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl_moe_text",
        "dtype": "float32",
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5000000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
        "num_experts": EXPERTS,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_HIDDEN,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.id_of(END),
        "pad_token_id": tokenizer.id_of("<|endoftext|>"),
    }


def _vision_config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_vl_moe_vision",
        "depth": VISION_DEPTH,
        "hidden_size": VISION_HIDDEN,
        "intermediate_size": VISION_FFN,
        "num_heads": VISION_HEADS,
        "out_hidden_size": HIDDEN,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL_PATCH,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": POSITIONS,
        "deepstack_visual_indexes": list(DEEPSTACK_BLOCKS),
    }


def _pixels(processor: str, name: str) -> dict[str, Any]:
    return {
        processor: name,
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL_PATCH,
        "merge_size": MERGE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def model_files(tokenizer: TinyTokenizer) -> dict[str, Any]:
    """Content of every JSON file of the checkpoint but the weights' index, by file name.

    `generation_config.json` carries the sampling of the Qwen3-VL benchmark's model, so that a client that sends
    no sampling values gets it.
    """
    end, pad = tokenizer.id_of(END), tokenizer.id_of("<|endoftext|>")
    config = {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "dtype": "float32",
        "tie_word_embeddings": False,
        "image_token_id": tokenizer.id_of("<|image_pad|>"),
        "video_token_id": tokenizer.id_of("<|video_pad|>"),
        "vision_start_token_id": tokenizer.id_of("<|vision_start|>"),
        "vision_end_token_id": tokenizer.id_of("<|vision_end|>"),
        "text_config": _text_config(tokenizer),
        "vision_config": _vision_config(),
    }
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0}
    return {
        "config.json": config,
        "generation_config.json": {**sampling, "eos_token_id": [end], "pad_token_id": pad},
        "tokenizer.json": tokenizer.as_json(),
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2TokenizerFast",
            "processor_class": "Qwen3VLProcessor",
            "model_max_length": MAX_POSITIONS,
            "eos_token": END,
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "clean_up_tokenization_spaces": False,
        },
        "preprocessor_config.json": _pixels("image_processor_type", "Qwen2VLImageProcessorFast"),
        "video_preprocessor_config.json": _pixels("video_processor_type", "Qwen3VLVideoProcessor"),
        "processor_config.json": {"processor_class": "Qwen3VLProcessor"},
    }

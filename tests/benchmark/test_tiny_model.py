"""The tiny checkpoint: the same bytes everywhere, complete, and built so that answers end by themselves."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dynamo_mlperf.benchmark.tiny_model import RESERVED, write_tiny_model
from dynamo_mlperf.benchmark.tiny_tokenizer import WORD_STEPS, answer_steps, tiny_tokenizer
from dynamo_mlperf.staging.checkpoint import verify_checkpoint
from dynamo_mlperf.staging.manifest import load_manifest, make_manifest

HUB_LAYOUT = {"gate_up_proj": [8, 256, 384], "down_proj": [8, 192, 256]}
"""[experts, inputs, outputs], as vLLM 0.31.0 loads this architecture (is_fused_checkpoint_transposed)."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="module")
def tensors(model: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All tensors by name, read by the format's own description, not by the code that wrote them."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    for path in sorted(model.glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        del header["__metadata__"]
        for name, entry in header.items():
            assert entry["dtype"] == "F32"
            begin, end = entry["data_offsets"]
            found[name] = np.frombuffer(raw[8 + length :][begin:end], "<f4").reshape(entry["shape"])
    return found


def test_committed_manifest_is_reproduced(model: Path, repository: Path) -> None:
    committed = load_manifest(repository / "staging" / "tiny-qwen3-vl-moe.yaml")
    assert make_manifest(model, source=committed.source, name=committed.name) == committed


def test_checkpoint_is_complete_in_three_shards(model: Path) -> None:
    assert verify_checkpoint(model) == ()
    index = json.loads((model / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == sorted(path.name for path in model.glob("*.safetensors"))
    assert len(set(index["weight_map"].values())) == 3


def test_index_names_every_tensor_and_its_total(model: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    index = json.loads((model / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())


def test_weights_are_exact_multiples_of_a_power_of_two(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, tensor in tensors.items():
        scaled = tensor.astype(np.float64) * 2**12
        assert np.array_equal(scaled, np.round(scaled)), name


def test_experts_lie_as_the_engine_loads_them(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    for layer in range(4):
        for part, shape in HUB_LAYOUT.items():
            assert list(tensors[f"model.language_model.layers.{layer}.mlp.experts.{part}"].shape) == shape


def test_no_layer_writes_or_reads_the_reserved_dimensions(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "linear_fc2.weight")) and tensor.shape[0] == 256:
            assert not tensor[:RESERVED].any(), name
        elif name.endswith("experts.down_proj"):
            assert not tensor[:, :, :RESERVED].any(), name
        elif "layernorm" in name:
            assert not tensor[:RESERVED].any(), name
            assert (tensor[RESERVED:] == 1).all(), name
    flags = tensors["model.visual.merger.linear_fc2.bias"]
    assert flags[0] > 0
    assert not flags[1:].any()
    for place in range(3):
        assert not tensors[f"model.visual.deepstack_merger_list.{place}.linear_fc2.bias"].any()


def test_each_step_of_an_answer_admits_itself_or_the_next(tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    tokenizer = tiny_tokenizer()
    steps = [set(), *({tokenizer.id_of(text) for text in step} for step in answer_steps())]
    embedding, output = tensors["model.language_model.embed_tokens.weight"], tensors["lm_head.weight"]
    for step in range(RESERVED):
        admitted = set(np.flatnonzero(output[:, step]).tolist())
        assert admitted == steps[step + 1] | (steps[step] if step in WORD_STEPS else set())
        for token in steps[step]:
            assert np.flatnonzero(embedding[token, :RESERVED]).tolist() == [step]
    outside = set(range(2048)) - set().union(*steps[:-1])
    assert all(np.flatnonzero(embedding[token, :RESERVED]).tolist() == [0] for token in outside)
    assert not output[sorted(set(range(2048)) - set().union(*steps))].any()


def test_tokens_never_sampled_include_all_that_is_not_printable() -> None:
    spoken = {text for step in answer_steps()[:-1] for text in step}
    assert all(text.isascii() and text.isprintable() for text in spoken)


def test_sampling_is_that_of_the_benchmark(model: Path) -> None:
    end = tiny_tokenizer().id_of("<|im_end|>")
    assert json.loads((model / "generation_config.json").read_text()) == {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.0,
        "eos_token_id": [end],
        "pad_token_id": 0,
    }


def test_image_pixels_are_capped(model: Path) -> None:
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        assert json.loads((model / name).read_text())["size"]["longest_edge"] == 1048576


def test_config_agrees_with_the_tensors(model: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    config = json.loads((model / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    assert config["architectures"] == ["Qwen3VLMoeForConditionalGeneration"]
    assert tensors["lm_head.weight"].shape == (text["vocab_size"], text["hidden_size"])
    assert tensors["model.visual.pos_embed.weight"].shape == (vision["num_position_embeddings"], vision["hidden_size"])
    layers = {name.split(".")[3] for name in tensors if name.startswith("model.language_model.layers.")}
    assert len(layers) == text["num_hidden_layers"]
    assert sum(text["rope_parameters"]["mrope_section"]) == text["head_dim"] // 2
    assert len(vision["deepstack_visual_indexes"]) == 3


def test_the_safetensors_library_reads_it(model: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    read = {name: tensor for path in model.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert set(read) == set(tensors)
    assert all(np.array_equal(read[name], tensor) for name, tensor in tensors.items())

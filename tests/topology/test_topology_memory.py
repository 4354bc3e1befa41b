"""Weights and KV cache against the memory of a GPU."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.model_shapes import PRECISION_BYTES, PUBLISHED, ModelShape, shape_of
from dynamo_mlperf.errors import CapacityError, ConfigError
from dynamo_mlperf.topology.memory import GIB, memory_of
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.topology.topology_texts import role, topology_text


def shape(name: str) -> ModelShape:
    found = shape_of(PUBLISHED[name])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "billions", "gib"),
    # sizes that the publishers name: 235B and 0.6B of vision tower, 116.8B in 60.8 GiB, 671B, 69.0B
    [
        ("qwen3-vl-235b-a22b", 235.7, 439),
        ("gpt-oss-120b", 116.8, 60.7),
        ("deepseek-r1", 671.0, 627),
        ("llama2-70b", 69.0, 128.5),
    ],
)
def test_published_shapes_have_the_published_sizes(name: str, billions: float, gib: float) -> None:
    found = shape(name)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert found.weight_bytes(found.precision, 1, 1) / GIB == pytest.approx(gib, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "shards", "values_per_token"),
    [
        ("qwen3-vl-235b-a22b", 1, 2 * 94 * 4 * 128),
        ("qwen3-vl-235b-a22b", 4, 2 * 94 * 128),
        ("qwen3-vl-235b-a22b", 8, 2 * 94 * 128),  # a head is not cut in two
        ("deepseek-r1", 1, 61 * (512 + 64)),
        ("deepseek-r1", 8, 61 * (512 + 64)),  # the latent is on every GPU
        ("llama2-70b", 2, 2 * 80 * 4 * 128),
    ],
)
def test_kv_cache_of_a_token(name: str, shards: int, values_per_token: int) -> None:
    assert shape(name).sequence_bytes(1000, shards, 2.0) == 1000 * 2 * values_per_token


def test_sliding_windows_keep_their_window_only() -> None:
    each = 2 * 8 * 64 * 2
    assert shape("gpt-oss-120b").sequence_bytes(10_000, 1, 2.0) == each * (18 * 10_000 + 18 * 128)
    assert shape("gpt-oss-120b").sequence_bytes(100, 1, 2.0) == each * 36 * 100


def served(more: str = "", model: str = "qwen3-vl-235b-a22b", nodes: str = "gpu: gb200", **options: str) -> Topology:
    text = topology_text(aggregated=role(1, int(options.get("degree", 1)), more), engine=options.get("engine", "vllm"))
    text = text.replace("gpus: 4}", f"gpus: 4, {nodes}}}").replace(
        "name: some-model", f"name: {model}, precision: nvfp4"
    )
    return parse_topology(text)


def test_nothing_is_estimated_without_a_gpu_or_a_known_model(tmp_path: Path) -> None:
    assert memory_of(served(model="some-model"), tmp_path) == ()
    text = topology_text(aggregated=role(1)).replace("some-model", "qwen3-vl-235b-a22b")
    assert memory_of(parse_topology(text), tmp_path) == ()
    assert memory_of(served(nodes="gpu_memory_gib: 200", engine="mocker"), tmp_path) == ()


@pytest.mark.parametrize("flag", ["quantization: fp8", "cpu-offload-gb: 100", "kv-cache-memory-bytes: 1000000"])
def test_roles_with_flags_that_are_not_counted_are_not_judged(tmp_path: Path, flag: str) -> None:
    with pytest.raises(CapacityError):
        memory_of(served(nodes="gpu_memory_gib: 80"), tmp_path)
    assert memory_of(served(f", args: {{{flag}}}", nodes="gpu_memory_gib: 80"), tmp_path) == ()


def test_vllm_reserves_for_the_models_own_length_unless_told(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"no sequence of 262144 tokens fits, which takes 47\.0 GiB") as refused:
        memory_of(served(), tmp_path)
    assert refused.value.action == (
        "roles.aggregated: {workers: 1, tensor_parallel: 2}, or max-model-len 186309 or less under roles.aggregated.args"
    )
    (found,) = memory_of(served(", args: {max-model-len: 61716}"), tmp_path)
    assert (found.sequence_tokens, found.sequences) == (61716, 3)
    (halved,) = memory_of(served(", args: {max-model-len: 61716, kv-cache-dtype: fp8}"), tmp_path)
    assert halved.sequences == 6
    (less,) = memory_of(served(", args: {max-model-len: 61716, gpu-memory-utilization: 0.82}"), tmp_path)
    assert less.sequences == 1


def test_the_memory_in_gib_counts_before_the_name_of_the_gpu(tmp_path: Path) -> None:
    (found,) = memory_of(served(", args: {max-model-len: 4096}", nodes="gpu: gb200, gpu_memory_gib: 150"), tmp_path)
    assert found.gpu_bytes == 150 * GIB


def test_attention_ranks_of_their_own_have_weights_and_sequences_of_their_own(tmp_path: Path) -> None:
    text = topology_text(gpus=8, engine="sglang", aggregated=role(1, 8, ", data_parallel: 8, expert_parallel: 8"))
    text = text.replace("gpus: 8}", "gpus: 8, gpu: mi355x}").replace("some-model", "deepseek-r1")
    text = text.replace("qwen3-vl-235b-a22b", "deepseek-r1").replace("Interactive", "Server")
    (found,) = memory_of(parse_topology(text), tmp_path)
    known = shape("deepseek-r1")
    others = known.attention + known.dense + 2 * known.rest
    assert found.weight_bytes == known.experts / 8 + others
    assert found.sequence_tokens == 20_000
    assert found.sequences % 8 == 0
    alone = parse_topology(text.replace(", data_parallel: 8, expert_parallel: 8", ""))
    (shared,) = memory_of(alone, tmp_path)
    assert shared.weight_bytes == (known.experts + others) / 8
    assert shared.sequences < found.sequences


def test_weights_that_can_be_seen_count_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(PUBLISHED["llama2-70b"]))
    with (folder / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(7 * GIB)
    text = topology_text(aggregated=role(1, 2)).replace("gpus: 4}", "gpus: 4, gpu_memory_gib: 8}")
    (found,) = memory_of(parse_topology(text.replace("/weights", str(folder))), tmp_path)
    assert found.weight_bytes == pytest.approx(3.5 * GIB)
    smaller = text.replace("tensor_parallel: 2", "tensor_parallel: 1").replace("gib: 8", "gib: 7")
    with pytest.raises(CapacityError, match=r"7\.0 GiB of weights on each GPU"):
        memory_of(parse_topology(smaller.replace("/weights", str(folder))), tmp_path)


def test_a_manifest_counts_the_weights_that_it_lists(tmp_path: Path, repository: Path) -> None:
    shutil.copy(repository / "staging" / "tiny-qwen3-vl-moe.yaml", tmp_path)
    text = topology_text(aggregated=role(1)).replace("gpus: 4}", "gpus: 4, gpu_memory_gib: 80}")
    text = text.replace("path: /weights", "stage: tiny-qwen3-vl-moe.yaml").replace("some-model", "qwen3-vl-235b-a22b")
    (found,) = memory_of(parse_topology(text), tmp_path)
    assert found.weight_bytes == 12508696 + 16551376 + 7615488


@given(
    st.sampled_from(sorted(PUBLISHED)),
    st.sampled_from(sorted(PRECISION_BYTES)),
    st.tuples(st.integers(1, 20), st.sampled_from([1, 2, 4, 8, 16])),
    st.tuples(st.integers(1, 20), st.sampled_from([1, 2, 4, 8])),
    st.tuples(st.sampled_from([4, 6, 8]), st.integers(16, 400)),
    st.sampled_from(["vllm", "sglang", "trtllm"]),
)
@example("qwen3-vl-235b-a22b", "bf16", (1, 4), (1, 4), (6, 100), "sglang")  # 8 GPUs would be no whole nodes
def test_what_a_refusal_names_loads_and_fits(  # noqa: PLR0917 - one value of each kind
    model: str, precision: str, first: tuple[int, int], second: tuple[int, int], gpu: tuple[int, int], engine: str
) -> None:
    gpus, gib = gpu
    text = topology_text(nodes=16, gpus=gpus, domain=4, engine=engine, prefill=role(*first), decode=role(*second))
    text = text.replace("domain: 4}", f"domain: 4, gpu_memory_gib: {gib}}}")
    text = text.replace("some-model", f"{model}, precision: {precision}")
    try:
        topology = parse_topology(text)
        make_plan(topology)
    except ConfigError:
        return
    here = Path("/nowhere")
    try:
        found = memory_of(topology, here)
    except CapacityError as refused:
        name = re.findall(r"roles\.(\w+):", refused.what)[0]
        written = role(*(first if name == "prefill" else second))
        hints = refused.action.split(", or ")
        for hint in hints:
            assert not refuses_role(followed(text, hint, name, written), name), hint
        return
    assert all(each.weight_bytes + each.sequence_bytes <= each.usable_bytes for each in found)


def followed(text: str, hint: str, name: str, written: str) -> Topology:
    """The file as a hint of a refusal wants it; the plan has to hold it."""
    for pattern, old, new in (
        (r"weights in (\w+)", r"precision: \w+", r"precision: {}"),
        (r"GPUs of ([0-9.]+) GiB or more", r"gpu_memory_gib: \d+", r"gpu_memory_gib: {}"),
        (rf"roles\.{name}: (\{{.*\}})$", re.escape(f"{name}: {written}"), rf"{name}: {{}}"),
    ):
        if given := re.search(pattern, hint):
            text, changed = re.subn(old, new.format(given[1]), text)
            assert changed == 1, (hint, text)
    if given := re.match(r"(\S+) (\d+) or less under", hint):
        text = text.replace(f"{name}: {written}", f"{name}: {written[:-1]}, args: {{{given[1]}: {given[2]}}}}}")
    found = parse_topology(text)
    make_plan(found)
    return found


def refuses_role(topology: Topology, name: str) -> bool:
    try:
        memory_of(topology, Path("/nowhere"))
    except CapacityError as refused:
        return f"roles.{name}:" in refused.what
    return False


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("head_dim", value) for value in ("x" * 300, [None], 10**29, -1, 1.5, True)),
        *(("num_hidden_layers", value) for value in (0, "94", float("nan"))),
        *(("num_experts", value) for value in ("many", {"a": 1})),
        ("intermediate_size", -12288),
    ],
)
def test_a_config_whose_sizes_are_none_tells_no_shape(key: str, value: object) -> None:
    published = PUBLISHED["qwen3-vl-235b-a22b"]
    assert shape_of(published) is not None
    assert shape_of({**published, "text_config": {**published["text_config"], key: value}}) is None


@pytest.mark.parametrize("part", ["text_config", "vision_config", "quantization_config"])
@pytest.mark.parametrize("value", [[1], "x", 7])
def test_a_config_of_other_parts_tells_no_shape(part: str, value: object) -> None:
    assert shape_of({**PUBLISHED["qwen3-vl-235b-a22b"], part: value}) is None

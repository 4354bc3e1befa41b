"""A worker's GPUs share the attention heads of its model evenly, or the file is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED, shape_of
from dynamo_mlperf.errors import CapacityError
from dynamo_mlperf.topology.heads import check_heads, head_problem
from dynamo_mlperf.topology.memory import memory_of
from dynamo_mlperf.topology.spec import parse_topology
from tests.topology.topology_texts import role, topology_text

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Topology

NOWHERE = Path("/nowhere")


def served(model: str, text: str, *, engine: str = "vllm", gpus: int = 8) -> Topology:
    written = topology_text(gpus=gpus, domain=16, engine=engine, aggregated=text)
    return parse_topology(written.replace("some-model", model))


@pytest.mark.parametrize(
    ("model", "degree", "said", "ways"),
    [
        ("qwen3-vl-235b-a22b", 3, "64 attention heads are not divisible by 3", "2 or 4"),
        ("gpt-oss-120b", 6, "64 attention heads are not divisible by 6", "4 or 8"),
        ("deepseek-r1", 5, "128 attention heads are not divisible by 5", "4 or 8"),
    ],
)
def test_a_degree_that_does_not_divide_the_heads_is_refused_with_the_nearest_that_do(
    model: str, degree: int, said: str, ways: str
) -> None:
    for check in (check_heads, memory_of):  # neither needs to know the GPU
        with pytest.raises(CapacityError) as refused:
            check(served(model, role(1, degree)), NOWHERE)
        assert refused.value.what == f"sample: roles.aggregated: tensor_parallel {degree}: {said}"
        assert refused.value.action == f"write tensor_parallel: {ways}"


def test_kv_heads_divide_too_where_the_engine_does_not_round_them_up() -> None:
    config = {**PUBLISHED["gpt-oss-120b"], "num_attention_heads": 48, "num_key_value_heads": 8}
    shape = shape_of(config)
    assert shape is not None
    twelve = served("some-model", role(1, 12), gpus=12).roles.aggregated
    sixteen = served("some-model", role(1, 16)).roles.aggregated
    assert twelve is not None
    assert sixteen is not None
    assert head_problem("vllm", shape, twelve) == "8 KV heads and 12 GPUs: neither divides by the other"
    assert head_problem("trtllm", shape, twelve) is None
    assert head_problem("vllm", shape, sixteen) is None, "each KV head on two GPUs"


def test_what_says_nothing_of_heads_is_not_refused() -> None:
    check_heads(served("some-model", role(1, 3)), NOWHERE)
    check_heads(served("deepseek-r1", role(1, 3), engine="mocker"), NOWHERE)
    ranks = served("qwen3-vl-235b-a22b", role(1, 1, ", data_parallel: 3"))
    check_heads(ranks, NOWHERE)  # each rank has all heads


@pytest.mark.parametrize("degree", range(1, 33))
def test_no_refusal_proposes_a_degree_that_is_refused(degree: int) -> None:
    """Neither one of heads nor one of memory, up to more GPUs than the model has heads."""
    text = topology_text(nodes=16, gpus=8, domain=16, aggregated=role(1, degree)).replace(
        "some-model", "gpt-oss-120b, precision: bf16"
    )
    for gib in (2, 8, 64):
        sized = text.replace("domain: 16}", f"domain: 16, gpu_memory_gib: {gib}}}")
        try:
            memory_of(parse_topology(sized), NOWHERE)
        except CapacityError as refused:
            line = re.findall(r"tensor_parallel: ([0-9 or]+)", refused.action)
            for proposed in (word for found in line for word in found.split(" or ")):
                check_heads(parse_topology(sized.replace(f"parallel: {degree}", f"parallel: {proposed}")), NOWHERE)

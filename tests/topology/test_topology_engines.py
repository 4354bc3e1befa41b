"""Which topologies an engine would refuse or serve wrongly, and which pairs of roles nobody vouches for (R32)."""

from __future__ import annotations

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.engines import PAIRED_FLAGS, degree_problem, degrees_problem, pair_warnings
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import Role, Topology, parse_topology

TEXT = """
schema: 1
name: two
nodes: {count: 4, gpus: 8}
model: {name: tiny, weights: {path: /models/tiny}}
engine: ENGINE
roles:
  prefill: {workers: 1, PREFILL}
  decode: {workers: 1, DECODE}
measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}
"""
ALONE = TEXT.replace(
    "  prefill: {workers: 1, PREFILL}\n  decode: {workers: 1, DECODE}", "  aggregated: {workers: 1, ROLE}"
)


def pair(engine: str, prefill: str, decode: str) -> Topology:
    return parse_topology(TEXT.replace("ENGINE", engine).replace("PREFILL", prefill).replace("DECODE", decode))


def alone(engine: str, role: str, more: str = "") -> Topology:
    return parse_topology(ALONE.replace("ENGINE", engine).replace("ROLE", role) + more)


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "said"),
    [
        (
            "vllm",
            "tensor_parallel: 4, args: {block-size: 32}",
            "args: {block-size: 16}",
            "roles.decode.args.block-size: prefill has 32 and decode has 16; KV transfer needs the same in both",
        ),
        (
            "vllm",
            "args: {kv-cache-dtype: fp8}",
            "args: {}",
            "roles.prefill.args.kv-cache-dtype: prefill has fp8 and decode leaves the default; KV transfer needs",
        ),
        (
            "sglang",
            "args: {page-size: 64}",
            "args: {page-size: 16}",
            "roles.decode.args.page-size: prefill has 64 and decode has 16",
        ),
        (
            "trtllm",
            "engine_config: {kv_cache_config: {dtype: fp8}}",
            "engine_config: {kv_cache_config: {dtype: auto}}",
            "roles.decode.engine_config.kv_cache_config.dtype: prefill has fp8 and decode has auto",
        ),
    ],
)
def test_settings_that_both_ends_of_a_transfer_share_are_refused_where_they_differ(
    engine: str, prefill: str, decode: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        pair(engine, prefill, decode)
    assert said in refusal.value.what


@pytest.mark.parametrize("engine", list(PAIRED_FLAGS))
def test_equal_settings_pass(engine: str) -> None:
    args = ", ".join(f"{flag}: 16" for flag in PAIRED_FLAGS[engine])
    topology = pair(engine, f"args: {{{args}}}", f"args: {{{args}}}")
    assert degrees_problem(topology) is None
    assert pair_warnings(topology) == ()


def test_degrees_that_do_not_divide_move_no_kv_in_vllm() -> None:
    said = degrees_problem(pair("vllm", "tensor_parallel: 2", "tensor_parallel: 3"))
    assert said is not None
    assert said.startswith("tensor_parallel 2 (prefill) and 3 (decode)")
    assert degrees_problem(pair("vllm", "tensor_parallel: 4", "tensor_parallel: 1")) is None
    assert degrees_problem(pair("sglang", "tensor_parallel: 2", "tensor_parallel: 3")) is None


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "said"),
    [
        ("vllm", "tensor_parallel: 2", "tensor_parallel: 1", ""),
        ("vllm", "tensor_parallel: 4", "tensor_parallel: 1", ""),
        ("vllm", "tensor_parallel: 1", "tensor_parallel: 8", ""),
        ("vllm", "tensor_parallel: 8", "tensor_parallel: 8", ""),
        ("vllm", "tensor_parallel: 8", "tensor_parallel: 4", "vllm needs at least 8 KV heads"),
        ("sglang", "tensor_parallel: 4", "tensor_parallel: 4", ""),
        ("sglang", "tensor_parallel: 4", "tensor_parallel: 2", "not known to work with sglang"),
        ("trtllm", "tensor_parallel: 4", "tensor_parallel: 2", "not known to work with trtllm"),
        ("mocker", "tensor_parallel: 4", "tensor_parallel: 3", ""),
    ],
)
def test_pairs_that_nobody_vouches_for_are_named_in_the_plan(engine: str, prefill: str, decode: str, said: str) -> None:
    warnings = make_plan(pair(engine, prefill, decode)).warnings
    told = [warning for warning in warnings if "(prefill)" in warning]
    assert bool(told) == bool(said)
    assert all(said in warning and "canary" in warning for warning in told)


@pytest.mark.parametrize(
    ("engine", "degrees", "said"),
    [
        ("vllm", {"tensor_parallel": 8, "data_parallel": 8, "expert_parallel": 8}, "write tensor_parallel: 1"),
        ("vllm", {"tensor_parallel": 8, "data_parallel": 2, "expert_parallel": 8}, "for 16 GPUs expert_parallel: 16"),
        ("vllm", {"tensor_parallel": 8, "data_parallel": 2, "expert_parallel": 16}, None),
        ("sglang", {"tensor_parallel": 8, "data_parallel": 2, "expert_parallel": 16}, "write tensor_parallel: 16"),
        ("trtllm", {"tensor_parallel": 8, "data_parallel": 2, "expert_parallel": 16}, "tensor_parallel: 16"),
        ("vllm", {"data_parallel": 8, "expert_parallel": 4}, "write expert_parallel: 8"),
        ("vllm", {"data_parallel": 8, "expert_parallel": 8}, None),
        ("vllm", {"tensor_parallel": 8}, None),
        ("trtllm", {"tensor_parallel": 2, "data_parallel": 2}, "tensor_parallel: 4, data_parallel: 4"),
        ("trtllm", {"tensor_parallel": 8, "data_parallel": 4, "expert_parallel": 8}, "or data_parallel: 1"),
        ("trtllm", {"tensor_parallel": 8, "data_parallel": 8, "expert_parallel": 8}, None),
        ("sglang", {"tensor_parallel": 8, "data_parallel": 8, "expert_parallel": 8}, None),
        ("sglang", {"tensor_parallel": 8, "data_parallel": 2}, None),
        ("sglang", {"tensor_parallel": 2, "data_parallel": 4, "expert_parallel": 8}, "write tensor_parallel: 8"),
        ("mocker", {"tensor_parallel": 8, "data_parallel": 8, "expert_parallel": 8}, None),
    ],
)
def test_degrees_that_an_engine_cannot_spread(engine: str, degrees: dict[str, int], said: str | None) -> None:
    problem = degree_problem(engine, Role.model_validate({"workers": 1, **degrees}))
    assert problem is None if said is None else problem is not None and said in problem


@pytest.mark.parametrize(
    ("engine", "role", "more", "said"),
    [
        ("vllm", "tensor_parallel: 1", "server: trtllm-serve\n", "engine: vllm takes server: dynamo"),
        ("trtllm", "tensor_parallel: 1", "server: trtllm-serve\nfrontends: {count: 1}\n", "have no frontend"),
        ("vllm", "engine_config: {a: 1}", "", "roles.aggregated.engine_config: is for engine: trtllm"),
        ("trtllm", "engine_config: {tensor_parallel_size: 2}", "", "tensor_parallel sets it"),
        ("trtllm", "engine_config: {kv_cache_config: {enable_block_reuse: true}}", "", "always turns it off"),
        ("trtllm", "engine_config: {kv_cache_config: 1}", "", "wanted a mapping"),
        ("trtllm", "args: {trtllm.kv_cache_config.dtype: fp8}", "", "under engine_config"),
        ("vllm", "args: {mm-processor-cache-gb: 4}", "", "always turns it off"),
    ],
)
def test_what_an_engine_does_not_take_is_refused_by_name(engine: str, role: str, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        alone(engine, role, more)
    assert said in refusal.value.what


def test_workers_that_answer_by_themselves_are_aggregated() -> None:
    assert alone("trtllm", "tensor_parallel: 4", "server: trtllm-serve\n").server == "trtllm-serve"
    with pytest.raises(ConfigError, match=r"write roles: \{aggregated"):
        parse_topology(
            TEXT.replace("ENGINE", "trtllm").replace(", PREFILL", "").replace(", DECODE", "") + "server: trtllm-serve\n"
        )

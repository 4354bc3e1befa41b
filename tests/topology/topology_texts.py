"""Topology files as text, for tests that vary one thing."""

from __future__ import annotations

from typing import Any

from dynamo_mlperf.topology.spec import Topology, parse_topology


def simulated(**blocks: object) -> dict[str, Any]:
    """A topology file's content: 1P1D of simulated engines on two nodes, with `blocks` in place of its own."""
    return {
        "schema": 1,
        "name": "sample",
        "nodes": {"count": 2, "gpus": 1},
        "model": {"name": "m", "weights": {"path": "/weights"}},
        "engine": "mocker",
        "device": "cpu",
        "roles": {"prefill": {"workers": 1}, "decode": {"workers": 1}},
        "measure": measure_block(),
        **blocks,
    }


def measure_block(**keys: object) -> dict[str, Any]:
    """Its `measure:` block, with `keys` in place of its own; None takes a key out."""
    block = {"benchmark": "qwen3-vl-235b-a22b", "scenario": "Interactive", "target_qps": 2, **keys}
    return {key: value for key, value in block.items() if value is not None}


def role(workers: int, tensor_parallel: int = 1, more: str = "") -> str:
    return f"{{workers: {workers}, tensor_parallel: {tensor_parallel}{more}}}"


def topology_text(
    *,
    nodes: int = 4,
    gpus: int = 4,
    domain: int | None = None,
    head: str = "first",
    engine: str = "vllm",
    frontends: int = 1,
    **roles: str,
) -> str:
    lines = [f"  {name}: {value}" for name, value in roles.items()]
    shared = f", nvlink_domain: {domain}" if domain else ""
    return "\n".join(
        [
            "#!/usr/bin/env -S dynamo-mlperf job",
            f"#SBATCH --nodes={nodes} --gres=gpu:{gpus} --no-requeue",
            "schema: 1",
            "name: sample",
            f"nodes: {{count: {nodes}, gpus: {gpus}{shared}}}",
            "model: {name: some-model, weights: {path: /weights}}",
            f"engine: {engine}",
            f"head: {head}",
            f"frontends: {{count: {frontends}}}",
            "roles:",
            *lines,
            "measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 40}",
            "",
        ]
    )


def disaggregated(
    prefill: tuple[int, int],
    decode: tuple[int, int],
    *,
    nodes: int = 4,
    gpus: int = 4,
    domain: int | None = None,
    head: str = "first",
) -> Topology:
    """Roles as (workers, tensor_parallel)."""
    text = topology_text(nodes=nodes, gpus=gpus, domain=domain, head=head, prefill=role(*prefill), decode=role(*decode))
    return parse_topology(text)

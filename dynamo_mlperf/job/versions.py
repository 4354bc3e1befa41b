"""Versions of everything that takes part in a run."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys

from dynamo_mlperf import __version__
from dynamo_mlperf.process.programs import run_program

_LIST_PACKAGES = (
    "import importlib.metadata as m, json;print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


def collect_versions(engine_python: str) -> dict[str, str]:
    """Versions by name: this package, the interpreter, the kernel, Slurm where it is, and every engine package."""
    found = {
        "dynamo_mlperf": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": _os_name(),
    }
    if shutil.which("srun"):
        found["slurm"] = run_program(["srun", "--version"], timeout_s=10).stdout.strip().removeprefix("slurm ")
    return found | _packages(engine_python)


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _packages(engine_python: str) -> dict[str, str]:
    if engine_python == sys.executable:
        listed = {entry.metadata["Name"]: entry.version for entry in importlib.metadata.distributions()}
    else:
        import json

        answer = run_program([engine_python, "-c", _LIST_PACKAGES], timeout_s=60)
        listed = json.loads(answer.stdout) if answer.status == 0 else {}
    return dict(sorted(listed.items(), key=lambda entry: entry[0].lower()))

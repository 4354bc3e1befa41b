"""Builds the compiled part of the load client where there is a C compiler; without one the client works in Python."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "dynamo_mlperf/load/_pump.c"
BUILT = "dynamo_mlperf/load/_pump.abi3.so"


class CompiledPump(BuildHookInterface):
    """Compiles `_pump.c` for CPython's stable ABI, next to its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's signature
        """Build, and have the wheel carry what was built and say for which platform."""
        source, built = Path(self.root, SOURCE), Path(self.root, BUILT)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        fresh = built.with_name(f"{built.name}.{os.getpid()}")
        flags = ["-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", f'-DSOURCE="{digest}"', "-o", str(fresh)]
        command = [*compiler, *flags, f"-I{sysconfig.get_path('include')}", str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
            fresh.replace(built)
        except (OSError, subprocess.CalledProcessError) as problem:
            fresh.unlink(missing_ok=True)
            built.unlink(missing_ok=True)
            said = getattr(problem, "stderr", "") or problem
            self.app.display_warning(f"the load client stays without its compiled part: {said}")
            return
        build_data["artifacts"].append(BUILT)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

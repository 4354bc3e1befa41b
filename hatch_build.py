"""Builds the compiled part of the load client where there is a C compiler; without one the client works in Python."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "dynamo_mlperf/load/_pump.c"
BUILT = "dynamo_mlperf/load/_pump.abi3.so"


class CompiledPump(BuildHookInterface):
    """Compiles `_pump.c` for CPython's stable ABI: next to its source where that is installed editable, else away."""

    _directory: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and have the wheel carry what was built and say for which platform."""
        self._directory = tempfile.TemporaryDirectory(prefix="dynamo-mlperf-build-")
        built = Path(self._directory.name, Path(BUILT).name)
        place = Path(self.root, BUILT)
        try:
            self._compile(built)
            if version == "editable":
                _put(built, place)
        except (OSError, ValueError, subprocess.CalledProcessError) as problem:
            if version == "editable":
                with contextlib.suppress(OSError):  # then it is of an older source, which the client looks for
                    place.unlink(missing_ok=True)
            said = getattr(problem, "stderr", "") or problem
            self.app.display_warning(f"the load client stays without its compiled part: {said}")
            return
        if version != "editable":
            build_data["force_include"][str(built)] = BUILT
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - a hook's
        """Leave nothing behind; of a build that fails the interpreter's end does it."""
        if self._directory is not None:
            self._directory.cleanup()

    def _compile(self, built: Path) -> None:
        source = Path(self.root, SOURCE)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        digest = f"{zlib.crc32(source.read_bytes()):08x}"
        flags = ["-O2", "-shared", "-fPIC", "-D_GNU_SOURCE", f'-DSOURCE="{digest}"', "-o", str(built)]
        command = [*compiler, *flags, f"-I{sysconfig.get_path('include')}", str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        built.stat()


def _put(built: Path, place: Path) -> None:
    """In one step: what runs keeps what it has, and two at once leave one whole."""
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        shutil.copy(built, fresh)
        fresh.replace(place)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)

"""The wheel carries the compiled part where it can be built, and is as complete without it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "dynamo_mlperf" / "load" / "_pump.c"
COMPILED = "dynamo_mlperf/load/_pump.abi3.so"
_SHOW_SOURCE = "from dynamo_mlperf.load import _pump, pump; print(_pump.SOURCE, pump.COMPILED.__module__)"


def _wheel(directory: Path, compiler: str) -> tuple[Path, str]:
    """A wheel of this tree, built in a copy of it; and what the build said."""
    tree = directory / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("dynamo_mlperf", "topologies", "slurm", "staging", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    (tree / COMPILED).write_bytes(b"of an older source")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory / "out")]
    environment = {**os.environ, "CC": compiler}
    done = subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = (directory / "out").glob("*.whl")
    return built, done.stdout + done.stderr


def test_without_a_compiler_the_wheel_is_for_any_platform_and_says_why(tmp_path: Path) -> None:
    wheel, said = _wheel(tmp_path, "/nowhere/cc")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "without its compiled part" in said
    assert "/nowhere/cc" in said
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.compiler
def test_with_a_compiler_the_wheel_carries_the_compiled_part_of_this_source(tmp_path: Path) -> None:
    wheel, _ = _wheel(tmp_path, "cc -Wall -Wextra -Werror")
    assert "-cp311-abi3-linux_" in wheel.name
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    argv = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}]; {_SHOW_SOURCE}"]
    shown = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.split() == [hashlib.sha256(SOURCE.read_bytes()).hexdigest(), "dynamo_mlperf.load._pump"]


@pytest.mark.compiler
def test_what_is_installed_here_is_of_this_source() -> None:
    from dynamo_mlperf.load import _pump

    assert hashlib.sha256(SOURCE.read_bytes()).hexdigest() == _pump.SOURCE, "run `make setup`"

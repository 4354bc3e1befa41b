"""The wheel carries the compiled part where it can be built, and is as complete without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "dynamo_mlperf" / "load" / "_pump.c"
COMPILED = "dynamo_mlperf/load/_pump.abi3.so"
DIGEST = f"{zlib.crc32(SOURCE.read_bytes()):08x}"
_SHOW_SOURCE = "from dynamo_mlperf.load import _pump, pump; print(_pump.SOURCE, pump.COMPILED.__module__)"


def _tree(directory: Path) -> Path:
    """A copy of this tree, with what an older source was built to."""
    tree = directory / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("dynamo_mlperf", "topologies", "slurm", "staging", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=left_out)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    (tree / COMPILED).write_bytes(b"of an older source")
    return tree


def _build(tree: Path, kind: str, compiler: str, **more: str) -> tuple[Path, str]:
    """What a build of the tree left, and what it said."""
    out = tree.parent / "out"
    argv = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    environment = {**os.environ, "CC": compiler, **more}
    done = subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built, done.stdout + done.stderr


def _wheel(directory: Path, compiler: str) -> tuple[Path, str]:
    """A wheel of this tree, built in a copy of it; and what the build said."""
    return _build(_tree(directory), "wheel", compiler)


def _install_editable(tree: Path, compiler: str) -> None:
    """As pip has it done, without pip."""
    hook = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    argv = [sys.executable, "-c", hook, str(tree.parent)]
    subprocess.run(argv, cwd=tree, env={**os.environ, "CC": compiler}, timeout=120, check=True)


def _shown(site: Path) -> list[str]:
    """The source and the module of the compiled part that a Python finds there."""
    argv = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(site)!r}]; {_SHOW_SOURCE}"]
    return subprocess.run(argv, cwd=site, capture_output=True, text=True, timeout=60, check=True).stdout.split()


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "true", "false", "cc -nostdinc", "cc '"])
def test_without_a_compiler_the_wheel_is_for_any_platform_and_says_why(tmp_path: Path, compiler: str) -> None:
    wheel, said = _wheel(tmp_path, compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "without its compiled part: " in said
    assert compiler != "/nowhere/cc" or "/nowhere/cc" in said
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.compiler
def test_with_a_compiler_the_wheel_carries_the_compiled_part_of_this_source(tmp_path: Path) -> None:
    wheel, _ = _wheel(tmp_path, "cc -Wall -Wextra -Werror")
    assert "-cp311-abi3-linux_" in wheel.name
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert _shown(tmp_path / "site") == [DIGEST, "dynamo_mlperf.load._pump"]


@pytest.mark.compiler
def test_the_source_distribution_is_enough_for_the_wheel(tmp_path: Path) -> None:
    packed, _ = _build(_tree(tmp_path), "sdist", "cc")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    assert not (tree / COMPILED).exists()
    wheel, _ = _build(tree, "wheel", "cc")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    assert _shown(tmp_path / "site") == [DIGEST, "dynamo_mlperf.load._pump"]


@pytest.mark.compiler
def test_a_wheel_of_a_tree_that_is_read_only_is_whole_and_nothing_is_left(
    tmp_path: Path, mount_small: Callable[[str], Path]
) -> None:
    place = mount_small("64m")
    tree = _tree(place)
    (place / "out").mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    subprocess.run(["mount", "--bind", tree, tree], check=True, timeout=60)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", tree], check=True, timeout=60)
        for compiler in ("/nowhere/cc", "cc"):
            wheel, _ = _build(tree, "wheel", compiler, TMPDIR=str(scratch))
            names = zipfile.ZipFile(wheel).namelist()
            assert (COMPILED in names) == (compiler == "cc")
            wheel.unlink()
            _install_editable(tree, compiler)
    finally:
        subprocess.run(["umount", tree], check=True, timeout=60)
    assert not list(scratch.iterdir())
    assert (tree / COMPILED).read_bytes() == b"of an older source"


@pytest.mark.compiler
def test_an_editable_installation_has_the_compiled_part_beside_its_source_or_none(tmp_path: Path) -> None:
    tree = _tree(tmp_path)
    _install_editable(tree, "cc")
    assert _shown(tree) == [DIGEST, "dynamo_mlperf.load._pump"]
    _install_editable(tree, "/nowhere/cc")
    assert not [path.name for path in (tree / COMPILED).parent.iterdir() if ".so" in path.name]


@pytest.mark.compiler
@pytest.mark.parametrize("damage", ["source", "compiled", "no source"])
def test_a_compiled_part_that_is_not_of_the_source_beside_it_is_not_used(tmp_path: Path, damage: str) -> None:
    tree = _tree(tmp_path)
    _install_editable(tree, "cc")
    damaged = tree / (COMPILED if damage == "compiled" else SOURCE.relative_to(ROOT))
    if damage == "no source":
        damaged.unlink()
    else:
        damaged.write_bytes(damaged.read_bytes()[:-1] if damage == "source" else b"no library")
    code = f"import sys; sys.path[:0] = [{str(tree)!r}]; from dynamo_mlperf.load import pump; print(pump.COMPILED)"
    argv = [sys.executable, "-S", "-c", code]
    done = subprocess.run(argv, cwd=tree, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "None\n"


@pytest.mark.compiler
def test_what_is_installed_here_is_of_this_source() -> None:
    from dynamo_mlperf.load import _pump

    assert _pump.SOURCE == DIGEST, "run `make setup`"

"""The house keeps its shape: imports go one way, files stay small, processes start in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "dynamo_mlperf"
LAYERS = (
    ("errors",),
    ("files", "process"),
    ("benchmark", "topology", "site", "record"),
    ("slurm", "staging", "serving", "load"),
    ("tuning", "report", "submission"),
    ("job",),
    ("cli",),
)
PLACE = {name: (row, column) for row, names in enumerate(LAYERS) for column, name in enumerate(names)}
ENGINE_SIDE = {PACKAGE / "serving" / "cpu_startup", PACKAGE / "serving" / "replay"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not ENGINE_SIDE & set(path.parents))


def unit_of(path: Path) -> str:
    """The layer unit of a file: its folder, or its own name at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_units(path: Path) -> set[str]:
    """The units of this package that a file imports."""
    parts = (name.split(".") for name in imports_of(path) if name.startswith("dynamo_mlperf."))
    return {part[1] for part in parts if part[1] in PLACE}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    me = unit_of(path)
    if me == "__init__":
        assert own_units(path) == set()
        return
    row, column = PLACE[me]
    wrong = {
        other
        for other in own_units(path) - {me}
        if not (PLACE[other][0] < row or (PLACE[other][0] == row and PLACE[other][1] < column))
    }
    assert not wrong, f"{path.name} in {me} imports {', '.join(sorted(wrong))}"


def test_every_unit_has_a_place() -> None:
    units = {unit_of(path) for path in MODULES} - {"__init__"}
    assert units <= set(PLACE)


def test_engines_are_programs_not_modules() -> None:
    engines = {"torch", "vllm", "dynamo", "transformers", "nixl"}
    guilty = {path.name for path in MODULES if {name.split(".")[0] for name in imports_of(path)} & engines}
    assert guilty == set()


def test_what_runs_in_other_environments_imports_nothing_of_this_package() -> None:
    foreign = [path for folder in ENGINE_SIDE for path in folder.glob("*.py")]
    for path in (*foreign, PACKAGE / "load" / "endpoints_parquet.py"):
        assert not [name for name in imports_of(path) if name.split(".")[0] == "dynamo_mlperf"], path


def test_loadgen_is_imported_in_one_module() -> None:
    users = [path.relative_to(PACKAGE).as_posix() for path in MODULES if "mlperf_loadgen" in imports_of(path)]
    assert users == ["load/loadgen_process.py"]


def test_processes_start_in_one_place() -> None:
    starters = {"subprocess", "multiprocessing", "pty"}
    guilty = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if unit_of(path) != "process" and {name.split(".")[0] for name in imports_of(path)} & starters
    }
    assert guilty == set()


def test_files_are_small_and_named_for_what_they_hold() -> None:
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
    empty_names = {"utils", "util", "helpers", "helper", "common", "core", "manager"}
    assert {path.stem for path in MODULES} & empty_names == set()

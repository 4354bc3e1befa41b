"""Runs and trees, made once and copied for each test."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.submission import admission, build
from dynamo_mlperf.submission.package import PackageRequest, package
from tests.submission.made_runs import COMMIT, description, make_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _by_a_clean_commit(patch: pytest.MonkeyPatch, place: Path) -> None:
    """The made runs say that a clean commit made them; sources are one small file, not this whole package."""
    sources = place / "dynamo_mlperf"
    sources.mkdir()
    (sources / "__init__.py").write_text('"""Sources."""\n')
    patch.setattr(build, "PACKAGE", sources)
    for module in (admission, build):
        patch.setattr(module, "own_commit", lambda: COMMIT)


@pytest.fixture(autouse=True)
def packaged_by_the_commit_that_ran(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """See `_by_a_clean_commit`."""
    _by_a_clean_commit(monkeypatch, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`Offline` and `Server` of deepseek-r1, and the description; never to be changed."""
    base = tmp_path_factory.mktemp("made")
    for scenario in ("Offline", "Server"):
        make_run(base / scenario, scenario=scenario)
    description(base)
    return base


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    """A copy of them that a test may spoil."""
    return shutil.copytree(made, tmp_path / "base")


@pytest.fixture(scope="session")
def tree_once(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of them; never to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        _by_a_clean_commit(patch, tmp_path_factory.mktemp("sources"))
        place = tmp_path_factory.mktemp("tree")
        request = request_of(made)
        return package(PackageRequest(request.runs, request.description, "ACME", place / "tree")).tree


@pytest.fixture
def packaged(tree_once: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return shutil.copytree(tree_once, tmp_path / "tree")


@pytest.fixture
def tree_of(tmp_path: Path) -> Callable[..., Path]:
    """Makes the tree of runs with other values, all scenarios named."""

    def make(*scenarios: str, rehearsal: bool = False, **changes: Any) -> Path:
        place = tmp_path / "of"
        runs = tuple(make_run(place / scenario, scenario=scenario, **changes) for scenario in scenarios)
        submitter = "REHEARSAL" if rehearsal else "ACME"
        return package(PackageRequest(runs, description(place), submitter, place / "tree", rehearsal)).tree

    return make


def request_of(base: Path, *scenarios: str, replace: bool = False) -> PackageRequest:
    """What `package` is asked for with the runs in `base`."""
    runs = tuple(base / scenario for scenario in scenarios or ("Offline", "Server"))
    return PackageRequest(runs, base / "system.yaml", "ACME", base / "tree", replace=replace)

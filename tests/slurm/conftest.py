"""Slurm's programs, played by recorded answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.slurm_programs import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A directory for such programs, first on PATH."""
    directory = tmp_path / "slurm-programs"
    directory.mkdir()
    made = FakeSlurm(directory)
    monkeypatch.setenv("PATH", made.path)
    return made

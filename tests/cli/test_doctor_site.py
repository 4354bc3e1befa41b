"""`doctor --site`: what the site file still lacks is told before anything is looked at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dynamo_mlperf.cli.doctor import command
from dynamo_mlperf.errors import ConfigError, ExitCode
from tests.fakes.slurm_programs import NO_CONFIGURATION, FakeSlurm

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_that_nobody_completed_are_told(tmp_path: Path) -> None:
    site = tmp_path / "mine.yaml"
    site.write_text(f"local_path: {tmp_path}\n# partition: batch   # FILL IN: sinfo -s\n")
    told = CliRunner().invoke(command, ["--here", "--site", str(site), "--json"])
    assert told.exit_code == 0, told.output
    assert told.stderr.startswith(f"warning: {site}: FILL IN still stands in line 2: ")
    assert json.loads(told.stdout)["host"]
    site.write_text(f"local_path: {tmp_path}\npartition: batch\n")
    assert "FILL IN" not in CliRunner().invoke(command, ["--here", "--site", str(site), "--json"]).stderr


@pytest.mark.dynamo
@pytest.mark.loadgen
@pytest.mark.vllm
@pytest.mark.parametrize("still", [True, False])
def test_a_site_that_works_by_defaults_is_ready_and_its_open_lines_are_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, still: bool
) -> None:
    """`submit` sends a job with such a site too: what is commented out is left at its default."""
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.directory.mkdir()
    slurm.script("scontrol", NO_CONFIGURATION)
    monkeypatch.setenv("PATH", slurm.path)
    site = tmp_path / "mine.yaml"
    mark = "# partition: batch   # FILL IN: sinfo -s\n" if still else ""
    site.write_text(f"local_path: {tmp_path}\ncontainer: {{runtime: apptainer, image: /images/x.sif}}\n{mark}")
    told = CliRunner().invoke(command, ["--site", str(site)], standalone_mode=False)
    assert (told.exception, told.return_value) == (None, ExitCode.DONE), told.output
    assert (told.stderr.startswith("warning: "), "still say FILL IN" in told.stdout.splitlines()[-1]) == (still, still)


def test_a_site_with_a_value_that_nobody_filled_in_cannot_work_and_is_refused(tmp_path: Path) -> None:
    """With the exit code of a configuration error, as by `submit`."""
    site = tmp_path / "mine.yaml"
    site.write_text(f"local_path: {tmp_path}\npartition: FILL-IN\n")
    told = CliRunner().invoke(command, ["--site", str(site)])
    assert isinstance(told.exception, ConfigError)
    assert told.exception.what == f"{site}:2: partition is still FILL-IN"
    assert told.exception.exit_code == ExitCode.USAGE
    assert told.stdout == ""

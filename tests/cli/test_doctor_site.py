"""`doctor --site`: what the site file still lacks is told before anything is looked at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from dynamo_mlperf.cli.doctor import command

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

"""Programs that stand in for Slurm's on PATH: they answer with recorded text, and note how they were called."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NO_ACCOUNTING = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
NO_CONTROLLER = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
NO_CONFIGURATION = (
    "echo 'scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "scontrol: error: fetch_config: DNS SRV lookup failed\n"
    "scontrol: error: _establish_config_source: failed to fetch config\n"
    "scontrol: fatal: Could not establish a configuration source' >&2; exit 1"
)
NO_SUCH_JOB = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@dataclass(frozen=True)
class FakeSlurm:
    """A directory of such programs."""

    directory: Path

    @property
    def path(self) -> str:
        """PATH with them first."""
        return f"{self.directory}:{os.environ['PATH']}"

    def script(self, name: str, body: str) -> None:
        """A program that runs `body`; each call is one line in `NAME.calls`."""
        calls = shlex.quote(str(self.directory / f"{name}.calls"))
        path = self.directory / name
        path.write_text(f'#!/bin/bash\necho "$*" >> {calls}\n{body}\n')
        path.chmod(0o755)

    def answers(self, name: str, text: str) -> None:
        """A program that prints `text`."""
        (self.directory / f"{name}.answer").write_text(text)
        self.script(name, f"cat {shlex.quote(str(self.directory / f'{name}.answer'))}")

    def calls(self, name: str) -> list[str]:
        """How the program was called."""
        path = self.directory / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def sbatch(self, answer: str, status: int = 0, stderr: str = "") -> None:
        """An sbatch that notes its arguments, environment and standard input in `sbatch.json`."""
        note = self.directory / "sbatch.json"
        path = self.directory / "sbatch"
        path.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"note = {{'argv': sys.argv[1:], 'environment': dict(os.environ), 'script': sys.stdin.buffer.read().decode()}}\n"
            f"open({str(note)!r}, 'w').write(json.dumps(note))\n"
            f"print({answer!r}); print({stderr!r}, file=sys.stderr); sys.exit({status})\n"
        )
        path.chmod(0o755)

    def sent(self) -> dict[str, Any]:
        """What the last sbatch was given."""
        found: dict[str, Any] = json.loads((self.directory / "sbatch.json").read_text())
        return found

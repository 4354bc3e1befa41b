"""What the end-to-end tests work with: topologies made from the shipped ones, a place to run, a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli")


def topology(source: Path, **changes: Any) -> str:
    """The text of a shipped topology with some keys replaced (`roles` and the like as whole mappings)."""
    text = source.read_text()
    comments = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    return comments + yaml.safe_dump({**yaml.safe_load(text), **changes}, sort_keys=False)


def answers(run_dir: Path) -> list[list[str]]:
    """The canary's greedy answers, one list per pair of workers."""
    evidence = json.loads((run_dir / "evidence.json").read_text())
    return list(evidence["canary"]["answers"].values())


@dataclass(frozen=True)
class Place:
    """A directory to submit from: assets, manifests, topologies, and the caches of its runs."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        """Write a topology file, ready for sbatch."""
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, file: Path, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """`run FILE --json` from this directory."""
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache"), "HF_TOKEN": "hf_never_recorded"}
        environment.pop("DYNAMO_MLPERF_SITE", None)
        argv = ("timeout", "--signal=INT", str(timeout_s), *PROGRAM, "run", file.name, "--json")
        return subprocess.run(argv, cwd=self.root, env=environment, text=True, capture_output=True, check=False)


@dataclass(frozen=True)
class Cluster:
    """A real four-node Slurm on this machine."""

    program: Path
    root: Path
    work: Path
    settings: Mapping[str, str] = field(default_factory=lambda: {"GPUS": "2"})

    def call(self, *argv: str, check: bool = True, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run a devcluster verb in the working directory."""
        environment = {**os.environ, "DEVCLUSTER_DIR": str(self.root)}
        environment |= {f"DEVCLUSTER_{name}": value for name, value in self.settings.items()}
        environment.pop("DYNAMO_MLPERF_SITE", None)
        return subprocess.run(
            (str(self.program), *argv),
            cwd=self.work,
            env=environment,
            text=True,
            capture_output=True,
            check=check,
            timeout=timeout_s,
        )

    def login(self, *argv: str, check: bool = True, timeout_s: float = 240) -> str:
        """Run a program on the login node."""
        return self.call("exec", *argv, check=check, timeout_s=timeout_s).stdout

    def configure(self, **options: object) -> None:
        """Give options of slurm.conf other values while the cluster is up."""
        conf = self.root / "etc" / "slurm.conf"
        names = tuple(f"{name}=" for name in options)
        kept = [line for line in conf.read_text().splitlines() if not line.startswith(names)]
        conf.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in options.items())]) + "\n")
        self.login("scontrol", "reconfigure")

    def submit(self, file: Path) -> str:
        """Sbatch a topology file as it stands; returns the job id."""
        return self.login("sbatch", "--parsable", file.name).strip()

    def job(self, job_id: str) -> dict[str, str]:
        """What Slurm says of a job."""
        text = self.login("scontrol", "-o", "show", "job", job_id)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def on_node(self, node: str, *argv: str) -> str:
        """Run a program inside a node."""
        return self.call("exec", "-n", node, *argv, check=False).stdout

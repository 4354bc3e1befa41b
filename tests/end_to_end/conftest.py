"""The tiny model and data set, a cluster, and the answers that every deployment must give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.end_to_end.bench import PROGRAM, Cluster, Place, answers, topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def place(repository: Path) -> Iterator[Place]:
    """A directory below the checkout, since the nodes of a cluster have a /tmp of their own."""
    root = repository / f".end-to-end-{os.getpid()}"
    (root / "staging").mkdir(parents=True)
    shutil.copy(repository / "staging" / "tiny-qwen3-vl-moe.yaml", root / "staging")
    subprocess.run((*PROGRAM, "init", "--assets", "assets"), cwd=root, check=True, capture_output=True)
    yield Place(root)
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def cluster(repository: Path, place: Place) -> Iterator[Cluster]:
    """Up once for all tests of the session."""
    found = Cluster(repository / "slurm" / "devcluster", repository / f".devcluster-e2e-{os.getpid()}", place.root)
    up = found.call("up", check=False)
    assert up.returncode == 0, up.stderr
    # On a busy machine a controller needs longer than devcluster's 5 s to end; Slurm's own default is 30.
    found.configure(KillWait=20)
    yield found
    found.call("down")
    shutil.rmtree(found.root, ignore_errors=True)


@pytest.fixture(scope="session")
def aggregated(repository: Path, place: Place) -> list[str]:
    """Greedy answers of one aggregated worker in float32: what every disaggregated deployment must equal."""
    demo = repository / "topologies" / "demo.yaml"
    args = yaml.safe_load(demo.read_text())["roles"]["decode"]["args"]
    text = topology(
        demo,
        name="demo-aggregated",
        nodes={"count": 1, "gpus": 1},
        roles={"aggregated": {"workers": 1, "args": args}},
        reduced={"min_duration_s": 5, "samples": 44, "percentile": 90, "latency_limit_ms": 20000},
    )
    done = place.run(place.write("demo-aggregated.yaml", text), timeout_s=600)
    assert done.returncode in {0, 5}, done.stderr[-3000:]
    verdict = json.loads(done.stdout)
    assert verdict["remote_prefills"] == 0
    (found,) = answers(place.root / "runs" / verdict["run_dir"].rsplit("/", 1)[1])
    assert all(len(text) > 20 for text in found)
    assert len(set(found)) == len(found)
    return found

"""More splits than one job array may have, on a real Slurm that refuses the second array: what is sent, told and made up."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cli.test_sweep_parallel import SPLITS
from tests.end_to_end.bench import Cluster, Place
from tests.job.chain import TEMPLATE, machine_is_busy, merged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
LARGEST = 5
NAME = "twelve-points"
ARRAYS = 3

CLOSES = """#!/bin/sh
{sbatch} "$@" || exit
scontrol update PartitionName=main State=DRAIN
"""
"""The real sbatch, after which an administrator closes the partition to further jobs."""


@pytest.fixture(scope="module")
def narrow(repository: Path, place: Place) -> Iterator[Cluster]:
    """A cluster whose arrays have LARGEST jobs at most."""
    root = repository / f".devcluster-array-{os.getpid()}"
    found = Cluster(repository / "slurm" / "devcluster", root, place.root, {"GPUS": "4", "NODES": "2"})
    up = found.call("up", check=False)
    assert up.returncode == 0, up.stderr
    found.configure(MaxArraySize=LARGEST)
    yield found
    found.call("down")
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def file(place: Place) -> Path:
    """A run of seconds for each of twelve splits of one node."""
    changes = {
        "name": NAME,
        "nodes": {"count": 1, "gpus": 4},
        "measure": {"target_qps": None},
        "sweep": {"splits": SPLITS, "rates": [14]},
    }
    head = "#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes=1 --gres=gpu:4 --exclusive --time=20 --no-requeue\n"
    return place.write(f"{NAME}.yaml", head + yaml.safe_dump(merged(TEMPLATE, changes)))


def jobs(cluster: Cluster) -> list[dict[str, str]]:
    """What Slurm knows of all jobs of the sweep, each element of an array by itself."""
    lines = cluster.login("scontrol", "-o", "show", "job").splitlines()
    found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    return [job for job in found if job.get("JobName") == NAME]


def sent(root: Path) -> list[dict[str, Any]]:
    points: list[dict[str, Any]] = json.loads((root / "points.json").read_text())["sent"]
    return points


def test_twelve_splits_go_in_arrays_of_five_and_what_slurm_refused_is_made_up_later(
    place: Place, narrow: Cluster, file: Path
) -> None:
    root = place.root / "spread-over-arrays"
    programs = place.root / "closing"
    programs.mkdir()
    (programs / "sbatch").write_text(CLOSES.format(sbatch=shutil.which("sbatch")))
    (programs / "sbatch").chmod(0o755)
    sweep = ("dynamo-mlperf", "sweep", file.name, "--parallel", str(2 * ARRAYS), "--json")
    closing = f'PATH={programs}:$PATH exec "$@"'
    refused = narrow.call("exec", "sh", "-c", closing, "sh", *sweep, "--run-dir", root.name, "--no-wait", check=False)
    assert refused.returncode == 3, refused.stderr
    ids = [point["job_id"] for point in sent(root)]
    array = ids[0].partition("_")[0]
    assert ids == [f"{array}_{index}" for index in range(LARGEST)]
    told = " ".join(refused.stderr.split())
    assert "Required partition not available" in told
    assert f"5 jobs were sent: {', '.join(ids)}" in told
    assert f"end them: scancel {array}; or go on later: {' '.join(sweep[:-1])} --resume {root.name}" in told

    narrow.login("scontrol", "update", "PartitionName=main", "State=UP")
    done = narrow.call("exec", *sweep, "--resume", root.name, check=False, timeout_s=900)
    summary = json.loads(done.stdout)
    assert done.returncode == (5 if summary["winner"] is None and machine_is_busy() else 0), done.stderr
    points = sent(root)
    assert sorted(point["split"] for point in points) == sorted(SPLITS), "all of them, none twice"
    assert len({point["job_id"].partition("_")[0] for point in points}) == ARRAYS
    ran = jobs(narrow)
    assert len(ran) == len(SPLITS)
    assert max(int(job["ArrayTaskId"]) for job in ran) < LARGEST
    assert {f"{job['ArrayJobId']}_{job['ArrayTaskId']}" for job in ran} == {point["job_id"] for point in points}
    assert summary["state"] == "finished", summary
    assert sorted(one["split"] for one in summary["splits"]) == sorted(SPLITS)
    if not machine_is_busy():
        assert {(job["JobState"], job["ExitCode"]) for job in ran} == {("COMPLETED", "0:0")}

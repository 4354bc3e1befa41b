"""Values of a command on a node of a real Slurm: byte for byte, and nothing of the job's own environment (R42)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_devcluster import REPOSITORY, Cluster

pytestmark = pytest.mark.slurm
END_S = 60.0
NASTY = 'a,b "c" \'d\' $HOME `id` \\ {"x": [1, 2]}\n\ttwo=3;#%&*!é'
ENGINE = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), sorted(os.sched_getaffinity(0))]))"
JOB = """
import os, sys, time
from pathlib import Path
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
value, out = sys.argv[1], Path(sys.argv[2])
allocation = SlurmAllocation(SlurmJob.current(os.environ))
command = Command("decode-0", (sys.executable, "-c", ENGINE, value), {"PATH": "/usr/bin:/bin", "ODD": value},
                  out / "step.log", node=1, output=out / "step.json")
child = allocation.start(command)
while child.poll() is None:
    time.sleep(0.02)
(out / "done").write_text(f"{child.poll()} {sorted(os.sched_getaffinity(0))}")
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    made = Cluster(REPOSITORY / f".devcluster-steps-{os.getpid()}", NODES="2")
    try:
        made.ask("up")
        yield made
    finally:
        made.remove()


def test_a_step_gets_its_values_and_every_core_and_nothing_of_the_jobs_environment(two_nodes: Cluster) -> None:
    program = two_nodes.shared / "job.py"
    program.write_text(f"ENGINE = {ENGINE!r}\n{JOB}")
    start = two_nodes.shared / "start.json"
    start.write_text(json.dumps([sys.executable, str(program), NASTY, str(two_nodes.shared)]))
    launcher = f"{sys.executable} -c 'import json, os; a = json.load(open(\"{start}\")); os.execv(a[0], a)'"
    two_nodes.submit(
        f"export PYTHONPATH={REPOSITORY} HF_TOKEN=hf_x LD_LIBRARY_PATH=/host SLURM_CPU_BIND=mask_cpu:0x1\n{launcher}",
        "--nodes=2",
    )
    done = two_nodes.shared / "done"
    deadline = time.monotonic() + END_S
    while not done.exists():
        assert time.monotonic() < deadline, [path.read_text() for path in two_nodes.shared.glob("*.out")]
        time.sleep(0.1)
    status, _, cores = done.read_text().partition(" ")
    step: tuple[list[str], dict[str, Any], list[int]] = json.loads((two_nodes.shared / "step.json").read_text())
    argv, environment, affinity = step
    assert status == "0", Path(two_nodes.shared / "step.log").read_text()
    assert argv == [NASTY]
    assert environment.pop("ODD") == NASTY
    assert environment.pop("PATH") == "/usr/bin:/bin"
    assert environment.keys() <= {"LC_CTYPE"}  # Python's own, where no locale is set
    assert str(affinity) == cores

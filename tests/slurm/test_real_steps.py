"""Values of a command on a node of a real Slurm: byte for byte, and nothing of the job's own environment (R42)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.process.command import RUN_VARIABLE
from tests.test_devcluster import DEVCLUSTER, REPOSITORY, Cluster

pytestmark = pytest.mark.slurm
END_S = 240.0
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
(out / "done.part").write_text(f"{child.poll()} {sorted(os.sched_getaffinity(0))}")
(out / "done.part").rename(out / "done")
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    made = Cluster(REPOSITORY / f".devcluster-steps-{os.getpid()}", NODES="2")
    try:
        made.ask("up")
        yield made
    finally:
        made.remove()


class NodeAgent:
    """The run's agent on a node, as its controller talks to it."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        argv: list[str | Path] = [
            DEVCLUSTER,
            "exec",
            "-n",
            node,
            sys.executable,
            "-m",
            "dynamo_mlperf.process.node_agent",
            cluster.shared,
        ]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=cluster.environment, cwd=REPOSITORY
        )
        assert "facts" in self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def ask(self, **asked: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def marked_nodes(two_nodes: Cluster) -> Iterator[Cluster]:
    two_nodes.environment[RUN_VARIABLE] = "lost@x@1@1@1"
    yield two_nodes
    del two_nodes.environment[RUN_VARIABLE]
    two_nodes.call("node-boot", "n1")


def test_what_runs_elsewhere_ends_when_the_first_node_loses_its_power(marked_nodes: Cluster) -> None:
    """No word of the node's end comes: its cable is dead first. Slurm, which would notice later, has no part in it."""
    agents = [NodeAgent(marked_nodes, node) for node in ("n1", "n2")]
    engine = marked_nodes.start("exec", "-n", "n2", "sleep", "600")
    try:
        port = agents[0].ask(do="open", address="10.77.0.11")["port"]
        assert agents[1].ask(do="watch", address="10.77.0.11", port=port) == {"watching": True}
        assert agents[1].ask(do="quiet") == {"done": "quiet"}
        assert engine.poll() is None
        for verb in ("link-down", "node-kill"):
            marked_nodes.ask(verb, "n1")
        assert engine.wait(END_S) == -signal.SIGKILL
        assert agents[1].answer() == {"removed": [], "left": []}
    finally:
        engine.kill()
        engine.communicate()
        for agent in agents:
            agent.close()


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

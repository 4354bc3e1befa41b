"""Agents on the nodes of a Slurm job that say nothing: the run ends, and names their nodes by host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.job import agents
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving.supervisor import Supervisor
from dynamo_mlperf.site import Site
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
from tests.fakes.slurm_programs import FakeSlurm


def test_nodes_whose_agents_say_nothing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm(tmp_path)
    slurm.script("srun", "exec sleep 600")
    slurm.answers("squeue", "")
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setattr(agents, "ANSWER_S", 0.5)
    paths = RunPaths(tmp_path / "run")
    paths.logs.mkdir(parents=True)
    hosts = tuple(f"n{number}" for number in range(1, 8))
    allocation = SlurmAllocation(SlurmJob("1", hosts, "/home/me"), Site(step_start_s=2))
    events = EventLog(paths)
    supervisor = Supervisor(allocation, paths, events, StopFlag())
    asked = agents.NodeAgents(supervisor, paths, events, "run")
    asked.start(allocation.nodes, tmp_path)
    with pytest.raises(SetupError) as raised:
        asked.facts(lambda _text: None)
    named = ", ".join(f"node {position} (n{position + 1})" for position in range(5))
    assert raised.value.what == f"the node check: no answer of {named} and 2 more after 2.5 s"
    assert "scontrol show node n1" in raised.value.action
    supervisor.stop_all()

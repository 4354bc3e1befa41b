"""Workers that answer by themselves: what listens on a worker's port must be that worker, and must answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.command import Command, inherited_environment
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog, read_events
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.plain import serve_each_itself, wait_until_answering
from dynamo_mlperf.serving.readiness import Gate
from dynamo_mlperf.serving.supervisor import Layer, Supervisor
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import parse_topology
from tests.fakes.free_ports import free_block

TOPOLOGY = parse_topology(
    """
schema: 1
name: plain
nodes: {count: 1, gpus: 2}
model: {name: tiny, weights: {path: /models/tiny}}
engine: trtllm
server: trtllm-serve
roles: {aggregated: {workers: 2}}
measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}
"""
)
BODY = json.dumps({"model": "tiny-ours", "messages": [{"role": "user", "content": "hello"}]}).encode()


class Stand:
    """Fake workers, and the gate in front of them."""

    def __init__(self, root: Path, fakes: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.logs.mkdir(parents=True)
        events = EventLog(self.paths)
        allocation = LocalAllocation(1)
        self.supervisor = Supervisor(allocation, self.paths, events, StopFlag())
        self.endpoints = Endpoints(make_plan(TOPOLOGY), allocation.nodes, free_block(40).start, "plain", "tiny-ours")
        self.gate = Gate(self.supervisor, self.endpoints, events, "trtllm", lambda _text: None, 120.0, 60.0)
        self._environment = {**inherited_environment(), "PYTHONPATH": str(fakes)}
        (root / "options.yaml").write_text('{"kv_cache_config": {"enable_block_reuse": false}}')

    def start(self, number: int, model: str) -> None:
        worker = self.endpoints.plan.workers[number]
        host, port = self.endpoints.system(worker)
        serve = (sys.executable, "-m", "tensorrt_llm.commands.serve", "serve", str(self.paths.root))
        where = ("--host", host, "--port", str(port), "--config", str(self.paths.root / "options.yaml"))
        argv = (*serve, "--served_model_name", model, *where)
        log = self.paths.log_of(worker.name)
        self.supervisor.start(Command(worker.name, argv, self._environment, log), Layer.WORKER)


@pytest.fixture
def stand(tmp_path: Path, repository: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "run", repository / "tests" / "fakes" / "engines")
    yield made
    made.supervisor.stop_all()


def test_workers_are_ready_once_each_names_the_model_of_this_job(stand: Stand) -> None:
    for number in (0, 1):
        stand.start(number, "tiny-ours")
    wait_until_answering(stand.gate)
    ready = [event["process"] for event in read_events(stand.paths) if event["event"] == "process_ready"]
    assert sorted(ready) == ["aggregated-0", "aggregated-1"]
    record = serve_each_itself(stand.gate, [BODY, BODY])
    assert record["requests"] == 4
    assert record["answers"]["aggregated-1"] == ["one two three four five six seven eight"] * 2


def test_another_jobs_server_on_a_workers_port_is_not_taken_for_it(stand: Stand) -> None:
    stand.start(0, "tiny-ours")
    stand.start(1, "tiny-theirs")
    with pytest.raises(ServingError, match="does not serve tiny-ours, so it is not aggregated-1"):
        wait_until_answering(stand.gate)


def test_a_worker_that_refuses_requests_is_named(stand: Stand) -> None:
    for number in (0, 1):
        stand.start(number, "tiny-ours")
    wait_until_answering(stand.gate)
    with pytest.raises(ServingError, match=r"aggregated-[01] did not answer a request: HTTP 404"):
        serve_each_itself(stand.gate, [BODY.replace(b"tiny-ours", b"tiny-theirs")])

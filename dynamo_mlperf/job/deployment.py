"""Phases `start` to `warmup`: from staged weights to a deployment that has proved itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.canary import serve_each, warm_up
from dynamo_mlperf.serving.dynamo import etcd_command, frontend_command, shared_environment
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.readiness import (
    Gate,
    ListingWatch,
    instance_ids,
    wait_until_healthy,
    wait_until_listed,
)
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.serving.workers import WorkerFacts, worker_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.topology.plan import Worker

STORE_S = 30.0
WARM_UP_IN_FLIGHT = 2


@dataclass
class Deployment:
    """The running deployment of a job."""

    job: Job
    endpoints: Endpoints
    model_dirs: Mapping[int, Path]
    cores: Mapping[int, int]

    @staticmethod
    def of(
        job: Job,
        nodes: Sequence[Node],
        base_port: int,
        model_dirs: Mapping[int, Path],
        facts: Mapping[int, MachineFacts],
    ) -> Deployment:
        """Bind the plan to nodes and ports."""
        namespace = job.scoped_name.replace(".", "-")
        model = f"{job.topology.model.name}-{job.nonce}"
        endpoints = Endpoints(job.plan, nodes, base_port, namespace, model)
        return Deployment(job, endpoints, model_dirs, {position: found.cores for position, found in facts.items()})

    @property
    def gate(self) -> Gate:
        """The readiness gate with this job's deadlines."""
        timeouts = self.job.topology.timeouts
        return Gate(
            self.job.supervisor,
            self.endpoints,
            self.job.events,
            self.job.topology.engine,
            self.job.progress.say,
            timeouts.ready_s,
            timeouts.request_s,
        )

    def start(self) -> None:
        """Start the store, then frontends and workers side by side.

        Raises:
            ServingError: The store does not answer.
        """
        job = self.job
        if job.topology.frontends.discovery == "etcd":
            environment = self._environment(self.endpoints.head)
            log = job.paths.log_of("etcd")
            job.supervisor.start(etcd_command(self.endpoints, job.scratch / "etcd", environment, log), Layer.STORE)
            self._wait_for_store()
        for worker in self.endpoints.plan.workers:
            job.supervisor.start(worker_command(self._worker_facts(worker)), Layer.WORKER)
        for frontend in self.endpoints.plan.frontends:
            node = self.endpoints.nodes[frontend.node]
            command = frontend_command(
                job.topology,
                self.endpoints,
                frontend,
                environment=self._environment(node),
                python=job.site.engine_python,
                log=job.paths.log_of(f"frontend-{frontend.index}"),
            )
            job.supervisor.start(command, Layer.FRONTEND)

    def wait_until_ready(self) -> dict[str, int]:
        """Until every worker is healthy and listed by every frontend; returns instance ids by worker name."""
        gate = self.gate
        wait_until_healthy(gate)
        ids = instance_ids(gate)
        wait_until_listed(gate, ids)
        self.job.supervisor.watch(ListingWatch(self.endpoints, ids).look)
        return ids

    def prove(self, ids: Mapping[str, int], bodies: Sequence[bytes]) -> dict[str, Any]:
        """Requests of its own for each worker, and the KV canary."""
        return serve_each(self.gate, ids, bodies)

    def warm_up(self, bodies: Sequence[bytes]) -> dict[str, Any]:
        """Warm-up requests, outside the timed window."""
        return warm_up(self.gate, bodies, WARM_UP_IN_FLIGHT)

    def _wait_for_store(self) -> None:
        address = (self.endpoints.head.address, int(self.endpoints.etcd_url.rsplit(":", 1)[1]))
        asked: list[Request] = []

        def look() -> bool | None:
            if not asked:
                asked.append(Request(address, "/health", timeout_s=2.0))
            response = asked[0].poll()
            if response is None:
                return None
            asked.clear()
            return True if response.ok and b"true" in response.body else None

        self.job.supervisor.wait_for(
            look, STORE_S, lambda: f"etcd does not answer at {self.endpoints.etcd_url} after {STORE_S:g} s"
        )

    def _environment(self, node: Node) -> dict[str, str]:
        shared = shared_environment(
            self.job.topology,
            self.endpoints,
            node.address,
            run_mark(self.job.run_id),
            self.job.paths.root / "discovery",
        )
        if self.job.allocation.shares_memory:
            # Engines leave sockets and files there; the run's own directory goes away with the run.
            temporary = self.job.scratch / "tmp"
            temporary.mkdir(exist_ok=True)
            shared["TMPDIR"] = str(temporary)
        return {**shared, **self.job.site.environment}

    def _worker_facts(self, worker: Worker) -> WorkerFacts:
        node = self.endpoints.node_of(worker)
        hosts = [other.host for other in self.endpoints.nodes]
        ranks_here = sum(
            1 for other in self.endpoints.plan.workers for slot in other.ranks if hosts[slot.node] == node.host
        )
        return WorkerFacts(
            self.job.topology,
            self.endpoints,
            worker,
            self.model_dirs[node.position],
            self.job.site.engine_python,
            self._environment(node),
            self.job.paths.log_of(worker.name),
            threads=max(1, self.cores[node.position] // max(1, ranks_here)),
            shares_memory=self.job.allocation.shares_memory,
        )

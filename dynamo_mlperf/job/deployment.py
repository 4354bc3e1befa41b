"""Phases `start` to `warmup`: from staged weights to a deployment that has proved itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.job.losses import Losses, tolerated
from dynamo_mlperf.job.nodes import temporary_of
from dynamo_mlperf.job.stragglers import looked_for, slow_workers
from dynamo_mlperf.process.command import AGAIN
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.canary import serve_each, warm_up
from dynamo_mlperf.serving.dynamo import etcd_command, frontend_command, shared_environment
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.plain import serve_each_itself, wait_until_answering
from dynamo_mlperf.serving.readiness import (
    Gate,
    ListingWatch,
    wait_until_healthy,
    wait_until_listed,
    wait_until_unlisted,
)
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.serving.workers import Launch, NodeFacts, WorkerFacts, launch, nodes_of
from dynamo_mlperf.site import head_cores, numa_areas
from dynamo_mlperf.topology.numa import shares_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.process.command import Command
    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.serving.endpoints import EngineProcess
    from dynamo_mlperf.topology.numa import NumaArea, Share

STORE_S = 30.0
MIGRATIONS = 3
"""How often one request may change its worker."""
WARM_UP_IN_FLIGHT = 2
SIMULATED_SHARE_FROM = 17
"""From this many simulated workers on, those of one role and node share a process: each takes 150 MB of its own."""


@dataclass
class Deployment:
    """The running deployment of a job.

    Attributes:
        whole: False while workers are restarted, and from then on where they did not come back.
    """

    job: Job
    endpoints: Endpoints
    model_dirs: Mapping[int, Path]
    machines: Mapping[int, MachineFacts]
    ids: dict[str, int] = field(default_factory=dict)
    whole: bool = True

    def __post_init__(self) -> None:
        self.losses = Losses(self.job, self.endpoints, self.ids, self._start_engine)
        self._starts: Counter[str] = Counter()
        self._listing: ListingWatch | None = None
        self._canary_bodies: Sequence[bytes] = ()
        self.shares = self._shares()

    def _shares(self) -> Mapping[tuple[str, int], Share]:
        """The cores of each worker on each of its nodes."""
        if self.job.topology.engine == "mocker":
            return {}
        plan, numbers = self.endpoints.plan, {node: facts.gpu_numbers for node, facts in self.machines.items()}
        return shares_of(plan, self._areas(), numbers, head_cores=head_cores(self.job.site, len(plan.frontends)))

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
        many = job.topology.engine == "mocker" and len(job.plan.workers) >= SIMULATED_SHARE_FROM
        shared = many and job.topology.sweep is None  # a sweep stops and starts them one by one
        endpoints = Endpoints(job.plan, nodes, base_port, namespace, model, shared)
        return Deployment(job, endpoints, model_dirs, facts)

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
            self.losses.lost,
        )

    def start_store(self) -> None:
        """Start the job's own store, where there is one; `start` waits for it."""
        job = self.job
        if self._has_store:
            environment = self._environment(self.endpoints.head)
            log = job.paths.log_of("etcd")
            job.supervisor.start(etcd_command(self.endpoints, job.scratch / "etcd", environment, log), Layer.STORE)

    def start(self) -> None:
        """Start frontends and workers side by side once the store answers.

        Raises:
            ServingError: The store does not answer.
        """
        if self._has_store:
            self._wait_for_store()
        self._start_frontends()
        for number, processes in enumerate(rounds(self.endpoints.processes, self.job.topology.timeouts.stagger_s)):
            if number:
                self.job.progress.say("waiting before the next worker of each node loads (timeouts.stagger_s)")
                self.job.supervisor.pause(self.job.topology.timeouts.stagger_s)
            self.start_engines(processes)

    def start_engines(self, processes: Sequence[EngineProcess]) -> None:
        """Start these engine processes."""
        for process in processes:
            self.losses.started(process, self._start_engine(process))

    def stop_engines(self, processes: Sequence[EngineProcess]) -> None:
        """Stop these engine processes for good and wait until no frontend lists their workers."""
        gone = {name: self.ids.pop(name) for process in processes for name in _names(process) if name in self.ids}
        children = [child for process in processes for child in self.losses.let_go(process)]
        self.job.supervisor.retire(children, Layer.WORKER)
        wait_until_unlisted(self.gate, gone)

    def follow(self, job: Job) -> None:
        """Go on with the plan of another split; the workers that both have go on as they are."""
        self.job = job
        self.endpoints = replace(self.endpoints, plan=job.plan)
        self.losses.follow(job, self.endpoints)
        if self._listing is not None:
            self._listing.endpoints = self.endpoints
        self.shares = self._shares()

    def restart(self, workers: Collection[str]) -> None:
        """Stop the named workers and start them anew where they stood; returns once they have proved themselves.

        Those that share an engine process with one of them are restarted too.

        Raises:
            ServingError: One does not come back.
        """
        processes = [one for one in self.endpoints.processes if not set(workers).isdisjoint(_names(one))]
        self.whole = False
        self.stop_engines(processes)
        self.start_engines(processes)
        self.prove(self.wait_until_ready(), self._canary_bodies)
        self.whole = True

    @property
    def _has_store(self) -> bool:
        return bool(self.endpoints.plan.frontends) and self.job.topology.frontends.discovery == "etcd"

    def _start_frontends(self) -> None:
        job = self.job
        # A request whose worker dies goes on at another one, where the job does, too.
        migration = {"DYN_MIGRATION_LIMIT": str(MIGRATIONS)} if tolerated(job.topology) else {}
        for frontend in self.endpoints.plan.frontends:
            node = self.endpoints.nodes[frontend.node]
            command = frontend_command(
                job.topology,
                self.endpoints,
                frontend,
                environment={**self._environment(node), **migration},
                python=job.site.engine_python,
                log=job.paths.log_of(f"frontend-{frontend.index}"),
            )
            job.supervisor.start(command, Layer.FRONTEND)

    def wait_until_ready(self) -> dict[str, int]:
        """Until every worker is healthy and listed by every frontend; returns instance ids by worker name."""
        gate = self.gate
        if not self.endpoints.plan.frontends:
            wait_until_answering(gate)
            return self.ids
        wait_until_healthy(gate, tuple(self.ids))
        self.ids.update(wait_until_listed(gate))
        self.job.events.add("workers_listed", workers=len(self.ids), processes=len(self.endpoints.processes))
        if self._listing is None:
            self._listing = ListingWatch(self.endpoints, self.ids)
            self.job.supervisor.watch(self._listing.look)
        return self.ids

    def prove(self, ids: Mapping[str, int], bodies: Sequence[bytes]) -> dict[str, Any]:
        """Requests of its own for each worker, and the KV canary."""
        self._canary_bodies = bodies
        return serve_each(self.gate, ids, bodies) if ids else serve_each_itself(self.gate, bodies)

    def warm_up(self, bodies: Sequence[bytes]) -> dict[str, Any]:
        """Warm-up requests, outside the timed window; then stragglers are dropped where the file says so."""
        record = warm_up(self.gate, bodies, WARM_UP_IN_FLIGHT)
        return record | self._drop_stragglers(bodies) if looked_for(self.job.topology) else record

    def _drop_stragglers(self, bodies: Sequence[bytes]) -> dict[str, Any]:
        """Stop the workers that are far slower than their peers; those that share a process go only together."""
        slow = slow_workers(self.gate, self.ids, bodies)
        found = [one for one in self.endpoints.processes if slow.keys() >= set(_names(one))]
        if found:
            self.stop_engines(found)
        for process in found:
            self.losses.dropped(process, slow[process.first.name])
        return {"stragglers": slow, "dropped": [name for process in found for name in _names(process)]}

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

        patience_s = STORE_S + self.job.supervisor.start_s
        self.job.supervisor.wait_for(
            look, patience_s, lambda: f"etcd does not answer at {self.endpoints.etcd_url} after {patience_s:g} s"
        )

    def _environment(self, node: Node) -> dict[str, str]:
        shared = shared_environment(
            self.job.topology,
            self.endpoints,
            node.address,
            run_mark(self.job.run_id),
            self.job.paths.root / "discovery",
        )
        return {**shared, **temporary_of(self.job, node.position), **self.job.site.environment}

    def tolerate_losses(self) -> None:
        """From here on a replica may be lost where the file says so; before, it is a deployment that never stood."""
        if not self.losses.open:
            self.job.supervisor.watch(self.losses.look)
        self.losses.open = True

    def _start_engine(self, process: EngineProcess) -> list[Child]:
        """Start an engine process; a worker of several nodes is one per node."""
        time = self._starts[process.name]
        self._starts[process.name] += 1
        started = self.launch_of(process)
        for path, text in started.files.items():
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, text)
        role = dict(self.job.topology.roles.present())[process.first.role]
        on_loss = None if role.on_worker_loss == "fail" else partial(self.losses.fell, process)
        commands = [_again(command, time, self.job.paths.logs) for command in started.commands]
        return [self.job.supervisor.start(command, Layer.WORKER, on_loss=on_loss) for command in commands]

    def launch_of(self, process: EngineProcess) -> Launch:
        """How the engine process starts."""
        paths = self.job.paths
        facts = WorkerFacts(
            self.job.topology,
            self.endpoints,
            process,
            tuple(self._node_facts(process, position) for position in nodes_of(self.job.topology, process.first)),
            self.job.site.engine_python,
            paths.logs,
            paths.root / "engine-files",
            shares_memory=self.job.allocation.shares_memory,
        )
        return launch(facts)

    def _areas(self) -> list[NumaArea]:
        """The site's NUMA nodes; those of a CPU deployment, whose slots are no GPUs, are shared by all its workers."""
        areas = numa_areas(self.job.site)
        return areas if self.job.topology.device == "cuda" else [replace(area, gpus=()) for area in areas]

    def _node_facts(self, process: EngineProcess, position: int) -> NodeFacts:
        node, machine = self.endpoints.nodes[position], self.machines[position]
        shares = [self.shares[key] for one in process.workers if (key := (one.name, position)) in self.shares]
        cores = tuple(sorted({core for share in shares for core in share.cores}))
        hosts = [other.host for other in self.endpoints.nodes]
        sharing = process.workers if cores else self.endpoints.plan.workers
        ranks = sum(1 for worker in sharing for slot in worker.ranks if hosts[slot.node] == node.host)
        threads = max(1, (len(cores) or machine.cores) // max(1, ranks))
        return NodeFacts(
            position, self.model_dirs[position], self._environment(node), threads, cores, tuple(machine.devices)
        )


def rounds(processes: Sequence[EngineProcess], stagger_s: float) -> list[list[EngineProcess]]:
    """What starts at once: everything, or (staggered) one engine process of each node after the other."""
    if stagger_s == 0:
        return [list(processes)]
    by_node: dict[int, list[EngineProcess]] = {}
    for process in processes:
        by_node.setdefault(process.node, []).append(process)
    return [[one for one in turn if one] for turn in zip_longest(*by_node.values())]


def _names(process: EngineProcess) -> list[str]:
    return [worker.name for worker in process.workers]


def _again(command: Command, time: int, logs: Path) -> Command:
    """The command under a name and a log of its own where it is not its first time."""
    if time == 0:
        return command
    name = f"{command.name}{AGAIN}{time}"
    return replace(command, name=name, log=logs / f"{name}.log")

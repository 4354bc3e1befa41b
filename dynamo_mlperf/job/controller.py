"""The whole of a job, phase by phase: verify, stage, start, prove, measure, judge, record, stop."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import RunPaths, write_json
from dynamo_mlperf.job.agents import NodeAgents
from dynamo_mlperf.job.context import Job, Progress, new_nonce
from dynamo_mlperf.job.deployment import Deployment
from dynamo_mlperf.job.ending import record_bug, unusable, unwritable, verdict_of, write_page, write_traceback
from dynamo_mlperf.job.engine_flags import check_flags
from dynamo_mlperf.job.nodes import bind_nodes, check_nodes, choose_base_port, start_agents
from dynamo_mlperf.job.proving import prove_itself
from dynamo_mlperf.job.versions import collect_versions
from dynamo_mlperf.job.weights import read_manifest, stage_weights
from dynamo_mlperf.job.workload import prepare_workload
from dynamo_mlperf.process.machine import (
    SHARED_MEMORY,
    make_scratch,
    own_cpu_s,
    own_start_t,
    peak_memory_bytes,
    raise_descriptor_limit,
    run_mark,
)
from dynamo_mlperf.process.ports import PortClaim
from dynamo_mlperf.process.shared_memory import SharedMemoryNotes
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog, write_verdict
from dynamo_mlperf.serving.supervisor import Supervisor
from dynamo_mlperf.topology.plan import plan_as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dynamo_mlperf.errors import ExitCode
    from dynamo_mlperf.job.held_measurement import Served
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.staging.manifest import Manifest
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology


@dataclass(frozen=True)
class JobRequest:
    """What to run, where, and where to record it.

    Attributes:
        topology_file: The file as submitted; copied into the run directory byte for byte.
        topology: Its content.
        plan: Its plan.
        site: The site's settings.
        base_dir: Relative paths in the file resolve against it.
        run_dir: The run directory; must not exist yet.
        run_id: The run's name.
        allocation: Nodes and how to start on them.
        progress: For people.
        resume: The run directory whose search or sweep goes on here; None = begun anew.
        origin: The topology with the file's own split, where a sweep has put another one in its place.
        laid_over: What the command line has laid over the file: `nodes`, and keys of top-level blocks.
        told: Takes the verdict of a run that goes on to hold its engines; None = nobody waits for it.
    """

    topology_file: Path
    topology: Topology
    plan: Plan
    site: Site
    base_dir: Path
    run_dir: Path
    run_id: str
    allocation: Allocation
    progress: Progress
    resume: Path | None = None
    origin: Topology | None = None
    laid_over: Mapping[str, Any] = field(default_factory=dict)
    told: Callable[[Verdict], None] | None = None


def run_job(request: JobRequest) -> tuple[Verdict, ExitCode]:
    """Run a job to its recorded verdict; whatever happens, everything is stopped and the run directory says so."""
    stop = StopFlag()
    stop.install()
    raise_descriptor_limit()
    try:
        job = _open(request, stop)
    except OSError as problem:
        raise unusable(request.run_dir, problem) from problem
    try:
        return _recorded(job, request.told)
    finally:
        # Last of all: its mark tells `status` and `cancel` that we live, and without it a run has to be on record.
        shutil.rmtree(job.scratch, ignore_errors=True)


def _recorded(job: Job, told: Callable[[Verdict], None] | None) -> tuple[Verdict, ExitCode]:
    """The phases up to the verdict, the stop and the report, until `job_end` is on record."""
    decided = False
    run = _Run(job)
    try:
        verdict, code = verdict_of(job, run.until_verdict)
        decided = True
        # Before the stop: a scheduler that cancels us may leave no time after it.
        try:
            write_verdict(job.paths, verdict)
        except OSError as problem:
            verdict, code = unwritable(job, problem)
        if run.served is not None and verdict.verdict != "FAILED":
            _hold(job, run.served, verdict, told)
    finally:
        if not decided:
            record_bug(job)
        with job.phase("stop"):
            _stop(job)
    with job.phase("record"):
        write_page(job)
    job.events.add("job_end", exit_code=int(code), peak_memory_bytes=peak_memory_bytes(), cpu_s=own_cpu_s())
    return verdict, code


def _hold(job: Job, served: Served, verdict: Verdict, told: Callable[[Verdict], None] | None) -> None:
    """Keep up what serves, for further measurements; the result of this run is told before that."""
    from dynamo_mlperf.job.holding import Holder

    write_page(job)
    if told is not None:
        told(verdict)
    with job.phase("hold"):
        try:
            holder = Holder(served)
        except OSError as problem:
            job.events.add("warning", what=f"engines are not held: {problem.filename}: {problem.strerror}")
            return
        try:
            holder.until_end()
        except Exception:  # noqa: BLE001 - the result of this run stands, however the hold ends
            job.progress.note(f"the hold ended by a bug; please report {write_traceback(job)}")


def _stop(job: Job) -> None:
    """Stop everything and give back what it held: processes, shared memory, ports."""
    with contextlib.suppress(OSError):
        job.shared_memory.look(now=True)
    job.agents.look()
    job.supervisor.stop_all()
    job.agents.record_end()
    removed = job.shared_memory.remove()
    if removed:
        job.events.add("shared_memory_removed", paths=removed)
    job.ports.release()


def _open(request: JobRequest, stop: StopFlag) -> Job:
    """Make the run directory; from here on everything is on record."""
    paths = RunPaths(request.run_dir)
    for directory in (paths.root, paths.logs):
        directory.mkdir(parents=True)
    shutil.copyfile(request.topology_file, paths.topology)
    _record_plan(paths, request.plan, request.allocation)
    nonce = new_nonce()
    scratch = make_scratch(nonce, run_mark(request.run_id))  # before `job_begin`: a run on record has a controller
    events = EventLog(paths)
    events.add(
        "job_begin",
        called_t=own_start_t(),
        run=request.run_id,
        place=request.allocation.describe(),
        topology=str(request.topology_file),
        **({"resumes": str(request.resume)} if request.resume else {}),
        **({"laid_over": dict(request.laid_over)} if request.laid_over else {}),
    )
    supervisor = Supervisor(request.allocation, paths, events, stop)
    notes = SharedMemoryNotes(scratch / SHARED_MEMORY)
    supervisor.watch(notes.look)
    return Job(
        request.topology,
        request.plan,
        request.site,
        request.base_dir,
        request.run_id,
        nonce,
        paths,
        request.allocation,
        supervisor,
        events,
        request.progress,
        PortClaim(),
        scratch,
        notes,
        NodeAgents(supervisor, paths, events, request.run_id),
        request.resume,
        request.origin,
    )


def _record_plan(
    paths: RunPaths, plan: Plan, allocation: Allocation, facts: Mapping[int, MachineFacts] | None = None
) -> None:
    """The plan with what its positions are bound to; `devices` names the GPUs that Slurm gave, where it says so."""
    binding: list[dict[str, Any]] = [
        {"position": node.position, "host": node.host, "address": node.address} for node in allocation.nodes
    ]
    for entry in binding if facts else ():
        devices = facts[entry["position"]].devices if facts else []
        if devices:
            entry["devices"] = devices
    write_json(paths.plan, {**plan_as_json(plan), "binding": binding})


class _Run:
    """The phases up to the verdict."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._manifest: Manifest | None = None
        self.served: Served | None = None
        """What may be held: where the file wants that, once it has measured."""

    def until_verdict(self) -> Verdict:
        job = self._job
        with job.phase("check"):
            start_agents(job)
            versions = collect_versions(job)
            write_json(job.paths.versions, versions)
            facts = check_nodes(job)
            check_flags(job, versions)
        with job.phase("stage"):
            self._manifest = read_manifest(job.topology, job.base_dir)
            model_dirs = stage_weights(job, facts)
        return self._measure(self._start(facts, model_dirs))

    def _start(self, facts: dict[int, MachineFacts], model_dirs: dict[int, Path]) -> Deployment:
        job = self._job
        with job.phase("start"):
            nodes = bind_nodes(job, facts)
            job.allocation.bind(nodes)
            _record_plan(job.paths, job.plan, job.allocation, facts)
            base_port = choose_base_port(job, facts)
            deployment = Deployment.of(job, nodes, base_port, model_dirs, facts)
            deployment.start_store()
            if job.allocation.kind == "slurm":
                job.agents.check_connections(base_port + job.plan.ports_needed - 1, nodes)
                job.agents.watch_head(nodes)
            deployment.start()
        return deployment

    def _measure(self, deployment: Deployment) -> Verdict:
        job = self._job
        # What only the end needs is imported while the engines load: the first request does not wait for it.
        from dynamo_mlperf.job.tests import run_tests

        workload = prepare_workload(job, deployment.endpoints.model)
        with job.phase("ready"):
            ids = deployment.wait_until_ready()
            up_since_s = time.monotonic()
        prove_itself(job, deployment, workload, ids)
        verdict = run_tests(job, deployment, workload)
        if job.topology.hold is not None:
            self.served = self._what_serves(deployment, workload, up_since_s)
        return verdict

    def _what_serves(self, deployment: Deployment, workload: Workload, up_since_s: float) -> Served:
        from dynamo_mlperf.job.at_rest import Rest
        from dynamo_mlperf.job.held_measurement import Served
        from dynamo_mlperf.job.rate_search import REST_REQUESTS
        from dynamo_mlperf.topology.searching import Search

        settings = self._job.topology.search or Search()
        rest = Rest(self._job, deployment, settings, workload.warm_up_bodies(REST_REQUESTS))
        return Served(self._job, deployment, rest, self._manifest, up_since_s)

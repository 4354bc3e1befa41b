"""One measurement through held engines: a run of its own, with its own directory, evidence, verdict and page.

The engines' counters are read before and after it, so that what they prove is this measurement's alone; before it they
come to rest, as between the probes of a search.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, Stopped
from dynamo_mlperf.files import RunPaths, append_json_line, read_json_lines, write_json
from dynamo_mlperf.job.ending import record_bug, unusable, unwritable, verdict_of, write_page
from dynamo_mlperf.job.endpoints_data import check_client
from dynamo_mlperf.job.held import called
from dynamo_mlperf.job.held_match import Asked, refuse_another
from dynamo_mlperf.job.probe import REST
from dynamo_mlperf.job.proving import prove_itself
from dynamo_mlperf.job.resuming import link_file
from dynamo_mlperf.job.tests import run_tests
from dynamo_mlperf.job.versions import collect_versions
from dynamo_mlperf.job.workload import check_workload, prepare_workload
from dynamo_mlperf.process.signals import stopped_by
from dynamo_mlperf.record import EventLog, write_verdict
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.site import load_site
from dynamo_mlperf.topology.capacity import scaled
from dynamo_mlperf.topology.plan import make_plan, plan_as_json
from dynamo_mlperf.topology.spec import load_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.errors import ExitCode
    from dynamo_mlperf.job.at_rest import Rest
    from dynamo_mlperf.job.context import Job, Progress
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.held import HeldRequest, Spooled
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.staging.manifest import Manifest

NODE_RECORDS = ("check-*.json", "node-*.jsonl")
"""Logs that say what the nodes are made of, and that belong to every run on them."""
_SAY_S = 1.0


@dataclass(frozen=True)
class Served:
    """What a run holds.

    Attributes:
        holder: The job whose engines these are.
        deployment: What serves.
        rest: Brings the engines to rest.
        manifest: By which their weights were loaded; None where those are used in place.
        up_t: When every worker had come up, in seconds since the epoch.
    """

    holder: Job
    deployment: Deployment
    rest: Rest
    manifest: Manifest | None
    up_t: float


class ToldProgress:
    """The progress of a measurement, for the holder's people and for whoever asked for it."""

    def __init__(self, here: Progress, asked: Spooled, name: str) -> None:
        self._here, self._asked, self._name = here, asked, name
        self._said_s = 0.0

    def phase(self, name: str) -> None:
        """A phase begins."""
        self._said_s = 0.0
        self._tell(phase=name)

    def say(self, text: str) -> None:
        """What is being waited for; told once a second, and the first time at once."""
        self._here.say(f"{self._name}: {text}")
        if time.monotonic() - self._said_s >= _SAY_S:
            self._said_s = time.monotonic()
            self._tell(say=text)

    def note(self, text: str) -> None:
        """Something that has happened."""
        self._here.note(f"{self._name}: {text}")
        self._tell(note=text)

    def cut_short(self, how: str) -> None:
        """The phase that runs ends before its end."""
        self._tell(cut_short=how)

    def _tell(self, **said: str) -> None:
        try:
            self._asked.tell(**said)
        except OSError as problem:  # a full disk is told by the evidence that does not fit either
            self._here.note(f"{self._name}: {problem.strerror}")


class HeldMeasurement:
    """A measurement that was asked for and fits; `run` makes it.

    Args:
        served: What it runs on.
        asked: Where it was asked for.
        number: 2 for the first after the holder's own.

    Raises:
        ConfigError: It cannot be made through these engines; says why.
        SetupError: The LoadGen wheel is of another round.
    """

    def __init__(self, served: Served, asked: Spooled, number: int) -> None:
        self._served, self._asked, self._number = served, asked, number
        self.request: HeldRequest = asked.read()
        self._what = self._checked()
        self._began_t = time.time()
        self._measures = False
        self._stopped = False
        self._restarted = False

    def _checked(self) -> Asked:
        request, base_dir = self.request, Path(self.request.base_dir)
        topology = load_topology(self._asked.topology, request.blocks)
        topology = topology if request.nodes is None else scaled(topology, request.nodes)
        if topology.sweep is not None:
            raise ConfigError("a sweep changes its workers, and those that are held stay", "take sweep out of the file")
        named = request.site or topology.site
        site = self._served.holder.site if named is None else load_site(named, base=base_dir)
        asked = Asked(topology, make_plan(topology), site, base_dir)
        refuse_another(self._served.deployment, self._served.manifest, asked)
        check_workload(topology, base_dir)
        check_client(topology, site)
        if Path(request.run_dir).exists():
            raise ConfigError(f"{request.run_dir} exists: results of two runs would mix", "name another --run-dir")
        return asked

    def look(self) -> None:
        """End the measurement where whoever asked for it wants that.

        Raises:
            Stopped: They do.
        """
        number = self._asked.asked_to_stop() if self._measures else None
        if number is not None:
            self._stopped = True
            raise stopped_by(number)

    def run(self) -> ExitCode:
        """Make it, to its recorded verdict; the engines stay up, whatever comes of it.

        Raises:
            SetupError: Its directory cannot be made.
        """
        try:
            job = self._open()
        except OSError as problem:
            raise unusable(Path(self.request.run_dir), problem) from problem
        decided = False
        try:
            self._measures = True
            verdict, code = verdict_of(job, lambda: self._measured(job))
            self._measures = False
            decided = True
        finally:
            if not decided:
                record_bug(job)
        return self._recorded(job, verdict, code)

    def _open(self) -> Job:
        """The run directory, and the job that records there; its processes are marked as the holder's."""
        holder, request, what = self._served.holder, self.request, self._what
        paths = RunPaths(Path(request.run_dir))
        for directory in (paths.root, paths.logs):
            directory.mkdir(parents=True)
        shutil.copyfile(self._asked.topology, paths.topology)
        binding = json.loads(holder.paths.plan.read_text())["binding"]
        write_json(paths.plan, {**plan_as_json(what.plan), "binding": binding})
        for path in (path for pattern in NODE_RECORDS for path in holder.paths.logs.glob(pattern)):
            link_file(path, paths.logs / path.name)
        laid_over = {**({} if request.nodes is None else {"nodes": request.nodes}), **request.blocks}
        events = EventLog(paths)
        events.add(
            "job_begin",
            called_t=self._began_t,
            run=request.run_id,
            place=f"engines held by {called(holder.paths.root)}",
            held_by=str(holder.paths.root),
            topology=request.file,
            **({"resumes": request.resume} if request.resume else {}),
            **({"laid_over": laid_over} if laid_over else {}),
        )
        return replace(
            holder,
            topology=what.topology,
            plan=what.plan,
            site=what.site,
            base_dir=what.base_dir,
            paths=paths,
            events=events,
            progress=ToldProgress(holder.progress, self._asked, request.run_id),
            resume=Path(request.resume) if request.resume else None,
            origin=what.topology,
        )

    def _measured(self, job: Job) -> Verdict:
        holder, deployment = self._served.holder, self._served.deployment
        with job.phase("rest"):  # a worker that is restarted for it is the holder's
            rest = self._served.rest.reach()
            write_json(job.paths.root / REST, rest)
            self._restarted = bool(rest["restarted"])
        for line in _started(deployment, holder.paths):
            append_json_line(job.paths.commands, line)
        with job.supervisor.recording(job.paths, job.events):
            deployment.follow(job)
            try:
                with job.phase("check"):
                    # What serves has the versions that it was started with; the load client may be another.
                    held = json.loads(holder.paths.versions.read_text())
                    write_json(job.paths.versions, {**collect_versions(job), **held})
                    workload = prepare_workload(job, deployment.endpoints.model)
                prove_itself(job, deployment, workload, deployment.ids)
                return run_tests(job, deployment, workload)
            finally:
                deployment.follow(holder)

    def _recorded(self, job: Job, verdict: Verdict, code: ExitCode) -> ExitCode:
        verdict = self._told(verdict)
        try:
            write_verdict(job.paths, verdict)  # first: a scheduler that ends the holder may leave no time after it
        except OSError as problem:
            verdict, code = unwritable(job, problem)
        with contextlib.suppress(Stopped):  # the holder is told so again
            job.supervisor.retire_above(Layer.FRONTEND)
        with job.phase("record"):
            write_page(job)
        job.events.add("job_end", exit_code=int(code))
        return code

    def _told(self, verdict: Verdict) -> Verdict:
        """The verdict with whose engines these were, and who was stopped where not the measurement alone was."""
        holder, up_s = called(self._served.holder.paths.root), self._began_t - self._served.up_t
        restarted = ", restarted before it to come to rest" if self._restarted else ""
        note = f"engines held by run {holder}, up for {up_s:.0f} s, measurement {self._number}{restarted}"
        first = verdict.reasons[0] if verdict.reasons else None
        if first is not None and first.check == "interrupted" and not self._stopped:
            got = f"run {holder}, which holds the engines, was {first.got}"
            verdict = replace(verdict, reasons=(replace(first, got=got), *verdict.reasons[1:]))
        return replace(verdict, notes=(note, *verdict.notes))


def _started(deployment: Deployment, paths: RunPaths) -> Iterator[dict[str, Any]]:
    """What the holder has started that serves: store, frontends, engines; not its own load client."""
    frontends = {f"frontend-{frontend.index}" for frontend in deployment.endpoints.plan.frontends}
    serving = {"etcd", *frontends, *(process.name for process in deployment.endpoints.processes)}
    for line in read_json_lines(paths.commands):
        if str(line["process"]).partition(".")[0] in serving:
            yield line

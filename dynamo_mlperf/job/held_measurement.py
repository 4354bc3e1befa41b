"""One measurement through held engines: a run of its own, with its own directory, evidence, verdict and page.

The engines' counters are read before and after it, so that what they prove is this measurement's alone; before it they
come to rest, as between the probes of a search.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, ExitCode, Stopped
from dynamo_mlperf.files import RunPaths, append_json_line, write_json
from dynamo_mlperf.job.ending import record_bug, unusable, unwritable, verdict_of, write_page
from dynamo_mlperf.job.endpoints_data import check_client
from dynamo_mlperf.job.held import called
from dynamo_mlperf.job.held_match import Asked, refuse_another
from dynamo_mlperf.job.held_records import HolderRecords, LogSlices, copy_node_records
from dynamo_mlperf.job.probe import REST
from dynamo_mlperf.job.proving import prove_itself
from dynamo_mlperf.job.rate_search import allocation_left_s
from dynamo_mlperf.job.tests import run_tests
from dynamo_mlperf.job.time_limit import refuse_without_time
from dynamo_mlperf.job.versions import collect_versions
from dynamo_mlperf.job.workload import check_workload, prepare_workload
from dynamo_mlperf.process.signals import stopped_by
from dynamo_mlperf.record import HELD_NOTE, EventLog, new_run_directory, write_verdict
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.site import load_site
from dynamo_mlperf.topology.capacity import scaled
from dynamo_mlperf.topology.plan import make_plan, plan_as_json
from dynamo_mlperf.topology.spec import load_topology

if TYPE_CHECKING:
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.job.at_rest import Rest
    from dynamo_mlperf.job.context import Job, Progress
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.held import HeldRequest, Spooled
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.staging.manifest import Manifest

_SAY_S = 1.0


@dataclass(frozen=True)
class Served:
    """What a run holds.

    Attributes:
        holder: The job whose engines these are.
        deployment: What serves.
        rest: Brings the engines to rest.
        manifest: By which their weights were loaded; None where those are used in place.
        up_since_s: When every worker had come up, on the monotonic clock.
    """

    holder: Job
    deployment: Deployment
    rest: Rest
    manifest: Manifest | None
    up_since_s: float


class ToldProgress:
    """The progress of a measurement, for the holder's people and for whoever asked for it."""

    def __init__(self, here: Progress, asked: Spooled, name: str) -> None:
        self._here, self._asked, self._name = here, asked, name
        self._said_s = 0.0
        self._heard = True

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
            if self._heard:
                self._here.note(f"{self._name}: who asked for it sees no progress any more: {problem.strerror}")
            self._heard = False


class HeldMeasurement:
    """A measurement that was asked for and fits, with its run directory; `run` makes it.

    Args:
        served: What it runs on.
        asked: Where it was asked for.
        number: 2 for the first after the holder's own.

    Raises:
        ConfigError: It cannot be made through these engines; says why.
        SetupError: No time is left for it, the LoadGen wheel is of another round, or a record or directory is at fault.
    """

    def __init__(self, served: Served, asked: Spooled, number: int) -> None:
        self._served, self._asked, self._number = served, asked, number
        self.request: HeldRequest = asked.read()
        self._what = self._checked()
        self._of_holder = HolderRecords.read(served.holder.paths, served.deployment)
        self._began_t, self._began_s = time.time(), time.monotonic()
        self._measures = False
        self._stopped = False
        self._restarted = False
        self.unwritten: SetupError | None = None
        """Why its directory holds no verdict, once it has been made."""
        self._logs = LogSlices(served.holder.paths, self._of_holder)
        try:
            self._job = self._open()
        except OSError as problem:
            raise unusable(Path(self.request.run_dir), problem) from problem

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
        left_s = None if request.resume else allocation_left_s(self._served.holder)
        if left_s is not None:
            refuse_without_time(topology, base_dir, left_s, f"run {called(self._served.holder.paths.root)}")
        new_run_directory(Path(request.run_dir))
        return asked

    def look(self) -> None:
        """End the measurement where whoever asked for it wants that; workers that are restarted come up before.

        Raises:
            Stopped: They do.
        """
        number = self._asked.asked_to_stop() if self._measures and self._served.deployment.whole else None
        if number is not None:
            self._stopped = True
            raise stopped_by(number)

    def run(self) -> ExitCode:
        """Make it, to its recorded verdict; the engines stay up, whatever comes of it."""
        job = self._job
        try:
            self._measures = True
            verdict, code = verdict_of(job, lambda: self._measured(job))
            self._measures = False
            code = self._recorded(job, self._told(verdict), code)
        except Exception:  # noqa: BLE001 - a bug that one measurement meets does not cost the engines
            self._measures = False
            record_bug(job)
            code = ExitCode.BUG
        return self._ended(job, code)

    def _open(self) -> Job:
        """The run directory, and the job that records there; its processes are marked as the holder's."""
        holder, request, what = self._served.holder, self.request, self._what
        paths = RunPaths(Path(request.run_dir))
        for directory in (paths.root, paths.logs):
            directory.mkdir(parents=True)
        shutil.copyfile(self._asked.topology, paths.topology)
        write_json(paths.plan, {**plan_as_json(what.plan), "binding": self._of_holder.binding})
        copy_node_records(holder.paths, paths)
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
        for line in self._of_holder.commands:
            append_json_line(job.paths.commands, line)
        with job.supervisor.recording(job.paths, job.events):
            deployment.follow(job)
            try:
                with job.phase("check"):
                    write_json(job.paths.versions, self._of_holder.versions_with(collect_versions(job)))
                    workload = prepare_workload(job, deployment.endpoints.model)
                prove_itself(job, deployment, workload, deployment.ids)
                return run_tests(job, deployment, workload)
            finally:
                deployment.follow(holder)

    def _recorded(self, job: Job, verdict: Verdict, code: ExitCode) -> ExitCode:
        """Write the verdict, first of all: a scheduler that ends the holder may leave no time for more."""
        try:
            write_verdict(job.paths, verdict)
        except OSError as problem:
            _verdict, code = unwritable(job, problem)
            self.unwritten = unusable(job.paths.root, problem)
        return code

    def _ended(self, job: Job, code: ExitCode) -> ExitCode:
        with contextlib.suppress(Stopped):  # the holder is told so again
            job.supervisor.retire_above(Layer.FRONTEND)
        with job.phase("record"):
            try:
                self._logs.copy(job.paths)
            except OSError as problem:
                job.events.add("warning", what=f"the engines' logs are not copied: {problem.strerror}")
            write_page(job)
        job.events.add("job_end", exit_code=int(code))
        return code

    def _told(self, verdict: Verdict) -> Verdict:
        """The verdict with whose engines these were, and who was stopped where not the measurement alone was."""
        holder, up_s = called(self._served.holder.paths.root), self._began_s - self._served.up_since_s
        restarted = ", restarted before it to come to rest" if self._restarted else ""
        note = f"{HELD_NOTE} {holder}, up for {up_s:.0f} s, measurement {self._number}{restarted}"
        first = verdict.reasons[0] if verdict.reasons else None
        if first is not None and first.check == "interrupted" and not self._stopped:
            got = f"run {holder}, which holds the engines, was {first.got}"
            verdict = replace(verdict, reasons=(replace(first, got=got), *verdict.reasons[1:]))
        return replace(verdict, notes=(note, *verdict.notes))

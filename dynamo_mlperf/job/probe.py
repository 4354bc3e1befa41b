"""A probe of the rate search inside the job: one LoadGen test in a process of its own, watched while it runs.

It is planned as a full run at its rate. What our client counts (issued, completed, over each limit) is streamed once a
second, and the search stops the process when it has seen enough: connections close, so that the engines abort what is
in flight, and nobody waits for the rest. One that runs to its end is judged like any run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import MeasureError, Stopped
from dynamo_mlperf.files import RunPaths, append_json_line, write_json
from dynamo_mlperf.job.endpoints_test import EndpointsRun, measure_endpoints
from dynamo_mlperf.job.judged import judged
from dynamo_mlperf.job.measurement import LoadTest, measure_watched
from dynamo_mlperf.job.workload import REQUESTS_FILE
from dynamo_mlperf.record import write_verdict
from dynamo_mlperf.serving.sign_of_life import lost_nodes
from dynamo_mlperf.tuning.probe_command import STREAM
from dynamo_mlperf.tuning.probes import Final, Probe, ProbeRecord, Sample
from dynamo_mlperf.tuning.stream import ProbeFault

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.at_rest import Rest
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import TransferEvidence, Verdict
    from dynamo_mlperf.tuning.conduct import Look

REST = "rest.json"
"""In a probe's folder: how the engines came to rest before it."""


@dataclass(frozen=True)
class JobProber:
    """Makes the probes of a search with the job's own deployment.

    Attributes:
        job: The job.
        deployment: What serves.
        settings: LoadGen's settings; each probe has its own rate.
        rest: Brings the engines to rest before each probe.
        label: Begins the names of the probes' processes, where a job has several searches.
    """

    job: Job
    deployment: Deployment
    settings: LoadSettings
    rest: Rest
    label: str
    _made: list[ProbeRecord] = field(default_factory=list)

    def line(self, probe: Probe) -> str:
        """Where to look when a probe does not measure."""
        return f"read logs/{self._name('probe-*')}.log; one run at {probe.rate:.5g} QPS: write it as measure.target_qps"

    def _name(self, folder: str) -> str:
        return f"{self.label}-{folder}" if self.label else folder

    def run(self, probe: Probe, folder: Path, begin_s: float, look: Look) -> ProbeRecord:
        """Make one probe: come to rest, run LoadGen, and judge it where it ran to its end.

        Raises:
            ProbeFault: It did not measure.
            ServingError: A part of the deployment died, or does not come to rest, or a signal came and a node is gone:
                the scheduler ends the job for that.
            Stopped: A signal came.
        """
        try:
            return self._run(probe, folder, begin_s, look)
        except Stopped as stopped:
            workers = [one.name for one in self.deployment.gate.workers]
            raise lost_nodes(self.deployment.endpoints, workers, stopped.what) or stopped from None

    def _run(self, probe: Probe, folder: Path, begin_s: float, look: Look) -> ProbeRecord:
        began = time.monotonic()
        write_json(folder / REST, self.rest.reach())
        job, began_t = self.job, time.time()
        settings = replace(self.settings, target_qps=probe.rate)
        told = f"{folder.name} at {probe.rate:.5g} QPS, {probe.purpose}{self._so_far(begin_s)}: "
        requests = job.paths.root / REQUESTS_FILE
        longest = benchmark(settings.benchmark, settings.round_name).max_new_tokens
        test = LoadTest(
            self._name(folder.name), folder, folder / "loadgen", settings, requests, told=told, max_tokens=longest
        )
        seen = Seen(probe, folder, begin_s, look)
        job.events.add("probe_begin", probe=test.name, target_qps=probe.rate, purpose=probe.purpose)
        try:
            if job.topology.measure.client == "endpoints":
                run = EndpointsRun(test.name, folder, settings, heading=told)
                transfer = measure_endpoints(job, self.deployment, run, seen.take)
            else:
                transfer = measure_watched(job, self.deployment, test, seen.take)
        except MeasureError as problem:
            raise ProbeFault(problem.what) from problem
        if self.deployment.losses.since(began_t):
            raise ProbeFault(f"a worker was lost meanwhile: {self.deployment.losses.found[-1].text()}")
        record = seen.record
        if record.refused:  # requests fail, too, where a signal has ended the engines before it came to us
            job.supervisor.await_signal()
        if record.ended == "running":
            record = replace(record, ended="complete", final=self._final(folder, settings, transfer, began_t))
        record = replace(record, cost_s=round(time.monotonic() - began, 3))
        job.events.add("probe_end", probe=test.name, ended=record.ended, seconds=record.seconds)
        self._made.append(record)
        return record

    @property
    def last_qps(self) -> float | None:
        """The rate of the last probe made here; None before the first."""
        return self._made[-1].rate if self._made else None

    def _so_far(self, spent_s: float) -> str:
        """The best rate so far and the time spent, for people."""
        best = max((each.rate for each in self._made if each.final and each.final.valid), default=None)
        found = f"best so far {best:.5g}, " if best is not None else ""
        return f" ({found}{spent_s:.0f} s spent)" if self._made else ""

    def _final(self, folder: Path, settings: LoadSettings, transfer: TransferEvidence | None, began_t: float) -> Final:
        """The verdict of a probe that ran to its end, as the search takes it."""
        verdict = judged(self.job, self.deployment, folder, settings, transfer, since_t=began_t)
        write_verdict(RunPaths(folder), verdict)
        if verdict.verdict == "FAILED" or verdict.duration_s is None:
            why = verdict.reasons[0].got if verdict.reasons else "nothing was measured"
            raise ProbeFault(f"LoadGen's logs tell nothing: {why}")
        return final_of(verdict)


def final_of(verdict: Verdict) -> Final:
    """The last line of a probe, from its verdict."""
    latencies = verdict.latency_p99_ms
    return Final(
        verdict.verdict == "VALID",
        verdict.requests,
        {name: latency.over_limit for name, latency in latencies.items()},
        verdict.duration_s or 0.0,
        {name: round(latency.at_percentile, 3) for name, latency in latencies.items()},
        tuple(reason.text() for reason in verdict.reasons),
    )


class Seen:
    """What a running probe has told so far, written to its stream as it comes."""

    def __init__(self, probe: Probe, folder: Path, begin_s: float, look: Look) -> None:
        self._stream, self._look = folder / STREAM, look
        self._samples: list[Sample] = []
        self.record = ProbeRecord(probe.rate, probe.planned_s, (), "running", None, begin_s, purpose=probe.purpose)

    def take(self, progress: dict[str, Any]) -> bool:
        """Take in the client's progress; whether the search has seen enough."""
        sample = Sample(
            progress["t_s"],
            progress["issued"],
            progress["completed"],
            dict(progress["over"]),
            dict(progress["over_in_flight"]),
            dict(progress["known_in_flight"]),
        )
        if self._samples and sample.t_s <= self._samples[-1].t_s:
            return False
        self._samples.append(sample)
        append_json_line(
            self._stream,
            {
                "t_s": sample.t_s,
                "issued": sample.issued,
                "completed": sample.completed,
                "over_limit": sample.over,
                "over_in_flight": sample.over_in_flight,
                "known_in_flight": sample.known_in_flight,
                "generated": progress.get("generated_queries"),
                "failed": progress["failed"],
            },
        )
        generated = progress.get("generated_queries")
        self.record = replace(self.record, samples=tuple(self._samples), generated=generated)
        failed = progress["failed"] - progress["failed_late"]
        if failed:
            why = f"{failed} failed requests: {progress['first_failure']}"
            self.record = replace(self.record, ended="not valid", refused=why)
            return True
        verdict = self._look(self.record)
        if verdict.stop is None:
            return False
        self.record = replace(self.record, ended=verdict.stop)
        return True

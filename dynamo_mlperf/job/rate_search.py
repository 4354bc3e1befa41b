"""The rate search inside the job: probes against the running deployment until the highest rate that holds is confirmed.

What to probe next and when a probe has told enough is decided by `tuning/` from the records alone; here the probes are
made, the budget is what the allocation leaves, and the confirming probe becomes the run's result.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import write_json
from dynamo_mlperf.job.at_rest import Rest
from dynamo_mlperf.job.predictions import predicted_qps
from dynamo_mlperf.job.probe import JobProber
from dynamo_mlperf.job.result import judge_probe, link_result
from dynamo_mlperf.job.resuming import KEPT, SEARCH_DIR, adopt, identity
from dynamo_mlperf.job.side_phase import side_tests_s
from dynamo_mlperf.load.user_conf import expected_queries
from dynamo_mlperf.record import Reason, Verdict
from dynamo_mlperf.slurm.allocation import SlurmAllocation
from dynamo_mlperf.slurm.deadline import end_time
from dynamo_mlperf.topology.searching import Search
from dynamo_mlperf.tuning.conduct import Conduct, answer_json
from dynamo_mlperf.tuning.prediction import FILE_NAME as PREDICTION
from dynamo_mlperf.tuning.probes import Answer, SearchSettings
from dynamo_mlperf.tuning.records import RecordDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.probes import History, NoAnswer

CLOSING_S = 60.0
"""Kept of the allocation's time for what comes after the last probe: judging, stopping, the report."""
OVERHEAD_S = 10.0
"""What a probe is expected to cost beyond its run: coming to rest, LoadGen's start, its logs."""
ENDPOINTS_OVERHEAD_S = 30.0
"""The same with endpoints, which reads the whole data set before each run and counts tokens after it."""
OFFLINE_SLACK = 1.1
"""LoadGen makes an Offline query this much larger than rate times duration (its test settings' source), and endpoints
every run."""
REST_REQUESTS = 8


@dataclass(frozen=True)
class SearchOutcome:
    """How a search ended.

    Attributes:
        step: Its answer, or why there is none.
        history: All probes that count.
        answer: `search/answer.json`.
        verdict: Of the confirming run; None without an answer.
        directory: Where it is recorded.
        confirmed: The folder of the confirming probe; None without an answer.
    """

    step: Answer | NoAnswer
    history: History
    answer: dict[str, Any]
    verdict: Verdict | None
    directory: Path
    confirmed: Path | None = None


def search_settings(topology: Topology, load: LoadSettings, predicted_qps: float | None = None) -> SearchSettings:
    """What is searched, from the file's `search:` (or all defaults) and the load client's settings.

    Args:
        topology: The file.
        load: Settings of one run; its rate does not matter.
        predicted_qps: A prediction, where the file names neither `start` nor a rate.
    """
    block = topology.search or Search()
    offline, endpoints = load.loadgen_scenario == "Offline", topology.measure.client == "endpoints"
    whole = expected_queries(replace(load, target_qps=1e-9))
    start = block.start or predicted_qps or topology.measure.target_qps
    if start is not None:  # an estimate may be outside of the range
        start = min(max(start, block.low or 0.0), block.high or math.inf)
    return SearchSettings(
        duration_s=load.min_duration_ms / 1000.0,
        percentile=load.percentile,
        tolerance=block.tolerance,
        low=block.low,
        high=block.high,
        start=start,
        time_budget_s=block.time_budget_s,
        overhead_s=ENDPOINTS_OVERHEAD_S if endpoints else OVERHEAD_S,
        rule="endpoints" if endpoints else "loadgen",
        data_set=load.performance_sample_count if load.sample_concatenate_permutation else 1,
        at_least=whole,
        slack=OFFLINE_SLACK if offline or endpoints else 1.0,
    )


def search_rate(
    job: Job,
    deployment: Deployment,
    workload: Workload,
    settings: SearchSettings,
    directory: Path,
    *,
    label: str = "",
) -> SearchOutcome:
    """Search to the end: an answer with its confirming run, or why there is none.

    Args:
        job: The job; where it resumes another run, the records of the same directory there are taken over.
        deployment: What serves, warmed up.
        workload: The requests and LoadGen's settings; the rate in them does not matter.
        settings: What is searched.
        directory: Takes the records; below the run directory.
        label: Begins the names of the probes' processes, and what people are told, where a job has several searches.

    Raises:
        ConfigError: The records to be resumed are of another search.
        MeasureError: A probe did not measure, and its repeat did not either.
        ServingError: Something of the deployment died meanwhile.
        Stopped: A signal asked to stop; everything so far is recorded.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if job.resume is not None:
        adopt(job.resume / directory.relative_to(job.paths.root), directory)
    records = RecordDirectory(directory, identity(job.topology, workload.settings))
    write_json(directory / KEPT, asdict(settings))
    offline = workload.settings.loadgen_scenario == "Offline"
    block = job.topology.search or Search()
    rest = Rest(job, deployment, block, workload.warm_up_bodies(REST_REQUESTS))
    prober = JobProber(job, deployment, workload.settings, rest, label)

    def tell(line: str) -> None:
        job.progress.note(f"{label}: {line}" if label else line)
        job.events.add("search", what=line, **({"label": label} if label else {}))

    def left_s() -> float | None:
        left = allocation_left_s(job)
        rate = prober.last_qps or settings.start
        after_s = side_tests_s(job.topology, replace(workload.settings, target_qps=rate)) if rate else 0.0
        return None if left is None else left - after_s

    conduct = Conduct(settings, offline, prober, records, job.supervisor.tick, tell, left_s)
    try:
        step, history = conduct.search()
        answer = answer_json(step, history, settings, offline=offline)
        answer["confirmed_in"] = records.folder_of(step.probe).name if isinstance(step, Answer) else None
        records.keep_answer(answer)
    finally:
        records.close()
    job.events.add("search_end", directory=str(directory.relative_to(job.paths.root)), answer_qps=answer["answer_qps"])
    if not isinstance(step, Answer):
        return SearchOutcome(step, history, answer, None, directory)
    confirmed = directory / str(answer["confirmed_in"])
    verdict = judge_probe(job, deployment, confirmed, replace(workload.settings, target_qps=step.rate))
    return SearchOutcome(step, history, answer, verdict, directory, confirmed)


def make_result(job: Job, deployment: Deployment, workload: Workload, outcome: SearchOutcome) -> Verdict:
    """The run's verdict from a search: its confirming run becomes the run's own, or the reason why there is none."""
    step = outcome.step
    cost = outcome.answer["engine_seconds"] / outcome.answer["full_run_s"]
    told = f"rate search: {step.reason}; {len(outcome.history)} probes, {cost:.2f} full runs of engine time"
    if isinstance(step, Answer):
        folder = outcome.confirmed or outcome.directory
        verdict = link_result(job, deployment, folder, replace(workload.settings, target_qps=step.rate))
        return replace(verdict, notes=(*verdict.notes, told))
    got = f"none ({step.kind}): {step.reason}"
    reason = Reason("rate search", "a rate at which a full run is VALID", got, step.action)
    load = workload.settings
    root, model = str(job.paths.root), job.topology.model.name
    return Verdict(
        "INVALID", job.result_class, load.benchmark, load.scenario, root, (reason,), notes=(told,), model=model
    )


def searched_test(job: Job, deployment: Deployment, workload: Workload) -> tuple[Verdict, Workload]:
    """The performance test of a file with `search:`; beside its verdict the workload at the rate that was found."""
    block = job.topology.search or Search()
    settings = search_settings(job.topology, workload.settings, predicted_qps(job.topology, job.base_dir))
    if block.prediction is not None:  # the report shows it beside what was measured
        shutil.copyfile(job.base_dir / block.prediction, job.paths.root / PREDICTION)
    with job.phase("search"):
        outcome = search_rate(job, deployment, workload, settings, job.paths.root / SEARCH_DIR)
    with job.phase("judge"):
        verdict = make_result(job, deployment, workload, outcome)
    if not isinstance(outcome.step, Answer):
        return verdict, workload
    return verdict, replace(workload, settings=replace(workload.settings, target_qps=outcome.step.rate))


def allocation_left_s(job: Job) -> float | None:
    """Seconds of the allocation that are left for probes; None where it has no end."""
    allocation = job.allocation
    if not isinstance(allocation, SlurmAllocation):
        return None
    end_t = end_time(allocation.job.job_id, os.environ)
    return None if end_t is None else end_t - time.time() - CLOSING_S

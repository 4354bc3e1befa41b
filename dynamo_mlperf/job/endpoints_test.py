"""One run of MLCommons endpoints: its own process, followed by its event log, judged; in a job or at any URL."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import write_atomic, write_json
from dynamo_mlperf.job.counted import CountedWindow
from dynamo_mlperf.job.endpoints_data import ClientPlace, data_digest, plan_test, prepare_data
from dynamo_mlperf.job.endpoints_process import EndpointsProcess
from dynamo_mlperf.job.judged import judged
from dynamo_mlperf.job.workload import read_data_set
from dynamo_mlperf.load.endpoints_accuracy import judge_accuracy
from dynamo_mlperf.load.endpoints_config import config, config_text
from dynamo_mlperf.load.endpoints_events import EVENTS, EventBook, read_events
from dynamo_mlperf.load.endpoints_program import check_config, recorded_version
from dynamo_mlperf.load.endpoints_run import ACCOUNT, QUERIES, RECORD, REPORT_DIR, REQUEST, EndpointsRecord
from dynamo_mlperf.load.side_results import ACCURACY, SideResult
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.endpoints_process import Watch
    from dynamo_mlperf.load.endpoints_config import EndpointsTest
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass, TransferEvidence, Verdict


@dataclass(frozen=True)
class EndpointsRun:
    """One run of endpoints.

    Attributes:
        name: Of its process and log.
        directory: Takes `endpoints.json`, `endpoints/`, `metrics/` and `evidence.json`.
        settings: The rules in force.
        accuracy: Whether its accuracy phase follows.
        heading: Begins what people are told.
    """

    name: str
    directory: Path
    settings: LoadSettings
    accuracy: bool = False
    heading: str = ""

    @staticmethod
    def of_run(job: Job, settings: LoadSettings) -> EndpointsRun:
        """The performance test whose result is the job's."""
        return EndpointsRun("endpoints", job.paths.root, settings, job.topology.measure.accuracy)

    @property
    def report_dir(self) -> Path:
        """Where endpoints writes."""
        return self.directory / REPORT_DIR


def endpoints_test(job: Job, deployment: Deployment, settings: LoadSettings) -> Verdict:
    """The performance test at the file's rate, its accuracy phase where the file asks for one, and the verdict.

    Raises:
        MeasureError: It could not measure; says why.
        ServingError: Something of the deployment died meanwhile.
    """
    run = EndpointsRun.of_run(job, settings)
    with job.phase("measure"):
        transfer = measure_endpoints(job, deployment, run)
    with job.phase("judge"):
        verdict = judged(job, deployment, run.directory, settings, transfer)
        return _with_accuracy(job, run, verdict) if run.accuracy else verdict


def _with_accuracy(job: Job, run: EndpointsRun, verdict: Verdict) -> Verdict:
    """The verdict with that of the accuracy phase beside it."""
    result = accuracy_of(run, job.result_class)
    job.progress.say(result.line())
    job.events.add("side_test", test=result.test, verdict=result.verdict)
    return replace(verdict, tests={result.test: result.verdict})


def accuracy_of(run: EndpointsRun, result_class: ResultClass) -> SideResult:
    """The result of the accuracy phase; where it measured nothing, the performance phase was measured all the same."""
    try:
        return judge_accuracy(run.report_dir, run.settings, result_class)
    except MeasureError as problem:
        reason = Reason(ACCURACY, "a measurement", problem.what, problem.action or "see logs/")
        return SideResult(ACCURACY, "FAILED", result_class, run.settings, (reason,))


def measure_endpoints(
    job: Job, deployment: Deployment, run: EndpointsRun, watch: Watch | None = None
) -> TransferEvidence | None:
    """Run endpoints once and read the engines' counters before and after.

    Args:
        job: The job.
        deployment: What serves.
        run: What to run.
        watch: Takes what was seen so far, a few times a second; True ends the run early.

    Returns:
        What the counters prove; None where `watch` ended it early.

    Raises:
        MeasureError: It could not measure; says why.
        ServingError: Something died meanwhile.
    """
    place = ClientPlace.of_job(job)
    samples, directory = read_data_set(job.topology, job.base_dir), job.topology.resolve(job.base_dir).dataset
    data = prepare_data(place, samples, run.settings)
    test = plan_test(job, deployment, run.settings, data, run.report_dir, accuracy=run.accuracy)
    record = prepare_run(place, run, test, data_digest(run.settings.benchmark, directory or Path()))
    window = CountedWindow(job, deployment, run.directory)
    book = run_endpoints(place, run, record, watch)
    return None if book is None else window.close(book.sent)


def prepare_run(place: ClientPlace, run: EndpointsRun, test: EndpointsTest, digest: str) -> EndpointsRecord:
    """Write what endpoints is asked for, have it check that, and put it on record.

    Args:
        place: Where it runs; the release is the one in its `versions.json`.
        run: What to run.
        test: What endpoints is told.
        digest: Of the data set.

    Raises:
        ConfigError: It refuses its configuration.
    """
    version = recorded_version(json.loads(place.paths.versions.read_text()))
    run.report_dir.mkdir(parents=True)
    request = run.directory / REQUEST
    write_atomic(request, config_text(test))
    if run.directory == place.paths.root:  # probes of a search differ from each other in their rate alone
        check_config(place.python, request, run.settings.round_name)
    record = EndpointsRecord(run.settings, config(test), version.version, version.commit, digest, run.accuracy)
    write_json(run.directory / RECORD, record.to_json())
    return record


def run_endpoints(
    place: ClientPlace, run: EndpointsRun, record: EndpointsRecord, watch: Watch | None = None
) -> EventBook | None:
    """Run what was prepared; what it did, with one line a query beside it, or None where `watch` ended it early.

    Raises:
        MeasureError: It could not measure; says why.
        Stopped: A signal came.
    """
    mode, request = "both" if run.accuracy else "perf", run.directory / REQUEST
    process = EndpointsProcess(place, run.name, run.settings, request, mode=mode, watch=watch, heading=run.heading)
    if not process.follow():
        return None
    book = read_events(run.report_dir / EVENTS, run.settings.limits_ms)
    _keep_account(run, record, book)
    return book


def _keep_account(run: EndpointsRun, record: EndpointsRecord, book: EventBook) -> None:
    """One line a query, and the client's own account, beside what endpoints wrote."""
    path = run.report_dir / "sample_idx_map.json"
    try:
        sample_of = json.loads(path.read_text())["performance"]
        write_atomic(run.report_dir / QUERIES, book.queries_csv(sample_of))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeasureError(f"{path} of endpoints cannot be read: {error}", "run the measurement again") from error
    account = {
        "client": "endpoints",
        "version": record.version,
        "commit": record.commit or None,
        "requests": book.issued,
        "sent": book.sent,
        "failed": [{"order": place, "error": error} for place, error in sorted(book.errors.items())],
    }
    write_json(run.report_dir / ACCOUNT, account)

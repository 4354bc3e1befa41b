"""`measure --client endpoints`: one run of endpoints against an endpoint that is up already."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from dynamo_mlperf.files import write_json
from dynamo_mlperf.job.endpoints_data import data_digest, prepare_data, with_tokenizer
from dynamo_mlperf.job.endpoints_test import EndpointsRun, accuracy_of, prepare_run, run_endpoints
from dynamo_mlperf.job.in_flight import client_processes, offline_in_flight
from dynamo_mlperf.job.workload import load_samples
from dynamo_mlperf.load.endpoints_config import EndpointsTest, worker_count
from dynamo_mlperf.load.endpoints_program import check_version, installed_version
from dynamo_mlperf.load.endpoints_run import judge_run

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.endpoint import Endpoint
    from dynamo_mlperf.job.endpoints_data import ClientPlace
    from dynamo_mlperf.load.endpoints_run import EndpointsRecord
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import EventLog, ResultClass, Verdict


@dataclasses.dataclass(frozen=True)
class UrlTest:
    """One run of endpoints at a URL.

    Attributes:
        place: Where it runs.
        endpoint: What it is sent to.
        settings: The rules in force.
        data_set: Directory of the data set.
        result_class: What the result may be called.
        tokenizer: The model's directory; None where nobody named one.
        accuracy: Whether its accuracy phase follows.
        warmup_requests: Requests of its own warm-up; 0 leaves it out.
    """

    place: ClientPlace
    endpoint: Endpoint
    settings: LoadSettings
    data_set: Path
    result_class: ResultClass
    tokenizer: Path | None
    accuracy: bool
    warmup_requests: int

    @property
    def run(self) -> EndpointsRun:
        """The run, whose directory is the run directory."""
        return EndpointsRun("endpoints", self.place.paths.root, self.settings, self.accuracy)

    def prepare(self, events: EventLog) -> EndpointsRecord:
        """Check the release, write data set and configuration.

        Raises:
            SetupError: It is not what the round takes.
            ConfigError: The model's tokenizer is needed, or endpoints refuses its configuration.
        """
        settings, place, run = self.settings, self.place, self.run
        version = installed_version(place.python, settings.round_name)
        if unknown := check_version(version, settings.round_name):
            events.add("warning", what=f"not checked: {unknown}")
        versions = json.loads(place.paths.versions.read_text())
        write_json(place.paths.versions, {**versions, **version.as_versions()})
        entrances = self.endpoint.entrances
        test = EndpointsTest(
            settings=settings,
            frontends=entrances,
            model=self.endpoint.model,
            tokenizer=with_tokenizer(self.tokenizer),
            data=prepare_data(place, load_samples(settings.benchmark, self.data_set), settings),
            warmup_requests=self.warmup_requests,
            workers=worker_count(client_processes(settings), len(entrances)),
            in_flight=offline_in_flight(0),
            accuracy=self.accuracy,
            pin_cores=False,
            report_dir=str(run.report_dir.relative_to(place.paths.root)),
            rehearsal=self.result_class == "rehearsal",
        )
        return prepare_run(place, run, test, data_digest(settings.benchmark, self.data_set))

    def measure(self, record: EndpointsRecord) -> None:
        """Run what was prepared.

        Raises:
            MeasureError: It could not measure; says why.
        """
        run_endpoints(self.place, self.run, record)

    def judge(self, record: EndpointsRecord) -> Verdict:
        """The verdict, that of the accuracy phase beside it."""
        root = self.place.paths.root
        verdict = judge_run(self.run.report_dir, record, None, self.result_class, str(root))
        if not self.accuracy or verdict.verdict == "FAILED":
            return verdict
        result = accuracy_of(self.run, self.result_class)
        self.place.progress.say(result.line())
        return dataclasses.replace(verdict, tests={result.test: result.verdict})

"""What a run of endpoints needs before it starts: the program, the data set in its form, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE
from dynamo_mlperf.benchmark.rules import WITH_IMAGES
from dynamo_mlperf.errors import ConfigError, MeasureError, SetupError
from dynamo_mlperf.files import digest_file
from dynamo_mlperf.job.in_flight import client_processes, engine_seats, offline_in_flight
from dynamo_mlperf.load.endpoints_config import EndpointsTest, worker_count
from dynamo_mlperf.load.endpoints_data import PARQUET_PROGRAM, data_of, write_rows
from dynamo_mlperf.load.endpoints_program import (
    check_version,
    installed_version,
    program_environment,
    python_of,
)
from dynamo_mlperf.process.command import RUN_VARIABLE, Command
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.job.context import Job, Progress
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.load.endpoints_config import EndpointsData
    from dynamo_mlperf.load.endpoints_data import DataSet
    from dynamo_mlperf.load.endpoints_program import EndpointsVersion
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.serving.supervisor import Supervisor
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.spec import Topology

DATA_S = 3600.0
"""Longest time that the data set may take to be brought into endpoints' form."""
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def check_client(topology: Topology, site: Site, *, from_afar: bool = False) -> str | None:
    """Refuse, before a job, a file whose client is not there.

    Args:
        topology: The file.
        site: Names the environment of endpoints.
        from_afar: Whether the job runs elsewhere, where that environment may be seen though it is not from here.

    Returns:
        What could not be checked, for people; None where all was, or where the client is LoadGen.

    Raises:
        ConfigError: The site names no such environment; says how to get it. Or accuracy is asked for with a search.
        SetupError: It holds another endpoints than the round takes, or none.
    """
    if topology.measure.client != "endpoints":
        return None
    if topology.measure.accuracy and (topology.search is not None or topology.sweep is not None):
        raise ConfigError(
            "measure.accuracy with client: endpoints is a phase of one run, and this file searches for its rate",
            "search without accuracy: true, then run once with target_qps and accuracy: true",
        )
    named, round_name = site.endpoints_python, topology.measure.round
    if from_afar and named is not None and not Path(named).exists():
        return f"endpoints_python: {named} is not seen from here; the job checks it"
    python = python_of(named, round_name)
    return check_version(installed_version(python, round_name), round_name) or None


def endpoints_version(job: Job) -> tuple[EndpointsVersion, str]:
    """Which endpoints the job uses, checked, and what could not be checked (empty where all was).

    Raises:
        ConfigError: The site names none.
        SetupError: It is not what the round takes.
    """
    round_name = job.topology.measure.round
    found = installed_version(python_of(job.site.endpoints_python, round_name), round_name)
    return found, check_version(found, round_name)


@dataclass(frozen=True)
class ClientPlace:
    """Where endpoints runs, and who watches it.

    Attributes:
        python: Python of its environment.
        supervisor: Starts it.
        allocation: What it is started on.
        paths: The run directory; its root is the working directory.
        progress: For people.
        run_id: Marks its processes as the run's.
        node: Node position.
    """

    python: str
    supervisor: Supervisor
    allocation: Allocation
    paths: RunPaths
    progress: Progress
    run_id: str
    node: int = 0

    @staticmethod
    def of_job(job: Job) -> ClientPlace:
        """The head node of the job.

        Raises:
            ConfigError: The site names no environment of endpoints.
        """
        python = python_of(job.site.endpoints_python, job.topology.measure.round)
        return ClientPlace(
            python, job.supervisor, job.allocation, job.paths, job.progress, job.run_id, job.plan.head_node
        )

    def environment(self) -> dict[str, str]:
        """What endpoints and its processes get: no secret, no hub, and the run's mark."""
        return {**program_environment(), RUN_VARIABLE: run_mark(self.run_id)}


def prepare_data(place: ClientPlace, samples: DataSet, settings: LoadSettings) -> EndpointsData:
    """Bring the data set into endpoints' form, once a run directory.

    Raises:
        SetupError: Its Python cannot write the file; its log says why.
        MeasureError: The disk is full.
    """
    data = data_of(samples, settings)
    out = place.paths.root / data.file
    if out.exists():
        return data
    rows = out.with_suffix(".rows.jsonl")
    try:
        write_rows(samples, settings.performance_sample_count, rows)
    except OSError as problem:
        raise MeasureError(f"{rows}: {problem.strerror}", "free disk space where runs/ lies") from problem
    command = Command(
        "endpoints-data",
        (place.python, str(PARQUET_PROGRAM), str(rows), str(out)),
        place.environment(),
        place.paths.log_of("endpoints-data"),
        node=place.node,
    )
    task = place.supervisor.start(command, Layer.TASK, may_end=True)

    def told(_left: int) -> None:
        place.progress.say("the data set is written")

    place.supervisor.wait_tasks([task], DATA_S, "writing the data set for endpoints", told)
    rows.unlink()
    if not out.exists():
        raise SetupError(f"{place.python} wrote no {out}", f"read {command.log}")
    return data


def data_digest(benchmark: str, directory: Path) -> str:
    """BLAKE3 of the file that lists the samples."""
    return digest_file(directory / (CATALOGUE_FILE if benchmark == WITH_IMAGES else PROMPTS_FILE))


def plan_test(
    job: Job, deployment: Deployment, settings: LoadSettings, data: EndpointsData, report_dir: Path, *, accuracy: bool
) -> EndpointsTest:
    """What endpoints is told of one run.

    Raises:
        ConfigError: The model has no tokenizer though tokens are judged.
    """
    seats, entrances = engine_seats(job.topology), deployment.endpoints.entrances
    return EndpointsTest(
        settings=settings,
        frontends=entrances,
        model=deployment.endpoints.model,
        tokenizer=with_tokenizer(
            deployment.model_dirs.get(job.plan.head_node), job.topology.resolve(job.base_dir).weights
        ),
        data=data,
        warmup_requests=job.topology.timeouts.warmup_requests,
        workers=worker_count(client_processes(settings, seats), len(entrances)),
        in_flight=offline_in_flight(seats),
        accuracy=accuracy,
        pin_cores=job.topology.head == "dedicated",
        report_dir=str(report_dir.relative_to(job.paths.root)),
        rehearsal=job.result_class == "rehearsal",
    )


def with_tokenizer(*directories: Path | None) -> str | None:
    """The first directory that holds a tokenizer."""
    whole = (place for place in directories if place and all((place / name).is_file() for name in _TOKENIZER))
    return next(map(str, whole), None)

"""What a measurement sends: the data set, LoadGen's settings, and every request serialised before anything is timed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE, ProductSample, load_catalogue, messages
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE, PromptSample, load_prompts
from dynamo_mlperf.benchmark.rules import WITH_IMAGES, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.data_source import where_from
from dynamo_mlperf.job.prompt_limit import check_prompts
from dynamo_mlperf.job.wanted_settings import decide_settings
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.endpoints_config import check_settings
from dynamo_mlperf.load.requests import StoredBodies, write_requests
from dynamo_mlperf.load.wheel import check_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Topology

DataSet = Sequence[ProductSample] | Sequence[PromptSample]


WARM_UP_TOKENS = 150
"""Most output tokens of a warm-up request: enough for every batch size of decoding to be met."""

FEW_REQUESTS = 16
"""Requests that are prepared where the load client makes its own."""

_TICK_EVERY = 200
"""Requests: half a second where each has an image."""

REQUESTS_FILE = "requests.bin"
"""In the run directory: every request body, with `.offsets` beside it."""


@dataclass(frozen=True)
class Workload:
    """The requests of a measurement, decided before the deployment is up.

    Attributes:
        settings: LoadGen's settings.
        bodies: One request body per sample of the data set, on disk in the run directory.
    """

    settings: LoadSettings
    bodies: Sequence[bytes]

    def warm_up_bodies(self, count: int) -> list[bytes]:
        """The first requests with their answers cut short: a reasoning model's whole answers take minutes."""
        first = (json.loads(self.bodies[index]) for index in range(min(count, len(self.bodies))))
        return [json.dumps({**body, "max_tokens": min(body["max_tokens"], WARM_UP_TOKENS)}).encode() for body in first]


def while_prepared(
    bodies: Iterable[bytes], number: int, tick: Callable[[], None], say: Callable[[str], None]
) -> Iterator[bytes]:
    """The bodies as they are prepared, which takes minutes for tens of thousands with images.

    Args:
        bodies: Of all requests.
        number: How many.
        tick: Called from time to time; what it raises (a signal, an engine that died) ends the preparation.
        say: Tells people how far it is.
    """
    for done, body in enumerate(bodies, start=1):
        if done % _TICK_EVERY == 0:
            tick()
            say(f"{done} of {number} requests prepared")
        yield body


def load_samples(benchmark_name: str, directory: Path) -> DataSet:
    """The samples in `directory`, of the kind that the benchmark takes.

    Raises:
        ConfigError: There are none, or one cannot be used.
    """
    return load_catalogue(directory) if benchmark_name == WITH_IMAGES else load_prompts(directory)


def read_data_set(topology: Topology, base_dir: Path) -> DataSet:
    """The data set that the file names, of the kind that its benchmark takes.

    Raises:
        ConfigError: It names none, there is none at that place, or it is of the other kind.
    """
    directory = topology.resolve(base_dir).dataset
    images = topology.measure.benchmark == WITH_IMAGES
    if directory is None:
        small = "tiny-product-catalogue" if images else "tiny-prompts"
        raise ConfigError(
            "the topology names no data set (measure.dataset)",
            f"write measure: {{dataset: DIRECTORY}}; `dynamo-mlperf init --assets assets` makes assets/{small}",
        )
    wanted, other = (CATALOGUE_FILE, PROMPTS_FILE) if images else (PROMPTS_FILE, CATALOGUE_FILE)
    if not (directory / wanted).exists() and (directory / other).exists():
        raise ConfigError(
            f"measure.dataset: {directory} holds {other}, and {topology.measure.benchmark} takes {wanted}",
            "name the benchmark's own data set",
        )
    try:
        return load_samples(topology.measure.benchmark, directory)
    except ConfigError as problem:
        if (directory / wanted).exists():
            raise
        raise ConfigError(problem.what, "; ".join(where_from(topology, directory, base_dir))) from None


def sample_messages(sample: ProductSample | PromptSample) -> list[dict[str, Any]]:
    """The chat messages of one sample."""
    return messages(sample) if isinstance(sample, ProductSample) else sample.messages


def check_workload(topology: Topology, base_dir: Path, *, from_afar: bool = False) -> str | None:
    """Everything about the measurement that can be refused before a job, without a request built.

    Args:
        topology: The file.
        base_dir: What its paths are relative to.
        from_afar: Whether the job runs elsewhere, so that a data set or manifest may be seen from there alone.

    Returns:
        What could not be checked from here, for people; None where all was.

    Raises:
        ConfigError: See `read_data_set`, `decide_settings` and `check_prompts`.
        SetupError: The LoadGen wheel is of another round.
    """
    if topology.measure.client == "loadgen":
        check_wheel(topology.measure.round)
    paths = topology.resolve(base_dir)
    if from_afar and paths.dataset is not None and not paths.dataset.exists():
        return f"the data set: {paths.dataset} is not seen from here; the job checks it"
    samples = read_data_set(topology, base_dir)
    settings = decide_settings(topology, len(samples), base_dir)
    if topology.measure.client == "endpoints":
        check_settings(settings)
    _check_side_tests(topology, settings, base_dir)
    if from_afar and paths.manifest is not None and not paths.manifest.exists():
        return "the length of prompts: the model's files cannot be seen from here"
    return check_prompts(topology, base_dir, samples)


def _check_side_tests(topology: Topology, settings: LoadSettings, base_dir: Path) -> None:
    """Accuracy and compliance tests that could not run are refused before the job, too."""
    from dynamo_mlperf.job.context import class_of
    from dynamo_mlperf.job.side_tests import check_side_tests

    data_set, wanted = topology.resolve(base_dir).dataset, topology.measure
    if data_set is not None and wanted.client == "loadgen" and (wanted.accuracy or wanted.compliance):
        check_side_tests(settings, data_set, class_of(topology), accuracy=wanted.accuracy, compliance=wanted.compliance)


def prepare_workload(job: Job, model: str) -> Workload:
    """Read the data set and serialise every request, before anything is timed."""
    samples = read_data_set(job.topology, job.base_dir)
    rules = benchmark(job.topology.measure.benchmark, job.topology.measure.round)
    settings = decide_settings(job.topology, len(samples), job.base_dir)
    path = job.paths.root / REQUESTS_FILE
    if job.topology.measure.client == "endpoints":  # it makes its own; these are for canary and warm-up
        samples = samples[: max(FEW_REQUESTS, job.topology.timeouts.warmup_requests)]
    effort = rules.reasoning_effort.get("performance")
    bodies = (chat_body(model, sample_messages(sample), rules.max_new_tokens, effort=effort) for sample in samples)
    write_requests(path, while_prepared(bodies, len(samples), job.supervisor.tick, job.progress.say))
    return Workload(settings, StoredBodies(path))

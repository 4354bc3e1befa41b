"""What a measurement sends: the data set, LoadGen's settings, and every request serialised before anything is timed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE, ProductSample, load_catalogue, messages
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE, PromptSample, load_prompts
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.prompt_limit import check_prompts
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.given_conf import with_user_conf
from dynamo_mlperf.load.requests import StoredBodies, write_requests
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.wheel import check_wheel

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.topology.spec import Topology

WITH_IMAGES = "qwen3-vl-235b-a22b"
"""The benchmark whose data set is a product catalogue; the others' are text prompts."""

DataSet = Sequence[ProductSample] | Sequence[PromptSample]


WARM_UP_TOKENS = 150
"""Most output tokens of a warm-up request: enough for every batch size of decoding to be met."""

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
    return load_catalogue(directory) if images else load_prompts(directory)


def sample_messages(sample: ProductSample | PromptSample) -> list[dict[str, Any]]:
    """The chat messages of one sample."""
    return messages(sample) if isinstance(sample, ProductSample) else sample.messages


def decide_settings(topology: Topology, samples: int, base_dir: Path | None = None) -> LoadSettings:
    """LoadGen's settings from the file's `measure:` and `reduced:`.

    Args:
        topology: The file.
        samples: Samples of the data set at hand.
        base_dir: What `measure.user_conf` is relative to; None = the working directory.

    Raises:
        ConfigError: The data set is smaller than the rules ask for, or a line of the user.conf is of no use.
    """
    wanted, reduced = topology.measure, topology.reduced
    settings = build_settings(
        benchmark(wanted.benchmark, wanted.round),
        wanted.scenario,
        wanted.target_qps,
        samples,
        reduction=reduced.reduction() if reduced else None,
        request_timeout_s=topology.timeouts.request_s,
        round_name=wanted.round,
    )
    if wanted.user_conf is None:
        return settings
    return with_user_conf(settings, ((base_dir or Path.cwd()) / wanted.user_conf).absolute())


def check_workload(topology: Topology, base_dir: Path) -> str | None:
    """Everything about the measurement that can be refused before a job, without a request built.

    Returns:
        What could not be checked from here, for people; None where all was.

    Raises:
        ConfigError: See `read_data_set`, `decide_settings` and `check_prompts`.
        SetupError: The LoadGen wheel is of another round.
    """
    samples = read_data_set(topology, base_dir)
    decide_settings(topology, len(samples), base_dir)
    if topology.measure.client == "loadgen":
        check_wheel(topology.measure.round)
    return check_prompts(topology, base_dir, samples)


def prepare_workload(job: Job, model: str) -> Workload:
    """Read the data set and serialise every request, before anything is timed."""
    samples = read_data_set(job.topology, job.base_dir)
    rules = benchmark(job.topology.measure.benchmark, job.topology.measure.round)
    settings = decide_settings(job.topology, len(samples), job.base_dir)
    path = job.paths.root / REQUESTS_FILE
    write_requests(path, (chat_body(model, sample_messages(sample), rules.max_new_tokens) for sample in samples))
    return Workload(settings, StoredBodies(path))

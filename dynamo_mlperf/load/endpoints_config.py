"""The configuration of one run of MLCommons endpoints, by the rules of the benchmark and scenario.

Keys as `config/schema.py` of mlcommons/endpoints ea332753 has them. The seeds are not written: `submission_ref` names
the round's rule set, which pins them, and the file that endpoints writes back shows them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dynamo_mlperf.load.settings import LoadSettings

PERCENTILES = (50, 75, 80, 90, 95, 97, 99, 99.9)
"""Percentiles, in percent, of which endpoints writes an early-stopping estimate (its `metrics/early_stopping.py`)."""

CLIENT_START_S = 120.0
"""How long its worker processes and services may take to start."""
PADDING = 1.1
"""By how much endpoints' own count of samples exceeds rate x duration (`total_samples_to_issue`)."""
NEVER_S = 86_400.0
"""A bound where none is wanted: endpoints leaves `null` out of the file that it writes back."""
_LEAST_CONNECTIONS = 256
_MOST_CONNECTIONS = 20_000
"""Per endpoint; it refuses more than the kernel's range of local ports, by default 28,232."""
_CATALOGUE_PRESET = "q3vl"
_CATALOGUES = {
    "Offline": ("shopify_product_catalogue", "train+test", "d5c517c509f5aca99053897ef1de797d6d7e5aa5"),
    "Server": ("shopify_product_catalogue", "train+test", "d5c517c509f5aca99053897ef1de797d6d7e5aa5"),
    "Interactive": ("shopify_product_catalogue_8k", "train", "2bc8c6c4b6ebd27b880b0cba519cb45d09867045"),
}
"""Its data set of the image benchmark by scenario: name, splits, revision on the hub."""


@dataclass(frozen=True)
class EndpointsData:
    """What endpoints is told of the data set.

    Attributes:
        name: Of a data set of its own with the preset that makes the prompts, or of a file's.
        path: The file, relative to the working directory; None for one of its own, which lies where it looks for it.
        revision: The revision of a published one; None for any other.
        file: Where the file lies, relative to the working directory.
        images: Whether prompts hold images.
        salted: Whether a warm-up prompt can be made unlike every other.
    """

    name: str
    path: str | None
    revision: str | None
    file: str
    images: bool
    salted: bool


def catalogue_data(scenario: str, *, whole: bool) -> EndpointsData:
    """The image benchmark's: endpoints' own data set class, read from where it caches what it made of the hub's.

    Args:
        scenario: Decides which of its two.
        whole: Whether it is the published data set; a part of it, or another, has no revision to name.
    """
    name, splits, published = _CATALOGUES[scenario]
    revision = published if whole else None
    file = f"dataset_cache/{name}/{splits}/{name}_{splits}.parquet"
    return EndpointsData(f"{name}::{_CATALOGUE_PRESET}", None, revision, file, images=True, salted=False)


def prompts_data(*, plain: bool) -> EndpointsData:
    """Text prompts, in a file; `plain` where each is one text of the user's."""
    file = "dataset_cache/prompts.parquet"
    return EndpointsData("prompts", file, None, file, images=False, salted=plain)


@dataclass(frozen=True)
class EndpointsTest:
    """One run of endpoints.

    Attributes:
        settings: The rules in force, as for LoadGen.
        frontends: Host and port of each frontend.
        model: The served model name.
        tokenizer: Directory with the model's tokenizer, for token counts; None where there is none.
        data: The data set.
        warmup_requests: Requests of its own warm-up, outside the measured window.
        workers: Processes that own the HTTP connections.
        in_flight: Connections in Offline.
        accuracy: Whether the accuracy phase follows.
        pin_cores: Whether it may bind its processes to cores.
        report_dir: Where it writes, relative to its working directory.
        rehearsal: Whether engines are simulated; its name then says so.
    """

    settings: LoadSettings
    frontends: tuple[tuple[str, int], ...]
    model: str
    tokenizer: str | None
    data: EndpointsData
    warmup_requests: int
    workers: int
    in_flight: int
    accuracy: bool
    pin_cores: bool
    report_dir: str
    rehearsal: bool = False

    def __post_init__(self) -> None:
        if not self.frontends:
            raise ConfigError("no frontend to send requests to")
        if self.settings.use_token_latencies and self.tokenizer is None:
            raise ConfigError(
                f"{self.settings.benchmark} is judged by token latencies, and the model's directory has no tokenizer",
                "put tokenizer.json and tokenizer_config.json beside the weights",
            )

    @property
    def offline(self) -> bool:
        """Whether all samples are issued at once."""
        return self.settings.loadgen_scenario == "Offline"


def check_settings(settings: LoadSettings) -> None:
    """Refuse what endpoints cannot do though LoadGen could.

    Raises:
        ConfigError: A percentile that it does not estimate, or a data set that is not the scenario's.
    """
    percent = round(settings.percentile * 100, 6)
    if percent not in PERCENTILES:
        known = ", ".join(f"{value:g}" for value in PERCENTILES if value <= 99)  # noqa: PLR2004 - reduced ends there
        raise ConfigError(f"reduced percentile is {percent:g}, and endpoints estimates {known}", "write one of these")
    if not settings.reduced and settings.dataset_samples != settings.performance_sample_count:
        raise ConfigError(
            f"the data set has {settings.dataset_samples} samples, and {settings.benchmark} {settings.scenario} "
            f"{settings.performance_sample_count}: endpoints issues every sample that it is given",
            f"name the data set of {settings.scenario} (measure.dataset)",
        )


def sample_count(settings: LoadSettings) -> int:
    """Samples of the performance phase: the rate for the duration and a tenth more, in whole data sets.

    That is the number that endpoints itself comes to; it is written, so that a run that was cut short shows.
    """
    by_rate = math.ceil(round(settings.target_qps * settings.min_duration_ms / 1000 * PADDING, 6))
    least = max(by_rate, settings.min_query_count, 1)
    rows = settings.performance_sample_count
    return math.ceil(least / rows) * rows


def worker_count(wanted: int, frontends: int) -> int:
    """Client processes: at least as many as wanted, and a multiple of the frontends, as endpoints insists."""
    return max(1, math.ceil(wanted / frontends)) * frontends


def _connections(test: EndpointsTest) -> int:
    """Connections for what is in flight: a request that waits for one would be slow for no fault of the system's."""
    settings = test.settings
    most = _MOST_CONNECTIONS * len(test.frontends)
    if test.offline:
        return min(most, max(test.in_flight, test.workers))
    slowest_s = (settings.target_latency_ms or settings.request_timeout_s * 1000) / 1000
    return min(most, max(_LEAST_CONNECTIONS, math.ceil(2 * settings.target_qps * slowest_s), test.workers))


def config(test: EndpointsTest) -> dict[str, Any]:
    """The configuration as plain values."""
    settings = test.settings
    return {
        "name": f"{'rehearsal-' if test.rehearsal else ''}{settings.benchmark}-{settings.scenario.lower()}",
        "version": "1.0",
        "type": "offline" if test.offline else "online",
        "submission_ref": {"model": settings.benchmark, "ruleset": f"mlperf-inference-{settings.round_name}"},
        "model_params": _model(test),
        "datasets": list(_datasets(test)),
        "settings": {
            "runtime": {
                "min_duration_ms": settings.min_duration_ms,
                "max_duration_ms": 0,
                "n_samples_to_issue": sample_count(settings),
            },
            "load_pattern": {
                "type": "max_throughput" if test.offline else "poisson",
                "target_qps": settings.target_qps,
            },
            "client": {
                "num_workers": test.workers,
                "max_connections": _connections(test),
                "worker_initialization_timeout": CLIENT_START_S,
            },
            "drain": {
                "warmup_timeout_s": settings.request_timeout_s,
                "performance_timeout_s": NEVER_S if test.offline else settings.request_timeout_s,
                "accuracy_timeout_s": NEVER_S,
                # Nothing is tokenized while the clock runs.
                "metrics_tokenizer_workers": 0,
            },
            "warmup": {
                "enabled": test.warmup_requests > 0,
                "n_requests": test.warmup_requests or 1,
                # endpoints ea332753 refuses to salt a prompt that holds an image.
                "salt": test.data.salted,
                "drain": True,
            },
            "early_stopping": {"enabled": True},
            "service_ready_timeout_s": CLIENT_START_S,
        },
        "endpoint_config": {"endpoints": [f"http://{host}:{port}" for host, port in test.frontends]},
        "report_dir": test.report_dir,
        "enable_cpu_affinity": test.pin_cores,
    }


def _model(test: EndpointsTest) -> dict[str, Any]:
    """The model and its cap; no sampling parameter: the model's generation_config.json decides, as for LoadGen."""
    rules = benchmark(test.settings.benchmark, test.settings.round_name)
    model: dict[str, Any] = {
        "name": test.model,
        "max_new_tokens": rules.max_new_tokens,
        "streaming": "off" if test.offline else "on",
    }
    if effort := rules.reasoning_effort.get("performance"):
        model["chat_template_kwargs"] = {"reasoning_effort": effort}
    if test.tokenizer is not None:
        model["tokenizer_name"] = test.tokenizer
    return model


def _datasets(test: EndpointsTest) -> Iterator[dict[str, Any]]:
    yield _dataset(test.data, "performance")
    if test.accuracy:
        scored = {
            "eval_method": "shopify_category_f1",
            "ground_truth": "ground_truth_category",
            "extractor": "identity_extractor",
            "num_repeats": 1,
        }
        yield {**_dataset(test.data, "accuracy"), "accuracy_config": scored}


def _dataset(data: EndpointsData, kind: str) -> dict[str, Any]:
    named: dict[str, Any] = {"name": data.name, "type": kind}
    if data.path is not None:
        named["path"] = data.path
    if data.revision is not None:
        named["generate_params"] = {"revision": data.revision}
    return named


def config_text(test: EndpointsTest) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(config(test), sort_keys=False, allow_unicode=True)


def not_in_force(wanted: Mapping[str, Any], used: Any, place: str = "") -> Iterator[tuple[str, object, object]]:  # noqa: ANN401 - whatever the file holds
    """Every setting of `wanted` that the file which endpoints wrote back does not hold: its place, wanted, used."""
    for key, value in wanted.items():
        where = f"{place}.{key}" if place else key
        got = used.get(key) if isinstance(used, dict) else None
        if isinstance(value, dict):
            yield from not_in_force(value, got, where)
        elif isinstance(value, list) and isinstance(got, list) and len(value) == len(got):
            for number, (entry, other) in enumerate(zip(value, got, strict=True)):
                yield from not_in_force({str(number): entry}, {str(number): other}, where)
        elif (type(value) is bool and type(got) is not bool) or value != got:
            yield where, value, got

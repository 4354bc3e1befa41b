"""What a topology file says about the measurement: benchmark, rate, lowered rules, deadlines."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from dynamo_mlperf.benchmark.rounds import ROUNDS, round_of
from dynamo_mlperf.benchmark.rules import BENCHMARKS, ROUND, SCENARIOS, Reduction, benchmark, check_scenario
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.strict import StrictModel

SCORED_BY_ENDPOINTS = ("qwen3-vl-235b-a22b",)
"""Benchmarks whose accuracy phase endpoints scores without an evaluator that is fetched from elsewhere."""

NOT_SCORED_BY_ENDPOINTS = {
    "gpt-oss-120b": "its LiveCodeBench scorer asks a container that the endpoints package does not bring",
    "deepseek-r1": "its scorer is a project of its own with submodules, which the endpoints package does not bring",
}
"""Why not the others, whose endpoints form round v6.1 takes (`ENDPOINTS_ALLOWED_MODELS` of mlcommons/inference
b66003e1; `evaluation/scoring.py` of mlcommons/endpoints ea332753)."""

_MAX_QPS = 1e6
_LEAST_S = 0.1


def _path_text(path: str) -> str:
    if not path.strip() or "\0" in path:
        raise ValueError("wanted a path, got an empty text")
    if any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in path):
        raise ValueError(f"wanted a path of one line without control characters, got {path!r:.80}")
    if path.startswith("~"):
        raise ValueError(f"write {path} out: the job may run for another user's home")
    return path


def _known(look_up: Callable[[str], object]) -> Callable[[str], str]:
    """A validator of names: what the rules' look-up refuses is refused at its line of the file."""

    def checked(name: str) -> str:
        try:
            look_up(name)
        except ConfigError as error:
            raise ValueError(f"{error.what}; {error.action}") from error
        return name

    return checked


_known_benchmark, _known_scenario, _known_round = _known(benchmark), _known(check_scenario), _known(round_of)


PositiveInt = Annotated[int, Field(ge=1)]
BenchmarkName = Annotated[
    str, AfterValidator(_known_benchmark), WithJsonSchema({"type": "string", "enum": list(BENCHMARKS)})
]
ScenarioName = Annotated[
    str, AfterValidator(_known_scenario), WithJsonSchema({"type": "string", "enum": list(SCENARIOS)})
]
RoundName = Annotated[str, AfterValidator(_known_round), WithJsonSchema({"type": "string", "enum": list(ROUNDS)})]
PositiveFloat = Annotated[float, Field(gt=0)]
PathText = Annotated[str, AfterValidator(_path_text)]


class Measure(StrictModel):
    """What is measured."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "search": "write search: at the top level of the file, beside measure:",
        "sweep": "write sweep: at the top level of the file",
        "hold": "write hold: at the top level of the file",
    }

    benchmark: BenchmarkName = Field(description="MLPerf benchmark, as the rules name it")
    scenario: ScenarioName = Field(description="MLPerf scenario; which a benchmark has, `schema rules` shows")
    client: Literal["loadgen", "endpoints"] = Field(
        default="loadgen",
        description="Load client: LoadGen, or MLCommons endpoints (the site file then names its endpoints_python)",
    )
    target_qps: PositiveFloat | None = Field(
        default=None,
        le=_MAX_QPS,
        description="Queries per second that LoadGen issues (Offline: expects); may be left out with search: or sweep:",
    )
    dataset: PathText | None = Field(default=None, description="Directory of the data set; planning works without")
    round: RoundName = Field(
        default=ROUND, description="MLPerf round whose rules and seeds apply; LoadGen's wheel must be of it"
    )
    user_conf: PathText | None = Field(
        default=None,
        description="A LoadGen user.conf of your own; each line must have an effect, none may lower the rules",
    )
    accuracy: bool = Field(default=False, description="Run and score the accuracy test too, on the same deployment")
    compliance: bool = Field(
        default=False, description="Run and verify the benchmark's compliance tests too, on the same deployment"
    )

    @model_validator(mode="after")
    def _client_can(self) -> Self:
        if self.client == "loadgen":
            return self
        try:
            clients = benchmark(self.benchmark, self.round).clients
        except ConfigError as error:
            raise ValueError(f"{error.what}; {error.action}") from error
        if self.client not in clients:
            raise ValueError(f"{self.benchmark} of {self.round} takes no other client than {', '.join(clients)}")
        if self.user_conf is not None:
            raise ValueError("user_conf is LoadGen's, and client is endpoints; take one of them out")
        if self.compliance:
            raise ValueError("compliance tests are LoadGen's; write compliance: true in a file with client: loadgen")
        if self.accuracy and self.benchmark not in SCORED_BY_ENDPOINTS:
            why = NOT_SCORED_BY_ENDPOINTS[self.benchmark]
            raise ValueError(
                f"endpoints by itself cannot score the accuracy of {self.benchmark}: {why}; a submission has one "
                "client, so write client: loadgen for performance and accuracy"
            )
        return self


class Reduced(StrictModel):
    """Rules that are lowered for tuning and demos; the result's class is then `reduced`."""

    min_duration_s: PositiveFloat | None = Field(default=None, description="Shortest run in seconds")
    samples: PositiveInt | None = Field(default=None, description="Samples of the data set, and queries at least")
    percentile: Annotated[float, Field(gt=0, lt=100)] | None = Field(
        default=None, description="Judged percentile, in percent"
    )
    latency_limit_ms: PositiveFloat | None = Field(default=None, description="End-to-end limit in milliseconds")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.model_fields_set or all(getattr(self, name) is None for name in self.model_fields_set):
            raise ValueError(f"wanted at least one of {', '.join(type(self).model_fields)}; or leave reduced out")
        return self

    def reduction(self) -> Reduction:
        """The same, as the rules take it."""
        return Reduction(
            min_duration_s=self.min_duration_s,
            samples=self.samples,
            percentile=self.percentile,
            latency_limit_ms=self.latency_limit_ms,
        )


class Timeouts(StrictModel):
    """How long is waited, and how much is warmed up."""

    ready_s: PositiveFloat = Field(
        default=900.0, ge=_LEAST_S, description="Seconds until every worker has served a request"
    )
    request_s: PositiveFloat = Field(default=120.0, ge=_LEAST_S, description="Seconds until a request counts as failed")
    stagger_s: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="Seconds between the starts of workers on one node: weights that load at once take the most memory",
    )
    warmup_requests: PositiveInt = Field(default=8, description="Requests sent to warm up before the measurement")
    scoring_s: PositiveFloat = Field(
        default=7200.0, ge=_LEAST_S, description="Seconds until the scoring of an accuracy test's answers is given up"
    )

"""The topology file, version 1: what a person may write, checked before anything runs.

Field descriptions are the help texts of `dynamo-mlperf schema`. Paths stay as written; `Topology.resolve` binds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.topology.document import Document, Problem, parse_document, read_document
from dynamo_mlperf.topology.engines import engine_problems
from dynamo_mlperf.topology.holding import HoldBlock, hold_problems
from dynamo_mlperf.topology.measuring import Measure, PathText, PositiveFloat, PositiveInt, Reduced, Timeouts
from dynamo_mlperf.topology.reserved import FLAGS_HELP, VARIABLES_HELP, Flags, Options, RoleVariables
from dynamo_mlperf.topology.searching import SearchBlock
from dynamo_mlperf.topology.strict import StrictModel, check, refusal
from dynamo_mlperf.topology.sweeping import SweepBlock

RoleName = Literal["prefill", "decode", "aggregated"]
ROLE_NAMES: tuple[RoleName, ...] = ("prefill", "decode", "aggregated")
ROLE_LETTERS: Mapping[str, str] = {"prefill": "P", "decode": "D", "aggregated": "A"}
"""As in xPyD: 4P8D is four prefill and eight decode workers."""

MAX_NODES = 10_000
"""Largest allocation that is planned; it is planned, or refused with its hints, in seconds."""

_MAX_GPUS = 64
_MAX_WORKERS = MAX_NODES * _MAX_GPUS
_MAX_NAME = 80


def _safe_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) or len(name) > _MAX_NAME:
        raise ValueError(f"wanted up to {_MAX_NAME} lower-case letters, digits, dots and dashes, got {name!r}")
    return name


def _model_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", name):
        raise ValueError(f"wanted letters, digits, dots, dashes, underscores and slashes, got {name!r}")
    return name


def _no_boolean(version: object) -> object:
    """`true` equals 1 to Python, not to a reader."""
    if isinstance(version, bool):
        raise ValueError("wanted 1, got true or false")  # noqa: TRY004 - pydantic reports ValueError
    return version


GpuName = Literal["h100", "h200", "b200", "gb200", "b300", "gb300", "mi300x", "mi325x", "mi355x"]
PrecisionName = Literal["bf16", "fp8", "nvfp4", "mxfp4"]


class Nodes(StrictModel):
    """What is asked of Slurm."""

    count: PositiveInt = Field(le=MAX_NODES, description="Nodes of the allocation, the head's node included")
    gpus: PositiveInt = Field(le=_MAX_GPUS, description="GPUs per node; with device: cpu, slots for one rank each")
    nvlink_domain: PositiveInt | None = Field(
        default=None,
        description="Consecutive nodes that share one NVLink domain; left out, each node is a domain of its own",
    )
    gpu: GpuName | None = Field(
        default=None, description="What the GPUs are; a plan whose weights do not fit their memory is refused"
    )
    gpu_memory_gib: PositiveFloat | None = Field(
        default=None, le=100_000, description="Memory of each GPU in GiB; left out, what the vendor says of `gpu`"
    )


class Weights(StrictModel):
    """Where the weights come from: exactly one of the two."""

    stage: PathText | None = Field(default=None, description="Staging manifest; each node gets a verified local copy")
    path: PathText | None = Field(default=None, description="Directory that every node sees, used where it is")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.stage is None) == (self.path is None):
            raise ValueError("wanted exactly one of stage (a manifest) and path (a directory)")
        return self


class Model(StrictModel):
    """The model that is served."""

    name: Annotated[str, AfterValidator(_model_name)] = Field(description="Its name, for people and in requests")
    weights: Weights = Field(description="Where its weights come from")
    precision: PrecisionName | None = Field(
        default=None,
        description="Of the weights, for estimates where they cannot be seen; left out, as the model was published",
    )


class Role(StrictModel):
    """All workers of one role; each is one engine replica."""

    workers: PositiveInt = Field(le=_MAX_WORKERS, description="Engine replicas of this role")
    tensor_parallel: PositiveInt = Field(
        default=1, le=_MAX_WORKERS, description="GPUs that share each layer of one worker"
    )
    data_parallel: PositiveInt = Field(
        default=1, le=_MAX_WORKERS, description="Data-parallel ranks of the engine inside one worker"
    )
    expert_parallel: PositiveInt | None = Field(
        default=None, description="GPUs of one worker that the experts are spread over; left out, the engine decides"
    )
    args: Flags = Field(default_factory=dict, description=FLAGS_HELP)
    engine_config: Options = Field(
        default_factory=dict, description="Engine options that have no flag, as the engine's own YAML has them (trtllm)"
    )
    env: RoleVariables = Field(default_factory=dict, description=VARIABLES_HELP)
    on_worker_loss: Literal["fail", "restart", "drop"] = Field(
        default="fail",
        description="What the end of one replica does: fail the job, start it anew, or go on without it (aggregated "
        "only; an official run with a loss is INVALID)",
    )
    drop_stragglers: bool = Field(
        default=False,
        description="Whether workers whose warm-up requests take 1.5 times as long as the median worker's or more are "
        "stopped before the measurement (aggregated only, 3 workers or more; an official run is then INVALID)",
    )

    @property
    def gpus(self) -> int:
        """GPUs of one worker.

        `tensor_parallel` where the data-parallel ranks of attention share the tensor-parallel GPUs: that is when
        `expert_parallel` is given, and neither it nor `data_parallel` is more than `tensor_parallel`. Else the product
        of `tensor_parallel` and `data_parallel`.
        """
        if self.expert_parallel is not None and max(self.expert_parallel, self.data_parallel) <= self.tensor_parallel:
            return self.tensor_parallel
        return self.tensor_parallel * self.data_parallel

    @model_validator(mode="after")
    def _degrees_fit(self) -> Self:
        if self.expert_parallel is not None and self.gpus % self.expert_parallel:
            raise ValueError(f"expert_parallel {self.expert_parallel} does not divide the worker's {self.gpus} GPUs")
        if self.gpus == self.tensor_parallel and self.tensor_parallel % self.data_parallel:
            raise ValueError(
                f"data_parallel {self.data_parallel} does not divide the {self.gpus} GPUs that its ranks share"
            )
        return self


class Roles(StrictModel):
    """Prefill and decode workers, or aggregated ones."""

    prefill: Role | None = Field(default=None, description="Workers that compute prompts and hand over their KV cache")
    decode: Role | None = Field(default=None, description="Workers that receive KV cache and generate")
    aggregated: Role | None = Field(default=None, description="Workers that do both, instead of the other two")

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        given = tuple(name for name, _role in self.present())
        if given not in {("prefill", "decode"), ("aggregated",)}:
            raise ValueError(f"wanted prefill and decode, or aggregated alone; got {' and '.join(given) or 'none'}")
        for name, role in self.present():
            if name != "aggregated" and role.on_worker_loss != "fail":
                raise ValueError(
                    f"{name} has on_worker_loss: {role.on_worker_loss}; only aggregated workers may be lost, "
                    "since the others hold KV cache that their partners wait for"
                )
            if name != "aggregated" and role.drop_stragglers:
                raise ValueError(f"{name} has drop_stragglers; only aggregated workers may be dropped")
        return self

    def present(self) -> tuple[tuple[RoleName, Role], ...]:
        """The roles that the file gives, prefill before decode."""
        pairs = ((name, getattr(self, name)) for name in ROLE_NAMES)
        return tuple((name, role) for name, role in pairs if role is not None)


class Frontends(StrictModel):
    """Dynamo's OpenAI-compatible entry points."""

    count: PositiveInt = Field(default=1, le=_MAX_GPUS, description="Frontends, all on the head's node")
    router: Literal["round-robin", "kv"] = Field(default="round-robin", description="How requests find a worker")
    discovery: Literal["etcd", "file"] = Field(
        default="etcd", description="Where workers register: etcd of the job's own, or files on shared storage"
    )


@dataclass(frozen=True)
class ResolvedPaths:
    """The file's paths, absolute; None where the file gives none.

    Attributes:
        manifest: Staging manifest of the weights.
        weights: Directory of weights used where they are.
        dataset: Directory of the data set.
    """

    manifest: Path | None
    weights: Path | None
    dataset: Path | None


class Topology(StrictModel):
    """One deployment and its measurement."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "accuracy": "write it inside measure: (accuracy: true)",
        "compliance": "write it inside measure: (compliance: true)",
    }

    schema_version: Annotated[Literal[1], BeforeValidator(_no_boolean)] = Field(
        alias="schema", description="Version of this format"
    )
    name: Annotated[str, AfterValidator(_safe_name)] = Field(
        description="Name of the deployment, in jobs and run folders"
    )
    site: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Site file: a name or a path; left out, $DYNAMO_MLPERF_SITE or built-in defaults"
    )
    nodes: Nodes = Field(description="The allocation")
    model: Model = Field(description="The model")
    engine: Literal["vllm", "mocker", "trtllm", "sglang"] = Field(description="Inference engine; mocker simulates one")
    server: Literal["dynamo", "trtllm-serve"] = Field(
        default="dynamo",
        description="Who answers requests: Dynamo's frontends, or (engine: trtllm, aggregated) each worker by itself",
    )
    device: Literal["cuda", "cpu"] = Field(default="cuda", description="What the engine computes on")
    roles: Roles = Field(description="The workers")
    frontends: Frontends = Field(default_factory=Frontends, description="The entry points")
    head: Literal["first", "dedicated"] = Field(
        default="first",
        description="Node of controller, frontends and load client: the first, shared with workers or dedicated to it",
    )
    measure: Measure = Field(description="What is measured")
    search: SearchBlock = Field(default=None, description="Looks for the highest rate that holds")
    sweep: SweepBlock = Field(default=None, description="Measures several splits, one after another")
    hold: HoldBlock = Field(
        default=None, description="Keeps the engines up after the measurement, for `run --attach RUN`"
    )
    reduced: Reduced | None = Field(default=None, description="Lowered rules; makes the result's class `reduced`")
    timeouts: Timeouts = Field(default_factory=Timeouts, description="Deadlines and warm-up")

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are workers of their own."""
        return self.roles.aggregated is None

    @property
    def finds_rate(self) -> bool:
        """Whether the job finds the rate by itself, so that the file need not give one."""
        return self.search is not None or self.sweep is not None

    @property
    def worker_nodes(self) -> int:
        """Nodes that may hold workers."""
        return self.nodes.count - (self.head == "dedicated")

    def resolve(self, base: Path) -> ResolvedPaths:
        """The paths that the file names, against `base` (the directory that the job was submitted from)."""

        def absolute(written: str | None) -> Path | None:
            return None if written is None else (base / written).absolute()

        weights = self.model.weights
        return ResolvedPaths(absolute(weights.stage), absolute(weights.path), absolute(self.measure.dataset))


def load_topology(path: Path, blocks: Mapping[str, Mapping[str, object]] | None = None) -> Topology:
    """Read and check a topology file.

    Args:
        path: The file.
        blocks: Top-level blocks that are laid over the file's own, key by key, such as a `search:` of the command line.

    Raises:
        ConfigError: With every problem of the file, each at its line.
    """
    document = read_document(path)
    for name, keys in (blocks or {}).items():
        own = document.value.get(name)
        document.value[name] = {**(own if isinstance(own, dict) else {}), **keys}
    return _checked(document)


def parse_topology(text: str, path: Path = Path("topology.yaml")) -> Topology:
    """Check the text of a topology file; `path` only names it in messages.

    Raises:
        ConfigError: With every problem of the text, each at its line.
    """
    return _checked(parse_document(text, path))


def _checked(document: Document) -> Topology:
    topology = check(Topology, document)
    problems = [
        *_head_problems(topology),
        *engine_problems(topology),
        *_reduction_problems(topology),
        *_rate_problems(topology),
        *hold_problems(topology),
    ]
    if problems:
        raise refusal(Topology, document, problems)
    return topology


def _head_problems(topology: Topology) -> list[Problem]:
    if topology.worker_nodes >= 1:
        return []
    return [
        Problem(("head",), "a dedicated head on 1 node leaves none for workers; write nodes.count: 2 or head: first")
    ]


def _rate_problems(topology: Topology) -> list[Problem]:
    """What is measured has a rate, or a way to find one."""
    if topology.sweep is not None and topology.sweep.rates is not None and topology.measure.client != "loadgen":
        text = "given rates are run with LoadGen; leave rates out, so that each split is searched, or client: loadgen"
        return [Problem(("sweep", "rates"), text)]
    given = topology.sweep is not None and topology.sweep.rates is not None
    if given and topology.search is not None and topology.search.prediction is not None:
        text = "with sweep.rates nothing is searched; leave it out, or name it as sweep.prediction, for the order"
        return [Problem(("search", "prediction"), text)]
    if topology.measure.target_qps is not None or topology.finds_rate:
        return []
    text = "missing; write target_qps: 10 (queries per second), or search: at the top level to find the highest rate"
    return [Problem(("measure", "target_qps"), text)]


def _reduction_problems(topology: Topology) -> list[Problem]:
    """Reductions that would change nothing are refused: a reader must be able to trust what the file says."""
    reduced, name, scenario = topology.reduced, topology.measure.benchmark, topology.measure.scenario
    if reduced is None:
        return []
    limits = benchmark(name).limits[scenario]
    problems = []
    if reduced.latency_limit_ms is not None and limits.latency_ms is None:
        text = f"{name} {scenario} has no end-to-end limit to lower; leave it out"
        problems.append(Problem(("reduced", "latency_limit_ms"), text))
    if reduced.percentile is not None and scenario == "Offline":
        problems.append(Problem(("reduced", "percentile"), "Offline has no latency limit to judge; leave it out"))
    return problems

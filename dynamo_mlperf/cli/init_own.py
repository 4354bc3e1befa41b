"""`init --nodes ...`: a topology file and a site file for nodes of one's own, to be completed and then planned."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dynamo_mlperf.benchmark.shapes import Benchmark
    from dynamo_mlperf.errors import CapacityError
    from dynamo_mlperf.topology.spec import Topology


SITE = "my-cluster"
_GB, _GIB = 10**9, 2**30
_LENGTH = {
    "qwen3-vl-235b-a22b": 65_536,
    "gpt-oss-120b": 40_960,
    "deepseek-r1": 24_576,
    "llama2-70b-99.9": 4_096,
}
"""By benchmark: tokens of prompt and answer together that engines have to take; the model's own limit for Llama 2."""
_BENCHMARK_OF = {"llama2-70b": "llama2-70b-99.9"}
"""By model, where they differ."""
_GPUS_OF_A_FRONTEND = 36
"""Of the published Qwen3-VL systems: one frontend on 16 GPUs, two on 72."""
_MOST_FRONTENDS = 8
_CATALOGUE = "assets/shopify-product-catalogue"


@dataclass(frozen=True)
class Own:
    """What one has, and wants to run there.

    Attributes:
        nodes: How many.
        gpus: GPUs of each node.
        gpu_gb: Memory of each GPU in GB (powers of ten, as vendors say it).
        model: Its name, as served.
        benchmark: The benchmark; None = the model's own.
        scenario: Server, Interactive or Offline.
        precision: Of the weights; None = as the model was published.
        split: `4P8D`, `4P2x8D1` or `16A2`; None = half of the GPUs for each role.
        gpu: What the GPUs are, by `nodes.gpu`; None = not said.
        weights: The model's directory, where one was given.
    """

    nodes: int
    gpus: int
    gpu_gb: float
    model: str
    benchmark: str | None = None
    scenario: str = "Server"
    precision: str | None = None
    split: str | None = None
    gpu: str | None = None
    weights: Path | None = None

    @property
    def name(self) -> str:
        """Of the topology: `qwen3-vl-235b-a22b-4x8-2p4d`."""
        split = f"-{self.split}" if self.split else ""
        return re.sub(r"[^a-z0-9.-]+", "-", f"{self.model}-{self.nodes}x{self.gpus}{split}".lower()).strip("-.")


def memory_gb(gpu: str) -> float:
    """Memory in GB of a GPU by its name, as the vendor says it.

    Raises:
        ConfigError: It is none whose memory is known.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.topology.memory import GPU_BYTES
    from dynamo_mlperf.topology.strict import nearest

    if gpu not in GPU_BYTES:
        every = f"--gpu with one of {', '.join(GPU_BYTES)}, or --gpu-memory-gb in its place"
        near = nearest(gpu, GPU_BYTES)
        raise ConfigError(
            f"--gpu {gpu[:20]!r} is not known", f"did you mean --gpu {near}? If not, {every}" if near else every
        )
    return GPU_BYTES[gpu] / _GB


def benchmark_of(own: Own) -> str:
    """The benchmark that is measured: the given one, or the model's own.

    Raises:
        ConfigError: Neither is known.
    """
    return _rules(own).name


def own_files(own: Own, base: Path) -> tuple[dict[str, str], str | None]:
    """A topology that `plan` takes, and a site.

    Args:
        own: What it is for.
        base: The directory: weights whose manifest lies there are judged by their real size.

    Returns:
        The text of each file by its path below the directory; and what could not be checked, None where all was.

    Raises:
        CapacityError: It does not fit, as `plan` says it.
        ConfigError: A value is none that a topology file may have.
    """
    text, judged = _planned(own, base)
    files = {f"topologies/{own.name}.yaml": text, f"slurm/sites/{SITE}.yaml": _site()}
    return files, None if judged else _unjudged(own)


def shipped_for(own: Own, examples: Iterable[Path]) -> list[str]:
    """The shipped topologies of the same model on the same nodes, those of the scenario first."""
    from dynamo_mlperf.topology.spec import load_topology

    found = []
    for path in examples:
        topology = load_topology(path)
        nodes = topology.nodes
        if (nodes.gpu, nodes.count, nodes.gpus, topology.model.name) == (own.gpu, own.nodes, own.gpus, own.model):
            found.append((topology.measure.scenario.lower() != own.scenario.lower(), f"topologies/{path.name}"))
    return [name for _other, name in sorted(found)]


def _unjudged(own: Own) -> str:
    """That memory was not checked, and what would have it checked."""
    if own.weights is not None:
        why = f"{own.weights / 'config.json'} does not tell the model's shape in a way that is known here"
        return f"GPU memory is not checked, and tensor_parallel is yours to choose: {why}"
    why = f"the shape of {own.model} is not known here"
    way = "--model DIRECTORY reads it from the model's config.json, and `plan` does once its manifest is there"
    return f"GPU memory is not checked, and tensor_parallel is yours to choose: {why}; {way}"


def _planned(own: Own, base: Path) -> tuple[str, bool]:
    """The topology at the lowest TP at which the model loads, and whether that could be told."""
    from dynamo_mlperf.errors import CapacityError, ConfigError
    from dynamo_mlperf.serving.workers import check_launchable
    from dynamo_mlperf.topology.memory import memory_of
    from dynamo_mlperf.topology.plan import make_plan
    from dynamo_mlperf.topology.spec import parse_topology

    too_small: CapacityError | None = None
    for degree in _degrees(own):  # the first at which the weights load
        text = _topology(own, _roles(own, degree))
        topology = parse_topology(text, Path(f"{own.name}.yaml"))
        if topology.model.name != own.model:  # it would be read as something else than was given
            raise ConfigError(f"--model {own.model[:60]!r} is no model's name", "--model qwen3-vl-235b-a22b")
        try:
            judged = memory_of(_at_hand(topology, own.weights), base)
        except CapacityError as problem:
            too_small = problem
            continue
        try:
            check_launchable(topology, make_plan(topology))
        except CapacityError as problem:
            if too_small is None:
                raise
            raise _too_wide(own, topology, base, degree, problem) from problem
        return text, bool(judged)
    if too_small is None:
        raise AssertionError(own)
    raise CapacityError(too_small.what, re.sub(r"weights in (\w+)", r"--precision \1", too_small.action))


def _too_wide(own: Own, topology: Topology, base: Path, degree: int, problem: CapacityError) -> CapacityError:
    """A refusal of workers that memory made wide: where their TP comes from, and a precision at which they fit."""
    from dynamo_mlperf.benchmark.model_shapes import PRECISION_BYTES
    from dynamo_mlperf.errors import CapacityError
    from dynamo_mlperf.topology.model_files import served_model

    model = served_model(_at_hand(topology, own.weights), base)
    given = model.precision if model else "bf16"
    what = f"{problem.what}; {own.model} in {given} loads at tensor_parallel {degree} or more"
    for size, precision in sorted(((size, name) for name, size in PRECISION_BYTES.items()), reverse=True):
        if size < PRECISION_BYTES[given] and _fits(replace(own, precision=precision), base):
            return CapacityError(what, f"--precision {precision}, in which this split fits, or {problem.action}")
    return CapacityError(what, problem.action)


def _fits(own: Own, base: Path) -> bool:
    from dynamo_mlperf.errors import CapacityError

    try:
        _planned(own, base)
    except CapacityError:
        return False
    return True


def _at_hand(topology: Topology, weights: Path | None) -> Topology:
    """The topology with the model's files where they lie now, for estimates: its manifest is still to be written."""
    from dynamo_mlperf.topology.spec import Weights

    if weights is None:
        return topology
    model = topology.model.model_copy(update={"weights": Weights(path=str(weights))})
    return topology.model_copy(update={"model": model})


def _degrees(own: Own) -> Iterator[int]:
    """Powers of two up to the GPUs of a node: the TPs that are tried for roles whose TP is not given."""
    degree = 1
    while degree <= own.gpus:
        yield degree
        degree *= 2


def _roles(own: Own, degree: int) -> list[tuple[str, int, int]]:
    """Name, workers and TP of each role, at this TP where the split gives none.

    Raises:
        ConfigError: It is no split.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.topology.role_splits import SPLIT_PATTERN

    workers = own.nodes * (own.gpus // degree)
    split = own.split or (f"{workers // 2}P{workers - workers // 2}D" if workers > 1 else "1A")
    if not re.fullmatch(SPLIT_PATTERN, split):
        raise ConfigError(f"--split {split[:40]} is none", "write workers and roles: 4P8D, with a TP 4P2x8D1, or 16A2")
    if (alone := re.fullmatch(r"(\d+)A(\d+)?", split)) is not None:
        return [("aggregated", int(alone[1]), int(alone[2] or degree))]
    found = re.fullmatch(r"(\d+)P(?:(\d+)x)?(\d+)D(\d+)?", split)
    if found is None:
        raise AssertionError(split)
    return [("prefill", int(found[1]), int(found[2] or degree)), ("decode", int(found[3]), int(found[4] or degree))]


def _rules(own: Own) -> Benchmark:
    """Of the benchmark that is given, or else is the model's own."""
    from dynamo_mlperf.benchmark.model_shapes import PUBLISHED
    from dynamo_mlperf.benchmark.rules import BENCHMARKS, benchmark
    from dynamo_mlperf.cli.init_model import near_model, published_name
    from dynamo_mlperf.errors import ConfigError

    model = own.benchmark or own.model
    name = _BENCHMARK_OF.get(published_name(model), model)
    if own.benchmark is None and name not in BENCHMARKS:
        what = f"which benchmark --model {own.model[:60]} is for is not known; that of {', '.join(PUBLISHED)} is"
        every = f"--benchmark NAME, the one that the model serves: {', '.join(BENCHMARKS)}"
        near = near_model(own.model)
        raise ConfigError(what, f"did you mean --model {near}? If not, {every}" if near else every)
    return benchmark(name)


def _topology(own: Own, roles: list[tuple[str, int, int]]) -> str:
    from dynamo_mlperf.benchmark.rules import WITH_IMAGES, check_scenario

    rules = _rules(own)
    scenario = check_scenario(own.scenario, rules)
    memory_gib = int(own.gpu_gb * _GB / _GIB * 10) / 10
    weights = f"staging/{own.model.rpartition('/')[2]}{f'-{own.precision}' if own.precision else ''}.yaml"
    images = rules.name == WITH_IMAGES
    data = f"{_CATALOGUE}{'-8k' if scenario == 'Interactive' else ''}" if images else f"assets/{rules.name}"
    flags = f"max-model-len: {_LENGTH[rules.name]}" + (", enable-multimodal: true" if images else "")
    lines = [
        "#!/usr/bin/env -S dynamo-mlperf job",
        f"#SBATCH --nodes={own.nodes} --gres=gpu:{own.gpus} --exclusive",
        "#SBATCH --time=04:00:00 --no-requeue",
        "#",
        f"# {own.model} on {own.nodes} x {own.gpus} GPUs of {own.gpu_gb:g} GB. FILL IN marks what is to be completed.",
        "# After each change `dynamo-mlperf plan FILE` says what fits; `dynamo-mlperf schema` lists every key.",
        "schema: 1",
        f"name: {own.name}",
        f"# site: {SITE}                   # FILL IN slurm/sites/{SITE}.yaml first; or name it by --site",
        *_nodes(own, memory_gib),
        "# FILL IN where nodes share one NVLink domain, 18 for a rack of GB200: nodes: {..., nvlink_domain: 18}",
        "model:",
        f"  name: {own.model}",
        *([f"  precision: {own.precision}"] if own.precision else []),
        f"  # FILL IN: `dynamo-mlperf stage manifest {own.weights or 'DIRECTORY'} -o {weights}` writes it",
        f"  weights: {{stage: {weights}}}",
        "engine: vllm",
        "roles:",
        *(_role(role, flags) for role in roles),
        *(_frontends(own) if images and len(roles) > 1 else []),
        "measure:",
        f"  benchmark: {rules.name}",
        f"  scenario: {scenario}",
        f"  # FILL IN: benchmarks/{rules.name}/README.md says where the data set comes from and how to make it",
        f"  dataset: {data}",
        *_rate(scenario),
        "# For a first trial, which cannot be submitted: reduced: {min_duration_s: 60, samples: 256}",
    ]
    return "\n".join(lines) + "\n"


def _nodes(own: Own, memory_gib: float) -> list[str]:
    sizes = f"count: {own.nodes}, gpus: {own.gpus}"
    if own.gpu is not None:
        return [f"nodes: {{{sizes}, gpu: {own.gpu}, gpu_memory_gib: {memory_gib:g}}}"]
    from dynamo_mlperf.topology.memory import GPU_BYTES

    names = ", ".join(GPU_BYTES)
    return [
        f"nodes: {{{sizes}, gpu_memory_gib: {memory_gib:g}}}",
        f"# FILL IN before `dynamo-mlperf rehearse`: nodes: {{..., gpu: NAME}}, one of {names}",
    ]


def _role(role: tuple[str, int, int], flags: str) -> str:
    name, workers, degree = role
    return f"  {name}: {{workers: {workers}, tensor_parallel: {degree}, args: {{{flags}}}}}"


def _frontends(own: Own) -> list[str]:
    """As the published systems have them where long prompts of unequal length meet prefill workers of their own."""
    count = min(max(1, own.nodes * own.gpus // _GPUS_OF_A_FRONTEND), _MOST_FRONTENDS)
    return [f"frontends: {{count: {count}, router: kv}}   # kv: to the worker with the least to do; else in turn"]


def _rate(scenario: str) -> list[str]:
    """What is measured where no rate is known yet."""
    what = "samples/s that are expected" if scenario == "Offline" else "queries/s"
    return [
        f"  # FILL IN instead of search, once a rate is known, in {what}: target_qps: 10",
        "search: {}                         # looks for the highest rate that holds; keys: `dynamo-mlperf schema`",
    ]


def _site() -> str:
    return f"""# Facts of your cluster. Take the # away from lines that apply, and write your values (FILL IN).
# `dynamo-mlperf schema site` says what each key means; `dynamo-mlperf doctor --site slurm/sites/{SITE}.yaml --smoke`
# on a login node tries every one of them.
gpu_request: gres                    # or gpus-per-node, or none: how this cluster's jobs ask for GPUs
port_range: [20000, 32000]           # ports that jobs may listen on
# partition: batch                   # FILL IN: sinfo -s lists them
# account: my-account                # FILL IN: sacctmgr show assoc user=$USER format=account,partition,qos
# local_path: /raid/dynamo-mlperf    # FILL IN: on each node's own disk, for weights
# shared_path: /lustre/me            # FILL IN: the same directory on every node
# interface: ib0                     # FILL IN: carries requests; `ip -br address` on a node lists them
# engine_python: /opt/venv/bin/python   # FILL IN: where vLLM and Dynamo are installed, in the image if there is one
# container:                         # FILL IN where engines run in one
#   runtime: pyxis                   # or apptainer
#   image: /lustre/me/images/vllm-runtime.sqsh
# environment: {{UCX_NET_DEVICES: 'mlx5_0:1'}}   # FILL IN: ibdev2netdev on a node lists them
# numa:                              # FILL IN: lscpu and nvidia-smi topo -m on a node show it
#   - {{cores: 0-71, gpus: [0, 1]}}
"""

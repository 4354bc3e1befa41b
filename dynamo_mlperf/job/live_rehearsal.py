"""Live rehearsals: a real topology made over for simulated engines, with all that it needs beside it.

What comes out is a directory: `topology.yaml` (the derived file, which `run` and `submit` take as any other),
`original.yaml`, `profiles/` and `dataset/`. One GPU slot stands for one GPU. Simulated engines count no tokens of
images and always answer with as many tokens as they may, so prompts are as long as the benchmark's with its images,
and decode steps are shortened by the ratio of what is answered to what really would be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE, load_catalogue
from dynamo_mlperf.benchmark.prompt_length import PromptMeter
from dynamo_mlperf.benchmark.prompts import PROMPTS_FILE, load_prompts
from dynamo_mlperf.benchmark.rules import WITH_IMAGES, benchmark
from dynamo_mlperf.benchmark.tiny_catalogue import IMAGE_SIZES, write_tiny_catalogue
from dynamo_mlperf.benchmark.tiny_prompts import write_tiny_prompts
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.topology.batch import SHEBANG, fix_batch_lines
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import parse_topology
from dynamo_mlperf.tuning.profiles import write_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.topology.spec import Topology
    from dynamo_mlperf.tuning.rehearsal_engines import EngineModel, Factors
    from dynamo_mlperf.tuning.rehearsal_requests import Lengths

TINY_MODEL = "assets/tiny-qwen3-vl-moe"
"""Whose tokenizer simulated engines count with; `dynamo-mlperf init --assets assets` makes it."""
_MAKES_IT = "dynamo-mlperf init --assets assets"
SAMPLES = 256
"""Prompts of a live rehearsal."""
_FILLER = " box"
"""One token of the tiny model's."""
_NAME = 70
_OFFICIAL_S = 600.0


@dataclass(frozen=True, eq=False)
class LiveRehearsal:
    """What is rehearsed, with what, how long and how fast.

    Attributes:
        source: The real topology file.
        topology: Its content.
        engines: Simulated engines by role.
        factors: Of the calibration.
        lengths: Of prompts and answers.
        seconds: Length of the measurement.
        qps: Rate; None = the file's.
    """

    source: Path
    topology: Topology
    engines: Mapping[str, EngineModel]
    factors: Factors
    lengths: Lengths
    seconds: float
    qps: float | None = None


def write_live(directory: Path, what: LiveRehearsal, base: Path) -> Path:
    """Write everything a live rehearsal needs into a new directory; returns the derived topology file.

    Raises:
        ConfigError: The directory exists, the tiny model is not there, or the file names no rate.
        OSError: It cannot be written.
    """
    model = (base / TINY_MODEL).absolute()
    if not (model / "config.json").is_file():
        raise ConfigError(f"{model} is not there, and simulated engines count with its tokenizer", _MAKES_IT)
    if directory.exists():
        raise ConfigError(f"{directory} exists: two rehearsals would mix", "name another --run-dir, or leave it out")
    _rate(what)  # refuses what names none while there is no directory yet that the next try would find
    (directory / "profiles").mkdir(parents=True)
    write_atomic(directory / "original.yaml", what.source.read_bytes())
    places = {}
    for role, engine in what.engines.items():
        places[role] = (directory / "profiles" / f"{role}.npz").absolute()
        write_profile(engine.scaled(what.factors).profile, places[role])
    _write_data(directory / "dataset", what.topology.measure.benchmark, model, what.lengths)
    text = _text(what, places, model, (directory / "dataset").absolute())
    derived = directory / "topology.yaml"
    made = parse_topology(text, derived)
    write_atomic(derived, fix_batch_lines(text, made, make_plan(made)))
    return derived


def _rate(what: LiveRehearsal) -> float:
    qps = what.qps or what.topology.measure.target_qps
    if qps is None:
        raise ConfigError(f"{what.topology.name} names no measure.target_qps", "give --qps")
    return qps


def _text(what: LiveRehearsal, places: Mapping[str, Path], model: Path, data: Path) -> str:
    topology = what.topology
    measure = topology.measure
    value: dict[str, Any] = {
        "schema": 1,
        "name": f"rehearse-{topology.name}"[:_NAME].rstrip(".-"),
        "nodes": {"count": topology.nodes.count, "gpus": topology.nodes.gpus},
        "model": {"name": "tiny-qwen3-vl-moe", "weights": {"path": str(model)}},
        "engine": "mocker",
        "device": "cpu",
        "roles": {},
        "frontends": topology.frontends.model_dump(),
        "head": topology.head,
        "measure": {"benchmark": measure.benchmark, "scenario": measure.scenario, "target_qps": _rate(what)},
        "reduced": {**(topology.reduced.model_dump(exclude_none=True) if topology.reduced else {})},
    }
    if topology.nodes.nvlink_domain:
        value["nodes"]["nvlink_domain"] = topology.nodes.nvlink_domain
    value["measure"]["dataset"] = str(data)
    value["reduced"] |= {"samples": SAMPLES}
    if what.seconds < _OFFICIAL_S:
        value["reduced"]["min_duration_s"] = what.seconds
    cap = benchmark(measure.benchmark, measure.round).max_new_tokens
    for name, role in topology.roles.present():
        flags = what.engines[name].mocker_flags(places[name])
        if name != "prefill":
            flags["decode-speedup-ratio"] = round(cap / float(what.lengths.outputs.mean()), 3)
        value["roles"][name] = {"workers": role.workers, "tensor_parallel": role.gpus, "args": flags}
    slots = f"#SBATCH --nodes={topology.nodes.count} --gres=gpu:{topology.nodes.gpus} --exclusive"
    head = f"{SHEBANG}\n{slots}\n#SBATCH --time=01:00:00 --no-requeue\n#\n"
    head += f"# A live rehearsal of {topology.name}: real Dynamo, simulated engines; its figures are rehearsed.\n"
    return head + yaml.safe_dump(value, sort_keys=False, width=110)


def _write_data(directory: Path, name: str, model: Path, lengths: Lengths) -> None:
    """A data set of the benchmark's kind with prompts as long as drawn, all in text: images count no tokens here."""
    meter = PromptMeter(model)
    images = name == WITH_IMAGES
    if images:
        write_tiny_catalogue(directory, SAMPLES)
    else:
        write_tiny_prompts(directory, SAMPLES)
    path = directory / (CATALOGUE_FILE if images else PROMPTS_FILE)
    key = "product_description" if images else "prompt"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    samples = load_catalogue(directory) if images else load_prompts(directory)
    every = max(1, len(lengths.prompts) // SAMPLES)
    for number, row in enumerate(rows):
        wanted = int(lengths.prompts[number * every % len(lengths.prompts)])
        uncounted = meter.image_rule.tokens(*IMAGE_SIZES[number % len(IMAGE_SIZES)]) if images else 0
        row[key] += _FILLER * max(0, wanted + uncounted - meter.count(samples[number]))
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))

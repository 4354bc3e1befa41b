"""Where profiles come from when nothing was measured: aiconfigurator's tables, or a roofline.

aiconfigurator covers NVIDIA's GPUs and many models; it is a program of another Python here (`pip install
aiconfigurator`), never a part of this package. A roofline needs nothing but a GPU's data sheet and the model's shape:
it says how things scale, not how fast an engine is, and is marked `analytic`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.model_shapes import PRECISION_BYTES, ModelShape
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.programs import run_program
from dynamo_mlperf.tuning.profiles import Profile, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TABLES_PROGRAM = Path(__file__).resolve().parent.parent / "serving" / "replay" / "aiconfigurator_tables.py"
"""Runs in the Python that has aiconfigurator."""
SYSTEMS: Mapping[str, str] = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
}
"""aiconfigurator's name of each GPU that it knows; it has none of AMD's."""
AIC_MODELS: Mapping[tuple[str, str], str] = {
    ("qwen3-vl-235b-a22b", "nvfp4"): "nvidia/Qwen3-235B-A22B-NVFP4",
    ("qwen3-vl-235b-a22b", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("qwen3-vl-235b-a22b", "bf16"): "Qwen/Qwen3-VL-235B-A22B-Instruct",
    ("gpt-oss-120b", "mxfp4"): "openai/gpt-oss-120b",
    ("deepseek-r1", "fp8"): "deepseek-ai/DeepSeek-R1",
}
"""aiconfigurator's name by `model.name` and precision; for Qwen3-VL the language model, without its vision tower."""
_TIMEOUT_S = 300.0
_LAST_WORDS = 300
_KV_POINTS = 64

# Dense peak in FLOP/s by precision, and memory bandwidth in bytes/s, per GPU (the vendors' data sheets).
_PEAKS: Mapping[str, tuple[float, float, float, float]] = {
    "h100": (0.99e15, 1.98e15, 1.98e15, 3.35e12),
    "h200": (0.99e15, 1.98e15, 1.98e15, 4.8e12),
    "b200": (2.25e15, 4.5e15, 9.0e15, 8.0e12),
    "gb200": (2.5e15, 5.0e15, 10.0e15, 8.0e12),
    "b300": (2.25e15, 4.5e15, 13.5e15, 8.0e12),
    "gb300": (2.5e15, 5.0e15, 15.0e15, 8.0e12),
    "mi300x": (1.3e15, 2.6e15, 2.6e15, 5.3e12),
    "mi325x": (1.3e15, 2.6e15, 2.6e15, 6.0e12),
    "mi355x": (2.5e15, 5.0e15, 10.0e15, 8.0e12),
}
_PRECISION_COLUMN: Mapping[str, int] = {"bf16": 0, "fp8": 1, "nvfp4": 2, "mxfp4": 2}
EXPERTS: Mapping[str, tuple[int, int]] = {
    "qwen3-vl-235b-a22b": (8, 128),
    "gpt-oss-120b": (4, 128),
    "deepseek-r1": (8, 256),
}
"""By model: routed experts per token, and how many there are (the published `config.json` files)."""
_COMPUTE_SHARE, _MEMORY_SHARE = 0.4, 0.6
"""Shares of the peaks that are assumed to be reached."""
_STEP_FLOOR_MS, _PREFILL_FLOOR_MS = 4.0, 10.0
"""What a step costs apart from arithmetic and memory: launches, collectives, the engine's own work; assumed."""
_HIDDEN = 4_096.0
"""Hidden size by which attention's parameters are turned into its width; 4,096 to 8,192 in the models here."""


@dataclass(frozen=True)
class Served:
    """What a profile is of."""

    model: str
    precision: str
    gpu: str
    tensor_parallel: int

    def facts(self, origin: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - a sidecar's values
        """The sidecar."""
        return {
            "origin": origin,
            "gpu": self.gpu,
            "model": self.model,
            "precision": self.precision,
            "tensor_parallel": self.tensor_parallel,
            "date": datetime.now(UTC).date().isoformat(),
            **more,
        }

    @property
    def name(self) -> str:
        """`gb200-nvfp4-tp2`."""
        return f"{self.gpu}-{self.precision}-tp{self.tensor_parallel}"


def from_aiconfigurator(served: Served, python: str, backend: str = "vllm") -> Profile:
    """The tables of aiconfigurator, checked for sense.

    Args:
        served: What the profile is of.
        python: A Python that has aiconfigurator.
        backend: Engine whose measurements it is to use.

    Raises:
        ConfigError: It does not cover this GPU or model, or its tables make no sense.
        SetupError: That Python does not have it.
    """
    system, model = SYSTEMS.get(served.gpu), AIC_MODELS.get((served.model, served.precision))
    other = "use --from analytic, or measure: dynamo-mlperf profile RUN_DIR"
    if system is None:
        raise ConfigError(f"aiconfigurator does not know {served.gpu}; it knows {', '.join(SYSTEMS)}", other)
    if model is None:
        known = ", ".join(sorted({f"{name} {precision}" for name, precision in AIC_MODELS}))
        raise ConfigError(f"no table for {served.model} in {served.precision}; there are {known}", other)
    argv = (python, str(TABLES_PROGRAM), model, system, backend, str(served.tensor_parallel))
    done = run_program(argv, timeout_s=_TIMEOUT_S, env=inherited_environment())
    if done.status != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.status}"])[-1][-_LAST_WORDS:]
        if "ModuleNotFoundError" in last:
            raise SetupError(
                f"{python} has no aiconfigurator: {last}",
                "pip install 'dynamo-mlperf[aiconfigurator]' in an environment of its own, and --python its python",
            )
        raise ConfigError(f"aiconfigurator has no figures for {served.name}: {last}", other)
    try:
        value = json.loads(done.stdout)
        table = np.array(value["step_ms"], dtype=np.float64)
        steps = _between(np.array(value["batches"], dtype=float), np.array(value["contexts"], dtype=float), table)
        prompts = np.array(value["prompts"], dtype=np.float64)
        prefill = np.array(value["prefill_ms"], dtype=np.float64)
        version = str(value["version"])
    except (KeyError, TypeError, ValueError) as problem:
        raise SetupError(f"aiconfigurator answered {done.stdout[:60]!r}", "use version 0.12.0") from problem
    facts = served.facts("aiconfigurator", source=f"aiconfigurator-core {version}: {model} on {system}, {backend}")
    profile = _grid(served, prompts, prefill, value["contexts"], steps, max(value["batches"]), facts)
    return checked(profile, f"aiconfigurator's tables for {served.name}", other)


def roofline(served: Served, shape: ModelShape) -> Profile:
    """What arithmetic and memory allow of this GPU and model, with assumed shares of the peaks.

    Raises:
        ConfigError: The GPU is not known.
    """
    peaks = _PEAKS.get(served.gpu)
    if peaks is None:
        raise ConfigError(f"no data sheet of {served.gpu!r}; there are {', '.join(_PEAKS)}", "name one of these GPUs")
    degree = served.tensor_parallel
    flops = peaks[_PRECISION_COLUMN[served.precision]] * degree * _COMPUTE_SHARE
    memory = peaks[3] * degree * _MEMORY_SHARE
    each = PRECISION_BYTES[served.precision]
    used, experts = EXPERTS.get(served.model, (1, 1))
    active = shape.attention + shape.dense + shape.experts * used / experts
    kv_token = shape.sequence_bytes(1, 1, 2.0)
    prompts = np.unique(np.geomspace(16, 66_000, 64).round())
    compute = (2.0 * active * prompts + shape.attention / _HIDDEN * prompts**2) / flops
    prefill = 1e3 * np.maximum(compute, shape.parameters * each / memory) + _PREFILL_FLOOR_MS

    def steps(batch: float, context: float) -> float:
        touched = 1.0 - (1.0 - used / experts) ** batch
        read = (shape.attention + shape.dense + shape.rest + shape.experts * touched) * each
        seconds = max((read + batch * context * kv_token) / memory, 2.0 * active * batch / flops)
        return float(1e3 * seconds + _STEP_FLOOR_MS)

    shares = f"{_COMPUTE_SHARE:g} of peak FLOP/s and {_MEMORY_SHARE:g} of peak bandwidth assumed"
    facts = served.facts("analytic", source=f"roofline: {shares}")
    profile = _grid(served, prompts, prefill, np.geomspace(256, 66_000, 14).round(), steps, 1024, facts)
    return checked(profile, f"the roofline of {served.name}", "report this")


def _between(
    batches: Array,
    contexts: Array,
    table: Array,
) -> Callable[[float, float], float]:
    """Step time of a batch at a context of the table, linear in the logarithm of the batch."""

    def steps(batch: float, context: float) -> float:
        column = table[:, int(np.argmin(np.abs(contexts - context)))]
        return float(np.interp(np.log(batch), np.log(batches), column))

    return steps


def _grid(  # noqa: PLR0917 - what a profile consists of
    served: Served,
    prompts: Array,
    prefill_ms: Array,
    contexts: Sequence[float] | Array,
    steps: Callable[[float, float], float],
    most: float,
    facts: Mapping[str, Any],
) -> Profile:
    """A profile on the axes that the mocker reads: tokens of KV cache by context, batch = the one over the other."""
    context = np.asarray(contexts, dtype=np.float64)
    loads = np.unique(np.geomspace(context[0], most * 8_192.0, _KV_POINTS).round())
    itl = np.array([[steps(min(max(kv / each, 1.0), most), each) for each in context] for kv in loads])
    return Profile(served.name, prompts, prefill_ms, loads, context, itl, facts)

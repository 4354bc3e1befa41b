"""Timing profiles: how long prefill takes over prompt length, and a decode step over load and context.

On disk a profile is an NPZ file with the keys that Dynamo's mocker and replay read (`planner-profile-data`, ai-dynamo
1.6.1) and beside it `NAME.yaml`, which says where the figures come from: origin (`aiconfigurator`, `measured` or
`analytic`), gpu, model, precision, tensor_parallel, date. What makes no sense is refused with the numbers.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded, write_atomic
from dynamo_mlperf.topology.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ORIGINS = ("aiconfigurator", "measured", "analytic")
KEYS = ("prefill_isl", "prefill_ttft_ms", "decode_active_kv_tokens", "decode_context_length", "decode_itl")
_SLACK = 0.1
"""A table may fall by this share of a value before it counts as not monotone: measured figures scatter."""
_LONGEST_MS = 3.6e6
_MAX_BYTES = 64_000_000
_NO_NPZ = (
    *(ValueError, TypeError, AttributeError, EOFError, MemoryError),
    *(
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        KeyError,
        OverflowError,
        SyntaxError,
        TokenError,
    ),
)
"""What numpy and zipfile say of damaged files."""
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, eq=False)
class Profile:
    """The timing of one worker.

    Attributes:
        name: For people and files.
        prefill_tokens: Tokens of prompts that are computed together, ascending, shape (n,).
        prefill_ms: Time of that, shape (n,).
        kv_tokens: Tokens of KV cache that a decode step attends to over all its sequences, ascending, shape (m,).
        context: Mean tokens of one sequence, ascending, shape (k,); kv_tokens / context is the batch.
        itl_ms: Time of a decode step, shape (m, k).
        facts: The sidecar: origin, gpu, model, precision, tensor_parallel, date and what else it says.
    """

    name: str
    prefill_tokens: Array
    prefill_ms: Array
    kv_tokens: Array
    context: Array
    itl_ms: Array
    facts: Mapping[str, Any] = field(default_factory=dict)

    def prefill_at(self, tokens: float) -> float:
        """Time of a prefill of so many tokens, in ms; beyond the table its last value stays."""
        return float(np.interp(tokens, self.prefill_tokens, self.prefill_ms))

    def itl_at(self, batch: float, context: float) -> float:
        """Time of a decode step of `batch` sequences of `context` tokens, in ms (bilinear, as the mocker does)."""
        column = [np.interp(batch * context, self.kv_tokens, self.itl_ms[:, k]) for k in range(len(self.context))]
        return float(np.interp(context, self.context, np.array(column)))

    def scaled(self, prefill: float, itl: float) -> Profile:
        """The same with all prefill times and all step times multiplied."""
        return replace(self, prefill_ms=self.prefill_ms * prefill, itl_ms=self.itl_ms * itl)

    def problems(self) -> list[str]:
        """What makes no sense, with the numbers; empty for a profile that can be used."""
        axes = {KEYS[0]: self.prefill_tokens, KEYS[2]: self.kv_tokens, KEYS[3]: self.context}
        shapes = self.prefill_ms.shape == self.prefill_tokens.shape and self.itl_ms.shape == (
            self.kv_tokens.size,
            self.context.size,
        )
        if not shapes or any(axis.ndim != 1 or axis.size < 2 for axis in axes.values()):  # noqa: PLR2004 - an interval
            prompts = f"{self.prefill_tokens.shape} prompts and {self.prefill_ms.shape} times"
            loads = f"{self.kv_tokens.shape} by {self.context.shape} loads and {self.itl_ms.shape} step times"
            return [f"shapes do not fit: {prompts}, {loads}"]
        found = [text for key, axis in axes.items() if (text := _axis_problem(key, axis))]
        for key, table in ((KEYS[1], self.prefill_ms), (KEYS[4], self.itl_ms)):
            found += [text for text in [_value_problem(key, table)] if text]
        if not found:
            found += _falls(KEYS[1], self.prefill_ms, self.prefill_tokens, "tokens")
            found += _falls(KEYS[4], self.itl_ms, self.kv_tokens, "tokens of KV cache")
        return found

    def npz_bytes(self) -> bytes:
        """The NPZ file."""
        out = io.BytesIO()
        np.savez_compressed(
            out,
            prefill_isl=self.prefill_tokens,
            prefill_ttft_ms=self.prefill_ms,
            decode_active_kv_tokens=self.kv_tokens,
            decode_context_length=self.context,
            decode_itl=self.itl_ms,
        )
        return out.getvalue()


def _axis_problem(key: str, axis: Array) -> str | None:
    if not np.all(np.isfinite(axis)) or axis[0] < 0:
        return f"{key} holds {_first(axis[~(np.isfinite(axis) & (axis >= 0))])}"
    steps = np.diff(axis)
    if np.all(steps > 0):
        return None
    at = int(np.argmax(steps <= 0))
    return f"{key} does not ascend: {axis[at]:g} is followed by {axis[at + 1]:g}"


def _value_problem(key: str, table: Array) -> str | None:
    wrong = ~(np.isfinite(table) & (table > 0) & (table < _LONGEST_MS))
    return f"{key} holds {_first(table[wrong])} ms ({wrong.sum()} of {table.size} values)" if wrong.any() else None


def _first(values: Array) -> str:
    return f"{values.ravel()[0]:g}"


def _falls(key: str, table: Array, axis: Array, unit: str) -> list[str]:
    """The deepest fall along the first axis below what was reached before, when it is more than scatter."""
    reached = np.maximum.accumulate(table, axis=0)
    fall = 1.0 - table / reached
    if fall.max() <= _SLACK:
        return []
    at = np.unravel_index(int(np.argmax(fall)), table.shape)
    seen = f"{table[at]:.4g} ms at {axis[at[0]]:g} {unit}, {reached[at]:.4g} ms below that"
    return [f"{key} falls by {100 * fall[at]:.0f} %: {seen}"]


def checked(profile: Profile, where: str, action: str) -> Profile:
    """The profile itself, with scatter within what is allowed smoothed upwards.

    Raises:
        ConfigError: It makes no sense; the error holds the numbers.
    """
    problems = profile.problems()
    if problems:
        raise ConfigError(f"{where}: {'; '.join(problems)}", action)
    return replace(
        profile,
        prefill_ms=np.maximum.accumulate(profile.prefill_ms),
        itl_ms=np.maximum.accumulate(profile.itl_ms, axis=0),
    )


def _numbers(found: Array) -> Array:
    if found.dtype.kind not in "fiu":
        raise ValueError(f"could not convert {found.dtype} to float")
    return found.astype(np.float64)


def read_profile(path: Path) -> Profile:
    """Read an NPZ file and, where there is one, its sidecar.

    Raises:
        ConfigError: It is none, or its figures make no sense.
    """
    action = "name an NPZ file with the mocker's keys; `dynamo-mlperf profile` makes one"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes, over {_MAX_BYTES}", action)
        with np.load(io.BytesIO(read_bounded(path)), allow_pickle=False) as content:
            missing = [key for key in KEYS if key not in content]
            if missing:
                raise ConfigError(f"{path}: no {', '.join(missing)} in it", action)
            prompts, prefill, kv, context, itl = (_numbers(content[key]) for key in KEYS)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror or 'no NPZ file'}", action) from problem
    except _NO_NPZ as problem:
        raise ConfigError(f"{path} is no profile: {str(problem)[:100]}", action) from problem
    sidecar = path.with_suffix(".yaml")
    facts = read_document(sidecar).value if sidecar.is_file() else {"origin": "not said"}
    profile = Profile(path.stem, prompts, prefill, kv, context, itl, facts)
    return checked(profile, str(path), "measure again, or use another profile")


def write_profile(profile: Profile, path: Path) -> None:
    """Write NPZ and sidecar, the sidecar first, each atomically.

    Raises:
        OSError: They cannot be written.
    """
    text = yaml.safe_dump(dict(profile.facts), sort_keys=False, allow_unicode=True, width=120)
    write_atomic(path.with_suffix(".yaml"), text)
    write_atomic(path, profile.npz_bytes())


def shipped_benchmarks() -> Path:
    """Where the benchmarks' data lies: in an installed package below `shipped`, in a checkout beside the package."""
    shipped = _PACKAGE / "shipped" / "benchmarks"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "benchmarks"


def shipped_profiles(benchmark: str) -> Iterator[Path]:
    """The NPZ files that come with a benchmark."""
    yield from sorted((shipped_benchmarks() / benchmark / "profiles").glob("*.npz"))


def find_shipped(benchmark: str, gpu: str | None, precision: str | None, tensor_parallel: int) -> Profile | None:
    """The shipped profile of a GPU, precision and degree; None where there is none."""
    wanted = {"gpu": gpu, "precision": precision, "tensor_parallel": tensor_parallel}
    for path in shipped_profiles(benchmark):
        facts = read_document(path.with_suffix(".yaml")).value
        if all(facts.get(key) == value for key, value in wanted.items()):
            return read_profile(path)
    return None

"""Engine flags that the planner reads: written in full, and with values that the engine's own parser takes.

Argument parsers take an unambiguous beginning for the whole flag, so a beginning of a flag that is read here would be
obeyed by the engine and not seen by the plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dynamo_mlperf.topology.document import Problem

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Role

_SUFFIXED = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)(?P<suffix>[kKmMgGtT])")
_DECIMAL: Mapping[str, int] = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Mapping[str, int] = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_WHOLE = re.compile(r"[0-9]{1,18}")
_MOST = 10**18
"""No engine counts as far."""


def length_of(value: object) -> int | None:
    """The number that a flag for tokens or bytes says; None where it says none, or leaves it to the engine.

    Whole numbers, and as vLLM takes them (`human_readable_int` of its `argparse_utils.py`): `8k` is 8,000, `8K` 8,192.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 < value < _MOST else None
    text = value.strip() if isinstance(value, str) else ""
    if _WHOLE.fullmatch(text):
        return int(text) or None
    found = _SUFFIXED.fullmatch(text)
    if not found or (found["suffix"] in _BINARY and "." in found["number"]):
        return None
    times = _DECIMAL.get(found["suffix"]) or _BINARY[found["suffix"]]
    return int(float(found["number"]) * times) or None


def _count(value: object) -> bool:
    return not isinstance(value, bool) and bool(_WHOLE.fullmatch(str(value))) and int(str(value)) > 0


def _length(value: object) -> bool:
    return length_of(value) is not None


def _length_or_auto(value: object) -> bool:
    return _length(value) or str(value).strip().lower() in {"-1", "auto"}


def _share(value: object) -> bool:
    return 0 < _float(value) <= 1


def _positive(value: object) -> bool:
    return _float(value) > 0


def _float(value: object) -> float:
    """The number that a value is; -1 where it is none."""
    try:
        number = -1.0 if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return -1.0
    return number if math.isfinite(number) else -1.0


Rule = tuple[Callable[[object], bool], str]
_COUNT: Rule = (_count, "a whole number from 1 on")
_LENGTH: Rule = (_length, "a whole number from 1 on, or such as 8k (8,000) or 8K (8,192)")
_LENGTH_OR_AUTO: Rule = (_length_or_auto, "a whole number from 1 on, such as 8192 or 8k, or auto")
_SHARE: Rule = (_share, "a number above 0 and up to 1")
_POSITIVE: Rule = (_positive, "a number above 0")

NUMBERS: Mapping[str, Mapping[str, Rule]] = {
    "vllm": {
        "max-model-len": _LENGTH_OR_AUTO,
        "max-num-batched-tokens": _LENGTH,
        "kv-cache-memory-bytes": _LENGTH,
        "max-num-seqs": _COUNT,
        "block-size": _COUNT,
        "gpu-memory-utilization": _SHARE,
    },
    "sglang": {
        "context-length": _COUNT,
        "max-running-requests": _COUNT,
        "page-size": _COUNT,
        "mem-fraction-static": _SHARE,
    },
    "trtllm": {
        "max-seq-len": _COUNT,
        "max-batch-size": _COUNT,
        "max-num-tokens": _COUNT,
        "kv-block-size": _COUNT,
    },
    "mocker": {
        "max-model-len": _COUNT,
        "max-num-batched-tokens": _COUNT,
        "max-num-seqs": _COUNT,
        "block-size": _COUNT,
        "num-gpu-blocks-override": _COUNT,
        "speedup-ratio": _POSITIVE,
        "decode-speedup-ratio": _POSITIVE,
    },
}
"""By engine: flags whose value is a number, and what numbers they take (vLLM 0.31.0 `arg_utils.py` and `config/`,
SGLang 0.5.21 `server_args.py`, `dynamo/trtllm/backend_args.py` and `dynamo/mocker/args.py` of ai-dynamo 1.6.1).
TensorRT-LLM's share of memory moves into its options, and is checked with those."""

READ_FLAGS: frozenset[str] = frozenset(
    {
        *(flag for of_engine in NUMBERS.values() for flag in of_engine),
        "attention-backend",
        "cpu-offload-gb",
        "disable-hybrid-kv-cache-manager",
        "dtype",
        "enforce-eager",
        "free-gpu-memory-fraction",
        "kv-cache-dtype",
        "load-format",
        "quantization",
        "speculative-config",
    }
)
"""Flags that decide what is planned, refused or recorded."""


def read_flag_meant(bare: str) -> str | None:
    """The flag of `READ_FLAGS` that `bare` is a beginning of, without being one itself; else None."""
    if not bare or bare in READ_FLAGS:
        return None
    return next((flag for flag in sorted(READ_FLAGS) if flag.startswith(bare)), None)


def number_problems(engine: str, name: str, role: Role) -> list[Problem]:
    """Values that the engine's argument parser would refuse."""
    found = []
    for flag, (fits, wanted) in NUMBERS[engine].items():
        value = role.args.get(flag)
        if value is not None and not fits(value):
            found.append(Problem(("roles", name, "args", flag), f"wanted {wanted}, got {str(value)[:60]}"))
    return found

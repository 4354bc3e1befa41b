"""What a topology or site file may not set: flags and variables of the launcher's own, and secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from dynamo_mlperf.process.secret_words import is_secret_name
from dynamo_mlperf.topology.flag_values import read_flag_meant
from dynamo_mlperf.topology.no_secrets import LOOKS_LIKE_ONE

_LAUNCHER = "the launcher sets it"
_DEGREE = "a worker takes exactly tensor_parallel x data_parallel GPUs"
_NO_CACHING = "MLPerf forbids caching across queries, so the launcher always turns it off"
_OPTIONS = "write engine options that have no flag under engine_config"

FLAG_OWNERS: Mapping[str, str] = {
    "model": "model.weights sets it",
    "model-path": "model.weights sets it",
    "served-model-name": "model.name sets it, with the job's nonce",
    "model-name": "model.name sets it, with the job's nonce",
    "tensor-parallel-size": "tensor_parallel sets it",
    "tp": "tensor_parallel sets it",
    "tp-size": "tensor_parallel sets it",
    "data-parallel-size": "data_parallel sets it",
    "data-parallel-size-local": "data_parallel sets it",
    "data-parallel-rank": "data_parallel sets it",
    "data-parallel-start-rank": "data_parallel sets it",
    "data-parallel-address": "data_parallel sets it",
    "data-parallel-rpc-port": "data_parallel sets it",
    "data-parallel-hybrid-lb": "data_parallel sets it",
    "data-parallel-external-lb": "data_parallel sets it",
    "dp": "data_parallel sets it",
    "dp-size": "data_parallel sets it",
    "enable-expert-parallel": "expert_parallel sets it",
    "expert-parallel-size": "expert_parallel sets it",
    "ep": "expert_parallel sets it",
    "ep-size": "expert_parallel sets it",
    "moe-expert-parallel-size": "expert_parallel sets it",
    "enable-dp-attention": "data_parallel with expert_parallel sets it",
    "enable-attention-dp": "data_parallel with expert_parallel sets it",
    "attn-dp-size": "data_parallel with expert_parallel sets it",
    "pipeline-parallel-size": _DEGREE,
    "prefill-context-parallel-size": _DEGREE,
    "pcp": _DEGREE,
    "pp": _DEGREE,
    "pp-size": _DEGREE,
    "num-workers": "workers sets it",
    "disaggregation-mode": "the role's name (prefill, decode, aggregated) sets it",
    "is-prefill-worker": "the role's name (prefill, decode, aggregated) sets it",
    "is-decode-worker": "the role's name (prefill, decode, aggregated) sets it",
    "kv-transfer-config": "the role's name (prefill, decode, aggregated) sets it",
    "disaggregation-transfer-backend": "KV cache always moves by NIXL",
    "enable-prefix-caching": _NO_CACHING,
    "disable-radix-cache": _NO_CACHING,
    "mm-processor-cache-gb": _NO_CACHING,
    "multimodal-embedding-cache-capacity-gb": _NO_CACHING,
    "multimodal-embedding-cache-publisher": _NO_CACHING,
    "kv-offloading-size": _NO_CACHING,
    "kv-offloading-backend": _NO_CACHING,
    "ec-transfer-config": _NO_CACHING,
    "connector": _NO_CACHING,
    "enable-hierarchical-cache": _NO_CACHING,
    "hicache-storage-backend": _NO_CACHING,
    "enable-lmcache": _NO_CACHING,
    "enable-prefix-mm-cache": _NO_CACHING,
    "disaggregation-decode-enable-radix-cache": _NO_CACHING,
    "disaggregation-decode-enable-offload-kvcache": _NO_CACHING,
    "extra-engine-args": _OPTIONS,
    "override-engine-args": _OPTIONS,
    "extra-llm-api-options": _OPTIONS,
    "config": _OPTIONS,
    "disagg-config": _OPTIONS,
    "disagg-config-key": _OPTIONS,
    "gpus-per-node": _LAUNCHER,
    "backend": _LAUNCHER,
    "host": _LAUNCHER,
    "port": _LAUNCHER,
    "headless": _LAUNCHER,
    "distributed-executor-backend": "the launcher starts the ranks itself, without Ray",
    "nnodes": _LAUNCHER,
    "node-rank": _LAUNCHER,
    "master-addr": _LAUNCHER,
    "master-port": _LAUNCHER,
    "dist-init-addr": _LAUNCHER,
    "nccl-port": _LAUNCHER,
    "disaggregation-bootstrap-port": _LAUNCHER,
    "namespace": _LAUNCHER,
    "endpoint": _LAUNCHER,
    "request-plane": _LAUNCHER,
    "event-plane": _LAUNCHER,
    "discovery-backend": "frontends.discovery sets it",
}
"""Engine flags that are not the file's to set, and what sets them."""

_FLAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_LIKE_A_FLAG = re.compile(r"-(?![0-9.])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_VARIABLES = re.compile(
    r"DYN_.*|VLLM_NIXL_SIDE_CHANNEL_.*|VLLM_HOST_IP|SGLANG_HOST_IP|SGLANG_VLM_CACHE_SIZE_MB|CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|ETCD_ENDPOINTS|SLURM_.*"
)
_CODE_VARIABLES = re.compile(r"LD_.*|PYTHON(PATH|HOME|STARTUP|USERBASE)|PATH|BASH_ENV|ENV")
"""Variables that decide which program or library runs."""
_MAX_DEPTH = 8


def check_flag(flag: str) -> str:
    """`flag` when a role may set it.

    Argument parsers take an unambiguous beginning for the whole flag, so beginnings of reserved flags are refused too.
    vLLM takes `--flag.key value` for one key of a flag's JSON (`vllm/utils/argparse_utils.py`), so what stands before
    the first dot is held to the same.

    Raises:
        ValueError: It is misspelt, or not the file's to set.
    """
    plain = flag.lstrip("-").replace("_", "-")
    bare = plain.removeprefix("no-").split(".", 1)[0]
    longer = next((name for name in FLAG_OWNERS if bare and name.startswith(bare)), None)
    if plain.startswith("trtllm."):
        raise ValueError(f"not a flag to set here: {_OPTIONS}")
    if bare in FLAG_OWNERS:
        raise ValueError(f"not a flag to set here: {FLAG_OWNERS[bare]}")
    if longer is not None:
        raise ValueError(f"not a flag to set here: it abbreviates {longer}, and {FLAG_OWNERS[longer]}")
    if (meant := read_flag_meant(bare)) is not None:
        raise ValueError(f"write the flag in full: it abbreviates {meant}, which the plan counts on")
    if plain != flag:
        raise ValueError(f"write the flag as {plain}")
    if not _FLAG.fullmatch(flag):
        raise ValueError("wanted an engine flag of letters, digits, dots and dashes")
    return flag


def check_flag_value(value: object, depth: int = 0) -> object:
    """`value` when it can stand behind a flag: text, a finite number, true, false, null, or lists and mappings of such.

    Raises:
        ValueError: It cannot.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"wanted a finite number, got {value}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("holds a NUL character, which no argument can")
    if isinstance(value, Mapping):
        for item in value.values():
            check_flag_value(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            check_flag_value(item, depth + 1)
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"wanted text, a number, true, false, a list or a mapping, got a {type(value).__name__}")  # noqa: TRY004 - pydantic reports ValueError
    return value


def check_argument(value: object) -> object:
    """`value` when it can stand behind a flag, and is not taken for another one, which nobody has checked.

    Raises:
        ValueError: It cannot, or an argument parser would take it for a flag.
    """
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, str) and _LIKE_A_FLAG.match(item):
            raise ValueError(f"{item!r} would be taken for a flag; write a flag of the engine as a key of its own")
    return check_flag_value(value)


def check_variable(name: str) -> str:
    """`name` when a role's or site's environment may set it.

    Raises:
        ValueError: It is no variable name, the launcher's own, or named like a secret.
    """
    if not _VARIABLE.fullmatch(name):
        raise ValueError("wanted the name of a variable: letters, digits and underscores")
    if _OWN_VARIABLES.fullmatch(name):
        raise ValueError(f"not a variable to set here: {_LAUNCHER}")
    if is_secret_name(name):
        raise ValueError(LOOKS_LIKE_ONE)
    return name


def check_role_variable(name: str) -> str:
    """`name` when a role's environment may set it: what decides which code runs belongs to the site.

    Raises:
        ValueError: See `check_variable`; or programs and libraries are found by it.
    """
    if _CODE_VARIABLES.fullmatch(name):
        raise ValueError("decides which code runs, so it is the cluster's own: write it in the site's environment")
    return check_variable(name)


def _variable_value(value: object) -> object:
    """Whole numbers become text as they stand; others are refused, as 1.10 and yes lose their spelling in YAML."""
    if isinstance(value, bool | float):
        raise ValueError(f"quote it: every program reads its own spelling of {value}")  # noqa: TRY004 - pydantic reports ValueError
    return str(value) if isinstance(value, int) else value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("holds a NUL character, which no variable can")
    return value


Flag = Annotated[str, AfterValidator(check_flag)]
_ANY_VALUE = WithJsonSchema({"type": ["string", "integer", "number", "boolean", "array", "object", "null"]})
FlagValue = Annotated[Any, AfterValidator(check_argument), _ANY_VALUE]
OptionValue = Annotated[Any, AfterValidator(check_flag_value), _ANY_VALUE]
Variable = Annotated[str, AfterValidator(check_variable)]
VariableValue = Annotated[
    str, BeforeValidator(_variable_value), AfterValidator(_no_nul), WithJsonSchema({"type": ["string", "integer"]})
]

Flags = Mapping[Flag, FlagValue]
Options = Mapping[str, OptionValue]
FLAGS_HELP = (
    "Engine flags without their dashes. true: `--flag`; false: `--no-flag`; null: left out; a list: several values; "
    "a mapping: compact JSON"
)
Variables = Mapping[Variable, VariableValue]
RoleVariables = Mapping[Annotated[str, AfterValidator(check_role_variable)], VariableValue]
VARIABLES_HELP = "Environment variables of the workers, byte for byte"

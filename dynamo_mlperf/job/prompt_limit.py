"""Prompts that the engines would refuse are refused before anything starts: sample, length, limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.prompt_length import PromptMeter, too_long
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.staging.manifest import load_manifest
from dynamo_mlperf.topology.flag_values import length_of

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.workload import DataSet
    from dynamo_mlperf.topology.spec import Topology

LENGTH_FLAGS = {"vllm": "max-model-len", "sglang": "context-length", "trtllm": "max-seq-len"}
"""By engine: the flag that bounds prompt and answer together; without it the model's own bound holds."""


def model_files(topology: Topology, base_dir: Path) -> Path | None:
    """Where the model's files lie before staging; None where that place cannot be seen from here.

    Raises:
        ConfigError: The manifest cannot be read.
    """
    paths = topology.resolve(base_dir)
    if paths.weights is not None:
        directory = paths.weights
    elif paths.manifest is not None:
        directory = base_dir / load_manifest(paths.manifest).source
    else:
        return None
    return directory if (directory / "config.json").is_file() else None


def check_prompts(topology: Topology, base_dir: Path, samples: DataSet) -> str | None:
    """Every prompt leaves room for an answer; simulated engines (mocker) have no limit.

    Returns:
        What could not be checked, for people; None where all was.

    Raises:
        ConfigError: One does not; it names the longest, its length and the limit.
    """
    if topology.engine not in LENGTH_FLAGS:
        return None
    directory = model_files(topology, base_dir)
    if directory is None:
        return "the length of prompts: the model's files cannot be seen from here"
    limit, where = _limit(topology, directory)
    if limit is None:
        return "the length of prompts: neither the roles' arguments nor the model's config.json bound it"
    return refuse_long(samples, directory, limit, where)


def refuse_long(samples: DataSet, directory: Path, limit: int, where: str) -> str | None:
    """Every prompt leaves room for an answer.

    Args:
        samples: The data set.
        directory: The model's files; what is not there makes prompts uncounted that might be too long.
        limit: Most tokens of prompt and answer together.
        where: Where that limit stands, for people.

    Returns:
        What could not be checked, for people; None where all was.

    Raises:
        ConfigError: One does not; it names the longest, its length and the limit.
    """
    found, uncounted = too_long(samples, PromptMeter(directory), limit)
    if found:
        longest = found[0]
        more = f"; {len(found) - 1} more are too long" if len(found) > 1 else ""
        raise ConfigError(
            f"sample {longest.index} ({longest.where}) has a prompt of {longest.tokens} tokens, and with an answer "
            f"{limit} are the limit ({where}){more}",
            f"raise it to {longest.tokens + 1} or more, or take the sample out of the data set",
        )
    if uncounted:
        return f"the length of {uncounted} long prompts: no tokenizer.json, or no library `tokenizers` here"
    return None


def _limit(topology: Topology, directory: Path) -> tuple[int | None, str]:
    """The lowest bound of any role, and where it stands."""
    flag = LENGTH_FLAGS[topology.engine]
    given = {
        f"{flag} of {name}": tokens
        for name, role in topology.roles.present()
        if (tokens := length_of(role.args.get(flag))) is not None
    }
    if len(given) < len(topology.roles.present()):
        config = json.loads(read_bounded(directory / "config.json"))
        own = (config.get("text_config") or config).get("max_position_embeddings")
        if isinstance(own, int):
            given["max_position_embeddings of the model"] = own
    where = min(given, key=lambda name: given[name], default="")
    return given.get(where), where

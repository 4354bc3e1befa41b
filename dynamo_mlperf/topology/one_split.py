"""The topology file of one split: the same file with that split's workers and a sweep over nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.role_splits import own_split, with_split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.topology.spec import Topology

_MAX_NAME = 80


def one_split_text(text: str, topology: Topology, split: RoleSplit) -> str:
    """The text of a topology file that measures one split alone; `sbatch` takes it as it takes the file.

    Args:
        text: The file.
        topology: Its content, with the `sweep:` that holds (a command line may have changed it).
        split: One of its splits.

    Raises:
        ConfigError: The file's name leaves no room for the split's.
    """
    value = yaml.safe_load(text)
    name = f"{topology.name}-{split.name.lower()}"
    if len(name) > _MAX_NAME:
        raise ConfigError(f"{name}: {len(name)} characters, {_MAX_NAME} are allowed", "shorten the file's name")
    roles: dict[str, Any] = {role: dict(keys) for role, keys in value["roles"].items() if keys is not None}
    for count in split.counts:
        roles[count.role] |= {"workers": count.workers, "tensor_parallel": count.tensor_parallel}
    block = topology.sweep
    kept: Mapping[str, Any] = {} if block is None else block.model_dump(exclude_unset=True)
    changed = {
        **value,
        "name": name,
        "roles": roles,
        "sweep": {**kept, "splits": [own_split(with_split(topology, split)).name]},
    }
    head = [line for line in text.split("\n") if line.startswith("#")]
    return "\n".join([*head, yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)])

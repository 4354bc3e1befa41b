"""Whether a file asks for the very deployment that is held: nodes, model, engine, roles, site, command lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.deployment import Deployment
from dynamo_mlperf.job.held import called
from dynamo_mlperf.job.weights import read_manifest
from dynamo_mlperf.process.secret_words import is_secret_name
from dynamo_mlperf.topology.document import flat

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.staging.manifest import Manifest
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology

_OF_THE_MEASUREMENT = {"schema_version", "name", "site", "measure", "search", "sweep", "hold", "reduced", "timeouts"}
"""Blocks of a file that change nothing of what serves; the site is compared by its values."""
_NOT_OF_ENGINES = {"name", "endpoints_python"}
"""Keys of a site that no engine sees."""
_SHOWN = 5
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Asked:
    """What a file asks for.

    Attributes:
        topology: Its content.
        plan: Its plan.
        site: Its site.
        base_dir: What its paths resolve against.
    """

    topology: Topology
    plan: Plan
    site: Site
    base_dir: Path


def refuse_another(deployment: Deployment, manifest: Manifest | None, asked: Asked) -> None:
    """Refuse a file whose deployment is not the one that is up.

    Args:
        deployment: What is held.
        manifest: The staging manifest by which its weights were loaded; None where they are used in place.
        asked: What the file asks for.

    Raises:
        ConfigError: Names the keys that differ, with both values.
    """
    job, name = deployment.job, called(deployment.job.paths.root)
    there = _keys(Asked(job.topology, job.plan, job.site, job.base_dir))
    here = _keys(asked)
    found = [
        f"{key} is {_shown(key, there.get(key))} there, {_shown(key, here.get(key))} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]
    if not found and read_manifest(asked.topology, asked.base_dir) != manifest:
        found = ["model.weights.stage has changed since the engines loaded by it"]
    if not found:
        mine, other = _starts(deployment), _starts(_in_place_of(deployment, asked))
        found = [f"the command line of {one} would differ" for one in mine if mine[one] != other.get(one)]
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"run {name} holds another deployment: {'; '.join(found[:_SHOWN])}{more}",
            f"write here what is there, or start anew: `dynamo-mlperf cancel {name}`, then run without --attach",
        )


def _keys(asked: Asked) -> dict[str, Any]:
    """All that decides plan, model and command lines, as flat names and values."""
    value = asked.topology.model_dump(mode="json", exclude=_OF_THE_MEASUREMENT)
    paths = asked.topology.resolve(asked.base_dir)
    weights = {"stage": paths.manifest, "path": paths.weights}
    value["model"]["weights"] = {name: str(path) for name, path in weights.items() if path is not None}
    return dict(flat("", {**value, "site": asked.site.model_dump(mode="json", exclude=_NOT_OF_ENGINES)}))


def _shown(name: str, value: object) -> str:
    if value is not None and is_secret_name(name):
        return "(not shown)"
    text = "left out" if value is None else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _in_place_of(deployment: Deployment, asked: Asked) -> Deployment:
    """The deployment as this file would have it, on the same nodes and ports; nothing of it starts."""
    job = replace(deployment.job, topology=asked.topology, plan=asked.plan, site=asked.site, base_dir=asked.base_dir)
    endpoints = replace(deployment.endpoints, plan=asked.plan)
    return Deployment(job, endpoints, deployment.model_dirs, deployment.machines)


def _starts(deployment: Deployment) -> Mapping[str, object]:
    """How each engine process starts: argument vectors, environments, files."""
    launches = {process.name: deployment.launch_of(process) for process in deployment.endpoints.processes}
    return {
        name: ([(command.argv, dict(command.env)) for command in one.commands], dict(one.files))
        for name, one in launches.items()
    }

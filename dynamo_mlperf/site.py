"""The site file: what differs from cluster to cluster and does not belong in a topology file.

A site is chosen by `--site`, else the topology file's `site:`, else `$DYNAMO_MLPERF_SITE`, else built-in defaults.
Field descriptions are the help texts of `dynamo-mlperf schema site`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.batch import unfilled as marked_lines
from dynamo_mlperf.topology.document import Document, Place, dotted, read_document
from dynamo_mlperf.topology.numa import NumaArea
from dynamo_mlperf.topology.reserved import VARIABLES_HELP, Variables
from dynamo_mlperf.topology.site_values import (
    UNSET,
    Cores,
    ExpandedPath,
    Image,
    Line,
    ModuleName,
    Mount,
    PortRange,
    Word,
    core_numbers,
)
from dynamo_mlperf.topology.strict import StrictModel, check, nearest

SITE_VARIABLE = "DYNAMO_MLPERF_SITE"
BUILT_IN = "built-in"
PLACEHOLDER = "FILL-IN"
"""Stands in the example sites for what only the cluster's own people know."""
_SET_BY = {"DEVCLUSTER_DIR": "slurm/devcluster exec"}
"""Variables of the sites shipped here, and what sets them."""

_HEAD_CORES = 4
"""For the controller, the store, LoadGen's process and its client processes."""
_PACKAGE = Path(__file__).resolve().parent


def _cache_directory() -> str:
    """The user's cache directory by the XDG base directory specification."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return str(root / "dynamo-mlperf")


class Container(StrictModel):
    """What engines run in on a cluster."""

    runtime: Literal["pyxis", "apptainer"] = Field(
        default="pyxis", description="pyxis: srun's own container options (with enroot); apptainer: `apptainer exec`"
    )
    image: Image = Field(description="pyxis: a .sqsh file or REGISTRY#IMAGE:TAG; apptainer: a .sif file or a URI")
    mounts: list[Mount] = Field(
        default_factory=list,
        description="HOST:PLACE or HOST:PLACE:FLAGS; local_path and shared_path are mounted without being named",
    )
    writable: bool = Field(default=False, description="Whether engines may write into the container's own files")
    home: bool = Field(
        default=False, description="Whether the home directory is mounted; if not, engines get one below local_path"
    )
    devices: Literal["nvidia", "amd", "none"] = Field(
        default="nvidia",
        description="apptainer: whose GPUs to bring in (--nv, --rocm); pyxis brings NVIDIA's by itself",
    )


class NumaNode(StrictModel):
    """One NUMA node of a cluster's node: which cores, GPUs and memory belong together."""

    cores: Cores = Field(description="Its cores, such as 0-35 or 0-3,8-11")
    gpus: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list, description="Indices of the GPUs nearest to it"
    )
    memory_gib: float | None = Field(default=None, gt=0, description="Its memory in GiB; left out, not divided")


class Site(StrictModel):
    """One cluster or machine."""

    name: Word = Field(default=BUILT_IN, description="Name of the site; left out, the file's")
    partition: Word | None = Field(default=None, description="Slurm partition; left out, the cluster's default")
    account: Word | None = Field(default=None, description="Slurm account; left out, the user's default")
    qos: Word | None = Field(default=None, description="Slurm quality of service; left out, the default")
    constraint: Word | None = Field(default=None, description="Slurm node features; left out, none")
    local_path: ExpandedPath = Field(
        default_factory=_cache_directory,
        description="Directory on each node's own disk, for staged weights; default: dynamo-mlperf in the user's cache",
    )
    evict: bool = Field(
        default=False,
        description="Whether staging may remove the least recently used models in local_path when room is short",
    )
    staging: Literal["auto", "peers", "store"] = Field(
        default="auto",
        description="Where nodes take weights from: peers, the store read once and passed on from node to node; store, "
        "by each node; auto, peers unless the store proves much faster",
    )
    shared_path: ExpandedPath | None = Field(default=None, description="Directory that all nodes see; left out, none")
    interface: Word | None = Field(
        default=None, description="Network interface that serves; left out, the one that carries the hostname's address"
    )
    port_range: PortRange = Field(
        default_factory=lambda: [20000, 32000], description="First and last port that jobs may listen on"
    )
    engine_python: ExpandedPath = Field(
        default_factory=lambda: sys.executable, description="Python that starts the engines; default: the one running"
    )
    endpoints_python: ExpandedPath | None = Field(
        default=None,
        description="Python of an environment that has MLCommons endpoints, for measure.client: endpoints; "
        "left out, none",
    )
    environment: Variables = Field(default_factory=dict, description=VARIABLES_HELP)
    container: Container | None = Field(
        default=None, description="Container that engines and frontends run in on a cluster; left out, none"
    )
    modules: list[ModuleName] = Field(
        default_factory=list, description="Environment modules to load on the node before each engine and frontend"
    )
    prologue: list[Line] = Field(
        default_factory=list,
        description="Lines of bash to run on the node before each engine and frontend, after modules",
    )
    segment: bool = Field(
        default=False, description="Whether the site's Slurm has --segment (topology/block, 23.11 on)"
    )
    gpu_request: Literal["gres", "gpus-per-node", "none"] = Field(
        default="gres", description="How `submit` asks for GPUs: --gres=gpu:N, --gpus-per-node=N, or not at all"
    )
    mpi: Word | None = Field(default=None, description="srun's --mpi for engines, such as pmix; left out, the default")
    step_start_s: Annotated[int, Field(ge=2, le=3600)] = Field(
        default=60, description="Seconds within which Slurm must start each step of a job; more where a prolog is slow"
    )
    head_cores: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        default=None,
        description="Cores of the head's node that workers leave to frontends, load client and controller, where numa "
        "is given; left out, 4 and one per frontend, at most a quarter",
    )
    numa: list[NumaNode] = Field(
        default_factory=list,
        description="NUMA nodes of each node; workers then get the cores and memory near their GPUs",
    )

    _digest: str = PrivateAttr(default="")

    @field_validator("numa")
    @classmethod
    def _each_once(cls, numa: list[NumaNode]) -> list[NumaNode]:
        for what, held in (
            ("core", [core for node in numa for core in core_numbers(node.cores)]),
            ("GPU", [gpu for node in numa for gpu in node.gpus]),
        ):
            twice = sorted(item for item, times in Counter(held).items() if times > 1)
            if twice:
                raise ValueError(f"{what} {twice[0]} stands in two NUMA nodes")
        return numa

    @field_validator("modules")
    @classmethod
    def _on_the_host(cls, modules: list[str], info: ValidationInfo) -> list[str]:
        container = info.data.get("container")
        if modules and container and container.runtime == "pyxis":
            raise ValueError("modules load on the host, but with pyxis engines see the image alone; leave them out")
        return modules

    @field_validator("container")
    @classmethod
    def _image_kind(cls, container: Container | None) -> Container | None:
        if container and container.runtime == "apptainer" and "#" in container.image:
            raise ValueError(
                "REGISTRY#IMAGE is pyxis' form; apptainer wants docker://REGISTRY/IMAGE:TAG or a .sif file"
            )
        return container

    def read_from(self, text: str) -> Site:
        """Note the text of the file that says all this."""
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        return self

    @property
    def digest(self) -> str:
        """SHA-256 of the site's file as 64 hex digits; empty for the built-in site."""
        return self._digest

    @property
    def ports(self) -> range:
        """Ports that jobs may listen on."""
        return range(self.port_range[0], self.port_range[1] + 1)


def numa_areas(site: Site) -> list[NumaArea]:
    """The site's NUMA nodes as the planner takes them; empty where the site does not give them."""
    return [NumaArea(tuple(core_numbers(node.cores)), tuple(node.gpus), node.memory_gib) for node in site.numa]


def head_cores(site: Site, frontends: int) -> int:
    """Cores that the workers of the head's node leave to the controller, the load client and so many frontends."""
    return _HEAD_CORES + frontends if site.head_cores is None else site.head_cores


def site_directories(base: Path) -> tuple[Path, ...]:
    """Where sites are looked for by name: beside `base`, in the checkout, and among those shipped with the package."""
    return (
        base / "slurm" / "sites",
        _PACKAGE.parent / "slurm" / "sites",
        _PACKAGE / "shipped" / "slurm" / "sites",
    )


def load_site(
    site: str | None,
    directories: Sequence[Path] | None = None,
    *,
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Site:
    """The site called `site`.

    Args:
        site: A name (`NAME.yaml` in one of `directories`, first match wins), a path (it holds a slash or ends in
            `.yaml`; relative to `base`), or None for `$DYNAMO_MLPERF_SITE` and, unset, the built-in defaults.
        directories: Where names are looked for; default `site_directories(base)`.
        base: Default the current directory.
        environment: Where variables come from; default the process's own.

    Raises:
        ConfigError: There is no such site, or its file has problems.
    """
    variables = os.environ if environment is None else environment
    document = _document(site, directories, base, variables)
    if document is None:
        return Site()
    document.value.setdefault("name", document.path.stem)
    try:
        return check(Site, document, {"environment": variables}).read_from(document.text)
    except ConfigError as problem:
        raise ConfigError(problem.what, _way_to_set(problem.what, document.path) or problem.action) from None


def unfilled(site: str | None, base: Path | None = None) -> str:
    """What of the chosen site's file still says `FILL-IN`: file, line and key of the first, then the others.

    Returns:
        One line for people; empty where nothing does.

    Raises:
        ConfigError: There is no such site, or its file is no YAML.
    """
    document = _document(site, None, base, os.environ)
    places = list(_placeholder_places(document.value, ())) if document else []
    if document is None or not places:
        return ""
    others = ", ".join(f"{dotted(place)} (line {document.line_of(place)})" for place in places[1:])
    first = f"{document.path}:{document.line_of(places[0])}: {dotted(places[0])} is still {PLACEHOLDER}"
    return first + (f", and so {'is' if len(places) == 2 else 'are'} {others}" if others else "")  # noqa: PLR2004


def unfilled_lines(site: str | None, base: Path | None = None) -> tuple[str, ...]:
    """A warning where lines of the chosen site's file are marked as still to be completed; none where there are none.

    Raises:
        ConfigError: There is no such site, or its file is no YAML.
    """
    document = _document(site, None, base, os.environ)
    return () if document is None else marked_lines(document.text, str(document.path))


def refuse_unfilled(site: str | None, base: Path | None = None) -> None:
    """Refuse a site whose file is an example that nobody has filled in.

    Raises:
        ConfigError: Names every such value.
    """
    if found := unfilled(site, base):
        raise ConfigError(found, "write your cluster's values into a copy of it, and name that: --site NAME")


def refuse_few_ports(site: Site, needed: int) -> None:
    """Refuse a plan that needs more ports than the site has.

    Raises:
        ConfigError: With both numbers.
    """
    if needed > len(site.ports):
        raise ConfigError(
            f"{needed} ports needed, site {site.name} has {len(site.ports)}", "widen port_range in the site file"
        )


def _placeholder_places(value: object, place: Place) -> Iterator[Place]:
    if isinstance(value, str):
        if PLACEHOLDER in value:
            yield place
        return
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield from _placeholder_places(below, (*place, key))


def _way_to_set(what: str, path: Path) -> str:
    """What to do where variables that are not set are all that is wrong with the file; else empty."""
    unset = list(dict.fromkeys(re.findall(rf"\$\{{(\w+)\}} {UNSET}", what)))
    if not unset or what.count(UNSET) < max(1, what.count("\n")):
        return ""
    set_by = [f"run it in `{_SET_BY[name]}`" for name in unset if name in _SET_BY]
    return ", or ".join((f"set {' and '.join(unset)}", *set_by, f"write the path out in {path}"))


def _document(
    site: str | None, directories: Sequence[Path] | None, base: Path | None, variables: Mapping[str, str]
) -> Document | None:
    """The file of the chosen site; None where none is chosen."""
    file = site_file(site, directories, base, variables)
    return None if file is None else read_document(file)


def site_file(
    site: str | None,
    directories: Sequence[Path] | None = None,
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Path | None:
    """The file of the site that `load_site` takes; None for the built-in one.

    Raises:
        ConfigError: There is no such site.
    """
    variables = os.environ if environment is None else environment
    chosen = site or variables.get(SITE_VARIABLE) or None
    if chosen is None:
        return None
    base = base or Path.cwd()
    return _find(chosen, site_directories(base) if directories is None else directories, base)


def _find(site: str, directories: Sequence[Path], base: Path) -> Path:
    if "/" in site or site.endswith((".yaml", ".yml")):
        return base / site
    for directory in directories:
        path = directory / f"{site}.yaml"
        if path.is_file():
            return path
    names = sorted({path.stem for directory in directories for path in directory.glob("*.yaml")})
    near = nearest(site, names)
    raise ConfigError(
        f"no site {site!r}; there are {', '.join(names) or 'none'}",
        f"--site {near}" if near else "name one of them, or the site file by its path, such as ./mine.yaml",
    )

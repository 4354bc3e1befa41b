"""The site file: what differs from cluster to cluster and does not belong in a topology file.

A site is chosen by `--site`, else the topology file's `site:`, else `$DYNAMO_MLPERF_SITE`, else built-in defaults.
Field descriptions are the help texts of `dynamo-mlperf schema site`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo, WithJsonSchema

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.document import read_document
from dynamo_mlperf.topology.reserved import VARIABLES_HELP, Variables
from dynamo_mlperf.topology.strict import StrictModel, check, nearest

SITE_VARIABLE = "DYNAMO_MLPERF_SITE"
BUILT_IN = "built-in"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535
_PACKAGE = Path(__file__).resolve().parent


def _expanded(written: str, info: ValidationInfo) -> str:
    """`written` with `${VAR}` replaced from the environment; the result must be an absolute path."""
    environment: Mapping[str, str] = (info.context or {}).get("environment", os.environ)

    def value_of(match: re.Match[str]) -> str:
        value = environment.get(match[1], "")
        if not value:
            raise ValueError(f"${{{match[1]}}} is not set in the environment")
        return value

    path = _VARIABLE.sub(value_of, written)
    if "$" in _VARIABLE.sub("", written) or "\0" in path or not path.startswith("/"):
        raise ValueError(f"wanted an absolute path, with ${{NAME}} for variables; got {written!r}")
    return path


def _word(text: str) -> str:
    if not re.fullmatch(r"[^\s\0'\"]+", text):
        raise ValueError(f"wanted one word, got {text!r}")
    return text


def _range(ports: list[int]) -> list[int]:
    if len(ports) != 2 or not _LOWEST_PORT <= ports[0] < ports[1] <= _HIGHEST_PORT:  # noqa: PLR2004 - first and last
        raise ValueError(f"wanted [first, last] with {_LOWEST_PORT} <= first < last <= {_HIGHEST_PORT}, got {ports}")
    return ports


def _cache_directory() -> str:
    """The user's cache directory by the XDG base directory specification."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return str(root / "dynamo-mlperf")


Word = Annotated[str, AfterValidator(_word)]
ExpandedPath = Annotated[str, AfterValidator(_expanded), WithJsonSchema({"type": "string"})]


class Site(StrictModel):
    """One cluster or machine."""

    not_yet: ClassVar[Mapping[str, str]] = {
        "modules": "load modules in the shell that submits",
        "prologue": "run it in the shell that submits",
    }

    name: Word = Field(default=BUILT_IN, description="Name of the site; left out, the file's")
    partition: Word | None = Field(default=None, description="Slurm partition; left out, the cluster's default")
    account: Word | None = Field(default=None, description="Slurm account; left out, the user's default")
    qos: Word | None = Field(default=None, description="Slurm quality of service; left out, the default")
    constraint: Word | None = Field(default=None, description="Slurm node features; left out, none")
    local_path: ExpandedPath = Field(
        default_factory=_cache_directory,
        description="Directory on each node's own disk, for staged weights; default: dynamo-mlperf in the user's cache",
    )
    shared_path: ExpandedPath | None = Field(default=None, description="Directory that all nodes see; left out, none")
    interface: Word | None = Field(
        default=None, description="Network interface that serves; left out, the one that carries the hostname's address"
    )
    port_range: Annotated[list[int], AfterValidator(_range)] = Field(
        default_factory=lambda: [20000, 32000], description="First and last port that jobs may listen on"
    )
    engine_python: ExpandedPath = Field(
        default_factory=lambda: sys.executable, description="Python that starts the engines; default: the one running"
    )
    environment: Variables = Field(default_factory=dict, description=VARIABLES_HELP)

    @property
    def ports(self) -> range:
        """Ports that jobs may listen on."""
        return range(self.port_range[0], self.port_range[1] + 1)


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
    chosen = site or variables.get(SITE_VARIABLE) or None
    if chosen is None:
        return Site()
    base = base or Path.cwd()
    path = _find(chosen, site_directories(base) if directories is None else directories, base)
    document = read_document(path)
    document.value.setdefault("name", path.stem)
    return check(Site, document, {"environment": variables})


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
        f"--site {near}" if near else "name the site file by its path",
    )

"""How engines start on a node of a cluster: in the site's container, behind its modules and prologue lines.

Only engines and frontends do; our own programs and etcd run on the host. What a site says becomes arguments: an
engine's own arguments and variables never pass through a shell's parser.

Options of pyxis: https://github.com/NVIDIA/pyxis (README, usage). Options of apptainer: `apptainer exec --help`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.process.command import Command
    from dynamo_mlperf.site import Container, Site

HOME_NAME = "engine-home"
"""Below the node's own disk: the home of engines in a container without one. Engines and frontends of a node have to
find each other's model cards there, so it cannot be a directory of the container's own."""
_BASH = ("bash", "--noprofile", "--norc", "-c")
_OWN_NAME = "dynamo-mlperf"
"""What `$0` is in the lines that run before an engine; its error messages begin with it."""
_FORGET_STEP = 'unset "${!SLURM_@}" "${!SLURMD_@}" "${!PMI_@}" "${!PMIX_@}"'
_FIND_MODULE = (
    "type module >/dev/null 2>&1 || for init in "
    '"${MODULESHOME:-/usr/share/modules}/init/bash" /etc/profile.d/{modules,lmod,z00_lmod}.sh '
    '/usr/share/lmod/lmod/init/bash; do [ ! -r "$init" ] || { . "$init"; break; }; done'
)
_GPU_FLAGS = {"nvidia": ("--nv",), "amd": ("--rocm",), "none": ()}


@dataclass(frozen=True)
class EngineStep:
    """What the site adds to an engine's step.

    Attributes:
        options: Further options of `srun`.
        argv: What `srun` starts, the engine's own argument vector at its end.
    """

    options: tuple[str, ...]
    argv: tuple[str, ...]


def changes_engines(site: Site) -> bool:
    """Whether the site says anything about how engines start; if not, their steps are as all others."""
    return site.container is not None or site.mpi is not None or bool(site.modules or site.prologue)


def engine_step(site: Site, command: Command, inherited: Mapping[str, str]) -> EngineStep:
    """The step of an engine.

    Args:
        site: The site's settings.
        command: The engine.
        inherited: What processes get from the caller's environment. Of it, an image knows better what PATH and
            language are, so inside a container only what `command` sets otherwise is set.
    """
    own = {name: value for name, value in command.env.items() if inherited.get(name) != value}
    if site.container is not None and not site.container.home:
        own = {"HOME": str(PurePosixPath(site.local_path) / HOME_NAME), **own}
    engine = ("env", *(f"{name}={value}" for name, value in own.items()), *command.argv)
    options = (f"--mpi={site.mpi}",) if site.mpi else ()
    container = site.container
    if container is not None and container.runtime == "pyxis":
        before = _before(site, forget_step=site.mpi is None)
        return EngineStep((*options, *_pyxis(container, mounts(site))), (*before, *engine))
    if container is not None:
        engine = (*_apptainer(container, mounts(site)), *engine)
    # The variables of MPI's start-up are the step's own: where a site wants them, the environment is not cleared.
    clean = ("env", *(() if site.mpi else ("-i",)), *(f"{name}={value}" for name, value in inherited.items()))
    return EngineStep(options, (*clean, *_before(site, forget_step=False), *engine))


def mounts(site: Site) -> list[str]:
    """All mounts of the site's container: those it names, then its own directories where those do not cover them."""
    if site.container is None:
        return []
    found = list(site.container.mounts)
    for directory in filter(None, (site.local_path, site.shared_path)):
        seen = (PurePosixPath(mount.split(":")[1]) for mount in found)
        if not any(PurePosixPath(directory).is_relative_to(place) for place in seen):
            found.append(f"{directory}:{directory}")
    return found


def _pyxis(container: Container, mounted: list[str]) -> tuple[str, ...]:
    return (
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounted)}",
        "--container-writable" if container.writable else "--container-readonly",
        "--container-mount-home" if container.home else "--no-container-mount-home",
        "--no-container-entrypoint",
    )


def _apptainer(container: Container, mounted: list[str]) -> tuple[str, ...]:
    return (
        "apptainer",
        "exec",
        "--cleanenv",
        *(() if container.home else ("--no-home",)),
        *(("--writable-tmpfs",) if container.writable else ()),
        *_GPU_FLAGS[container.devices],
        *(word for mount in mounted for word in ("--bind", mount)),
        container.image,
    )


def _before(site: Site, *, forget_step: bool) -> tuple[str, ...]:
    """A bash that runs the site's lines and then becomes the program behind it; nothing where there are no lines."""
    lines = [_FORGET_STEP] if forget_step else []
    if site.modules:
        names = " ".join(shlex.quote(name) for name in site.modules)
        lines += [_FIND_MODULE, f"module load {names} || {{ echo 'failed: module load {names}' >&2; exit 3; }}"]
    if site.prologue:
        lines += ["set -e", *site.prologue, "set +e"]
    return (*_BASH, "\n".join([*lines, 'exec "$@"']), _OWN_NAME) if lines else ()

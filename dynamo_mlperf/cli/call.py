"""What the command line says of a run, in whatever place it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of `run`, `search`, `sweep` or `job`.

    Attributes:
        file: The topology file.
        site: The site file, or the name of one; None = the file's own.
        run_dir: The run directory; None = one below `runs/`.
        nodes: To which workers scale; None = the file's own.
        resume: The run that it goes on with.
        redo: Whether what that run found by other settings is looked for again.
        blocks: What is laid over the file's own blocks, such as a `search:`.
        as_json: Whether the result is told as JSON.
    """

    file: Path
    site: str | None
    run_dir: Path | None
    nodes: int | None = None
    resume: str | None = None
    redo: bool = False
    blocks: Mapping[str, Mapping[str, object]] | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        check_redo(self.resume, redo=self.redo)


def check_redo(resume: object, *, redo: bool) -> None:
    """Refuse `--redo` alone: what was to go on would begin anew.

    Raises:
        ConfigError: There is no `--resume`.
    """
    from dynamo_mlperf.errors import ConfigError

    if redo and resume is None:
        raise ConfigError("--redo is given without --resume", "add --resume RUN, or leave --redo out")

"""What is started: an argument vector, an environment that is complete in itself, a log, a node position."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.process.secret_words import NOT_SHOWN, is_secret_name, redacted, redacted_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME")
"""All that a process gets from the caller's environment; everything else is set on purpose."""

RUN_VARIABLE = "DYNAMO_MLPERF_RUN"
"""Marks every process of a run, so that leftovers of a controller that died are recognised."""


AGAIN = ".again-"
"""Between the name of a process that is started anew, and how often it was: it has a log of its own."""


def inherited_environment() -> dict[str, str]:
    """The part of the caller's environment that processes may see; HOME is theirs even where the caller has none.

    Without HOME Dynamo keeps its model cards in a relative `.cache`, and no two processes find the same one.
    """
    home = {} if os.environ.get("HOME") else {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    return {name: os.environ[name] for name in INHERITED if name in os.environ} | home


@dataclass(frozen=True)
class Command:
    """One process to start.

    Attributes:
        name: Unique within the run; names its log.
        argv: Program and arguments; never passes a shell.
        env: The whole environment.
        log: Takes stdout and stderr.
        node: Node position.
        cwd: Working directory.
        output: Where stdout goes when it is an answer to be read; `log` then takes stderr alone.
        engine: Whether it is an engine or a frontend, which a site may have in a container.
        agent: Whether it is our agent on a node: it reads what we say, and sees what Slurm tells a step.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: Path
    node: int = 0
    cwd: Path | None = None
    output: Path | None = None
    engine: bool = False
    agent: bool = False

    def as_record(self) -> dict[str, Any]:
        """The command as recorded: values of variables that may be secrets are out, and what looks like one."""
        env = {name: NOT_SHOWN if is_secret_name(name) else redacted(value) for name, value in self.env.items()}
        return {
            "process": self.name,
            "node": self.node,
            "argv": redacted_words(self.argv),
            "env": env,
            "cwd": str(self.cwd) if self.cwd else None,
            "log": str(self.log),
        }

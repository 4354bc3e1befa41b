"""Short programs run to their end: Slurm's own commands, version queries."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class UnansweredError(SetupError):
    """A program did not end in time; what it was asked to do may be done all the same (exit 3)."""


@dataclass(frozen=True)
class Finished:
    """How a program ended."""

    status: int
    stdout: str
    stderr: str


def run_program(
    argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None, given: str | None = None
) -> Finished:
    """Run a program to its end; `given` is what it reads from its standard input.

    Raises:
        SetupError: It is not installed, cannot be run, or did not end in `timeout_s` seconds.
    """
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a remark of Slurm's in another encoding must not hide its answer
            timeout=timeout_s,
            env=env,
            check=False,
            input=given,
        )
    except FileNotFoundError as problem:
        raise SetupError(
            f"{argv[0]} is not installed on this machine", f"install {argv[0]} or put it on PATH"
        ) from problem
    except OSError as problem:
        raise SetupError(
            f"{argv[0]} cannot be run: {problem.strerror}", f"see what it is: type -a {argv[0]}"
        ) from problem
    except subprocess.TimeoutExpired as problem:
        raise UnansweredError(
            f"{' '.join(argv)} did not answer in {timeout_s:g} s", "run it by hand to see why"
        ) from problem
    return Finished(done.returncode, done.stdout, done.stderr)

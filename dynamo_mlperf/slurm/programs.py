"""Slurm's own programs, asked without anything that the caller's job or shell would put into their mouths."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynamo_mlperf.process.command import is_secret_name
from dynamo_mlperf.process.programs import Finished, run_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASK_S = 30.0
_OURS = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SCONTROL_", "SINFO_", "PMI", "PMIX_")
_KEPT = ("SLURM_CONF",)
_LINKER = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")


def clean_environment(caller: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that Slurm's programs and the job they submit get of the caller's.

    Out: what a surrounding job or Slurm's own options in the environment would change (SLURM_CPU_BIND pins every rank
    to the caller's cores; SBATCH_* are options nobody sees), what changes how programs are linked, and secrets. In:
    SLURM_CONF, which says which cluster this is, and all the rest, since site files may name any variable.
    """
    found = os.environ if caller is None else caller
    return {
        name: value
        for name, value in found.items()
        if name in _KEPT or not (name.startswith(_OURS) or name in _LINKER or is_secret_name(name))
    }


def ask(argv: Sequence[str], *, timeout_s: float = ASK_S) -> Finished:
    """Run one of Slurm's programs to its end.

    Raises:
        SetupError: It is not installed, or does not answer.
    """
    return run_program(argv, timeout_s=timeout_s, env={**clean_environment(), "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"})

"""Slurm's own programs, asked without anything that the caller's job or shell would put into their mouths."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.programs import Finished, run_program
from dynamo_mlperf.process.secret_words import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ASK_S = 30.0
_OURS = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SACCT_", "SCONTROL_", "SINFO_", "PMI", "PMIX_")
_KEPT = ("SLURM_CONF",)
# As Slurm 22.05 says it: where there is no configuration, and where the controller of the one there is is away.
_SILENT = re.compile(
    "(?i)(?:could not establish a configuration source|unable to contact slurm controller|failed to fetch config).*"
)
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
        SetupError: It is not installed, or does not answer, or nobody answers it.
    """
    env = {**clean_environment(), "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    return answered(run_program(argv, timeout_s=timeout_s, env=env))


def answered(answer: Finished) -> Finished:
    """What one of Slurm's programs said, where it could reach its controller.

    Raises:
        SetupError: It could not.
    """
    said = _SILENT.findall(answer.stderr) if answer.status != 0 else []
    if said:
        raise SetupError(
            f"Slurm does not answer here: {said[-1].strip()}",
            f"run it {where_slurm_answers()}; `scontrol ping` says whether Slurm is up",
        )
    return answer


def where_slurm_answers() -> str:
    """Where to run what needs Slurm, for people."""
    alone = (
        "in `slurm/devcluster exec` (DEVCLUSTER_DIR alone does not do), or " if "DEVCLUSTER_DIR" in os.environ else ""
    )
    return f"{alone}on a login node of the cluster"


def fault_of(program: str, answer: Finished) -> str:
    """Why one that failed did: how it ended, and what it said."""
    how = f"was killed by {signal_name(-answer.status)}" if answer.status < 0 else f"ended with {answer.status}"
    return f"{program} {how}: {' '.join(answer.stderr.split()) or 'it said nothing'}"


def signal_name(number: int) -> str:
    """As in SIGKILL; `signal 64` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

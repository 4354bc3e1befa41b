"""When Slurm will end the job that we run in: what a search has time for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.slurm.programs import ask

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_S = 8.0


def end_time(job_id: str, environment: Mapping[str, str]) -> float | None:
    """Seconds since the epoch at which the job's time is over; None where it has no limit, or Slurm does not say.

    Slurm is asked, since an administrator may have changed the limit; where it does not answer, what it told the job at
    its begin stands (SLURM_JOB_END_TIME, sbatch(1)).
    """
    try:
        answer = ask(["scontrol", "--oneliner", "show", "job", job_id], timeout_s=_ANSWER_S)
    except SetupError:
        return _told(environment)
    found = parse_end_time(answer.stdout) if answer.status == 0 else None
    return found if found is not None else _told(environment)


def parse_end_time(text: str) -> float | None:
    """`EndTime=` of what `scontrol show job` prints with SLURM_TIME_FORMAT=%s; None where it is Unknown or missing."""
    found = re.search(r"\bEndTime=([0-9]+)\b", text)
    return float(found[1]) if found else None


def _told(environment: Mapping[str, str]) -> float | None:
    said = environment.get("SLURM_JOB_END_TIME", "")
    return float(said) if said.isdigit() else None

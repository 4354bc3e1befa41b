"""Job arrays: how large one may be, sending several of them, and which of their jobs are still there."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import write_json
from dynamo_mlperf.process.programs import run_program
from dynamo_mlperf.slurm.programs import ask, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SEND_S = 600.0
DEFAULT_ARRAY = 1001
"""Slurm's own MaxArraySize (slurm.conf)."""
_ID = re.compile(r"[0-9]+(_[0-9]+)?")


@dataclass(frozen=True)
class Sent:
    """What became of arrays that were sent.

    Attributes:
        job_ids: One per argument vector, in order, as far as Slurm took them.
        refused: What Slurm said to the first array that it did not take; None where it took all.
    """

    job_ids: tuple[str, ...]
    refused: str | None


def largest_array() -> int:
    """Jobs that one array may have: indices 0 to MaxArraySize - 1, and the scheduler's max_array_tasks where it is set.

    Raises:
        SetupError: Slurm does not answer.
    """
    answer = ask(["scontrol", "show", "config"])
    if answer.status != 0:
        raise SetupError(f"scontrol show config: {answer.stderr.strip()[:200]}", "look whether Slurm is up: sinfo")
    size = re.search(r"^MaxArraySize\s*=\s*([0-9]+)", answer.stdout, re.MULTILINE)
    tasks = re.search(r"^SchedulerParameters\s*=.*\bmax_array_tasks=([0-9]+)", answer.stdout, re.MULTILINE)
    limits = [int(found[1]) for found in (size, tasks) if found]
    return max(1, min(limits, default=DEFAULT_ARRAY))


def send_arrays(
    argvs: Sequence[Sequence[str]], options: Mapping[str, Any], folder: Path, *, at_once: int, most: int
) -> Sent:
    """Send one job per argument vector, in arrays of `most` at most, by submitit.

    Args:
        argvs: What each job becomes.
        options: Options of sbatch by long name; True for one without a value.
        folder: For submitit: scripts, pickles and the jobs' output; every node must see it.
        at_once: How many of all jobs may run at once; 1 array at least gets 1.
        most: See `largest_array`.

    Raises:
        SetupError: submitit is not installed.
    """
    chunks = _batched(argvs, most)
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "spec.json"
    share = max(1, at_once // len(chunks)) if chunks else 1
    write_json(
        spec,
        {
            "folder": str(folder),
            "options": dict(options),
            "at_once": share,
            "chunks": [list(map(list, c)) for c in chunks],
        },
    )
    done = run_program(
        [sys.executable, "-m", "dynamo_mlperf.slurm.point_array", str(spec)], timeout_s=SEND_S, env=clean_environment()
    )
    if "No module named 'submitit'" in done.stderr:
        raise SetupError("submitit is not installed", "pip install 'dynamo-mlperf[submitit]', or sweep in one job")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ids = tuple(str(job) for line in lines for job in line.get("jobs", ()))
    refused = next((str(line["refused"]) for line in lines if "refused" in line), None)
    if refused is None and len(ids) < len(argvs):
        refused = done.stderr.strip()[-400:] or f"ended with status {done.status}"
    return Sent(ids, refused)


def _batched(argvs: Sequence[Sequence[str]], most: int) -> list[Sequence[Sequence[str]]]:
    return [argvs[start : start + most] for start in range(0, len(argvs), most)]


def still_there(job_ids: Iterable[str]) -> set[str]:
    """Those of these jobs that wait or run.

    Raises:
        SetupError: Slurm does not answer.
    """
    wanted = {job_id for job_id in job_ids if _ID.fullmatch(job_id)}
    if not wanted:
        return set()
    answer = ask(["squeue", "--me", "--noheader", "--array", "--format=%i"])
    if answer.status != 0:
        raise SetupError(f"squeue: {answer.stderr.strip()[:200]}", "look whether Slurm is up: sinfo")
    return wanted & set(answer.stdout.split())

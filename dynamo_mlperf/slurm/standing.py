"""Runs with what Slurm says of their jobs: one question for all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.machine import controller_of
from dynamo_mlperf.slurm.attach import live_steps
from dynamo_mlperf.slurm.job_output import last_error, output_here
from dynamo_mlperf.slurm.jobs import JobInfo, query_jobs
from dynamo_mlperf.slurm.outcome import Outcome, attached_outcome, held_outcome, outcome_of
from dynamo_mlperf.slurm.runs import read_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.slurm.runs import Run


@dataclass(frozen=True)
class Standing:
    """A run, its job, and how it stands.

    Attributes:
        run: What its directory says.
        job: What Slurm says; None for a run on this machine alone, and for one that is attached to a job.
        outcome: Both together.
    """

    run: Run
    job: JobInfo | None
    outcome: Outcome

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        run = self.run
        return {
            "run": run.name,
            "run_dir": str(run.root),
            "job_id": run.job_id or None,
            "outcome": self.outcome.as_json(),
            "phase": run.phase or None,
            "phase_since_t": run.phase_t or None,
            "began_t": run.began_t or None,
            "workers": [asdict(worker) for worker in run.workers],
            "progress": run.progress,
            "verdict": run.verdict["verdict"] if run.verdict else None,
            "error": run.error or None,
            "job": self.job.as_json() if self.job else None,
        }


def standings(runs: Sequence[Run]) -> tuple[list[Standing], str]:
    """How the runs stand, and why Slurm could not be asked (empty when it could, or when there was nothing to ask)."""
    held = sorted({run.held_by for run in runs if run.held_by and run.finished is None})
    holders, _ = standings([replace(read_run(Path(root)), held_by="") for root in held]) if held else ([], "")
    words = {root: standing.outcome.word for root, standing in zip(held, holders, strict=True)}
    job_ids = [run.job_id for run in runs if run.job_id and not run.step]
    steps = live_steps(sorted({run.job_id for run in runs if run.step and run.finished is None}))
    problem, jobs = "", {}
    try:
        jobs = query_jobs(job_ids)
    except SetupError as error:
        problem = str(error)
    return [_held(run, words) if run.held_by else _standing(run, jobs, steps) for run in runs], problem


def _held(run: Run, words: Mapping[str, str]) -> Standing:
    """A run that measures through another's engines lives as long as that one."""
    word = words.get(run.held_by, "")
    run = run if word in {"RUNNING", "UNKNOWN"} else _now(run)
    return Standing(run, None, held_outcome(run, word))


def _standing(run: Run, jobs: dict[str, JobInfo], steps: set[str] | None) -> Standing:
    if run.step:
        run = run if steps is None or run.step in steps else _now(run)
        return Standing(run, None, attached_outcome(run, steps))
    if run.job_id:
        job = jobs.get(run.job_id, JobInfo(run.job_id))
        run = _told(_now(run), job) if job.ended else run
        return Standing(run, job, outcome_of(run, job))
    alive = run.finished is None and controller_of(run.run_id) is not None
    run = run if alive else _now(run)
    return Standing(run, None, outcome_of(run, None, alive=alive))


def _told(run: Run, job: JobInfo) -> Run:
    """A run whose job ended before it made the run's directory, with the reason that the job itself printed."""
    if run.present or run.error:
        return run
    return replace(run, error=last_error(output_here(run) or (Path(job.output) if job.output else None)))


def _now(run: Run) -> Run:
    """A run that is over, read again where its end was not on record before: it may have ended since."""
    return read_run(run.root, run.submitted) if run.present and run.finished is None else run

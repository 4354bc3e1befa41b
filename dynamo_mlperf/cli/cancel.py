"""`cancel`: end a run, and say what is left of it."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.numbers import SECONDS

if TYPE_CHECKING:
    from dynamo_mlperf.slurm.runs import Run

WAIT_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True)
class End:
    """What became of a run: its state, and what still runs of it."""

    run: str
    job_id: str | None
    state: str
    left: list[str]


@click.command(name="cancel")
@click.argument("runs", nargs=-1, required=True, metavar="RUN|JOBID...")
@click.option(
    "--timeout", "timeout_s", type=SECONDS, default=WAIT_S, show_default=True, help="Seconds to wait for the end."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(runs: tuple[str, ...], timeout_s: float, *, as_json: bool) -> int:
    """End a run and wait until it has ended: by scancel and its job's id, or by a signal to its controller.

    Of a run that is attached to an allocation the allocation stays; of one that measures through the held engines of
    another (--attach RUN) those engines stay up.

    RUN is a directory, the name of a run below runs/ or its beginning, or the id of a job; what means several is
    refused. A run that has ended already is left as it is. Ends with 3 when something still runs after the timeout.
    """
    from dynamo_mlperf.slurm.runs import find_run

    found = [find_run(word, Path.cwd() / "runs") for word in runs]  # all are found before one is ended
    _refuse_unknown(found)
    ends = [_end(run, timeout_s) for run in found]
    if as_json:
        click.echo(json.dumps([asdict(end) for end in ends]))
    else:
        for end in ends:
            click.echo(f"{end.run}  {end.state}" + (f"; left: {', '.join(end.left)}" if end.left else ""))
    return 3 if any(end.left for end in ends) else 0


def _refuse_unknown(runs: list[Run]) -> None:
    """Refuse jobs that neither a record here nor Slurm knows: scancel says nothing of them, and ends with 0.

    Raises:
        ConfigError: Names the first.
        SetupError: Slurm does not answer.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.slurm.jobs import query_jobs
    from dynamo_mlperf.slurm.states import UNKNOWN

    strange = [run.job_id for run in runs if run.job_id and not run.present and run.submitted is None]
    for job_id, job in query_jobs(strange).items():
        if job.state == UNKNOWN:
            action = "`dynamo-mlperf status` lists runs, `squeue --me` your jobs"
            raise ConfigError(f"no job {job_id}: Slurm does not know it", action)


def _end(run: Run, timeout_s: float) -> End:
    end = _stop_held if run.held_by else _stop_attached if run.step else _cancel_job if run.job_id else _stop_controller
    state, left = end(run, timeout_s)
    return End(run.name, run.job_id or None, state, left)


def _cancel_job(run: Run, timeout_s: float) -> tuple[str, list[str]]:
    """Cancel the run's job by its id; its state then, and what is left of it.

    Raises:
        SetupError: Slurm does not answer, or refuses.
    """
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.slurm.jobs import query_jobs, running_steps, wait_until_ended
    from dynamo_mlperf.slurm.outcome import CANCELLED, outcome_of
    from dynamo_mlperf.slurm.programs import ask
    from dynamo_mlperf.slurm.refusal import slurm_words
    from dynamo_mlperf.slurm.runs import read_run
    from dynamo_mlperf.slurm.states import UNKNOWN

    job_id = run.job_id
    before = query_jobs([job_id])[job_id]
    if before.ended:
        return f"had ended already: {before.state}", []
    if before.state == UNKNOWN:
        return f"had ended already: {before.reason or before.meaning.meaning}", []
    answer = ask(["scancel", job_id])
    if answer.status != 0:
        raise SetupError(f"scancel {job_id}: {slurm_words(answer.stderr)}", "see whose it is: squeue -j " + job_id)
    click.echo(f"job {job_id}: cancelled, waiting for its end", err=True)
    after = wait_until_ended(job_id, timeout_s)
    left = [f"step {step}" for step in running_steps(job_id)]
    if not after.ended and not left:
        left = [f"job {job_id}, {after.state} after {timeout_s:g} s"]
    # A controller that ends in time ends by itself, and Slurm may then call the job FAILED.
    cancelled = after.ended and outcome_of(read_run(run.root, run.submitted), after).word == CANCELLED
    return CANCELLED if cancelled else after.state, left


def _stop_held(run: Run, timeout_s: float) -> tuple[str, list[str]]:
    """Ask the run that holds the engines to end this measurement; the engines are left alone."""
    from dynamo_mlperf.job.held import request_of
    from dynamo_mlperf.slurm.runs import read_run
    from dynamo_mlperf.slurm.standing import standings

    def standing() -> str:
        return standings([read_run(run.root)])[0][0].outcome.word

    word = standing()
    if word != "RUNNING":
        return f"had ended already: {word}", []
    request_of(Path(run.held_by), run.run_id).stop(signal.SIGTERM)
    click.echo(f"{run.name}: {Path(run.held_by).name} is asked to end it, waiting for its end", err=True)
    deadline = time.monotonic() + timeout_s
    while word == "RUNNING" and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        if read_run(run.root).finished is not None or time.monotonic() >= deadline:
            word = standing()
    if word == "RUNNING":
        return "still running", [f"measurement of {run.held_by}, still stopping after {timeout_s:g} s"]
    return f"ended: {word}", []


def _stop_attached(run: Run, timeout_s: float) -> tuple[str, list[str]]:
    """SIGINT to the controller's step of a run that is attached to a job; the job is left alone.

    SIGINT, since it reaches the sruns of the run's other steps too, and those only remark on it.

    Raises:
        SetupError: Slurm does not answer.
    """
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.slurm.attach import live_steps
    from dynamo_mlperf.slurm.outcome import attached_outcome
    from dynamo_mlperf.slurm.programs import ask
    from dynamo_mlperf.slurm.runs import read_run

    def there() -> bool:
        steps = live_steps([run.job_id])
        if steps is None:
            raise SetupError(f"Slurm does not say what runs in job {run.job_id}", "try again, or look: scontrol ping")
        return run.step in steps

    if run.finished is not None or not there():
        return f"had ended already: {attached_outcome(read_run(run.root), set()).word}", []
    ask(["scancel", "--signal=INT", run.step])
    click.echo(f"{run.name}: SIGINT sent to its controller (step {run.step}), waiting for its end", err=True)
    deadline = time.monotonic() + timeout_s
    while there() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if there():
        return "still running", [f"step {run.step}, still stopping after {timeout_s:g} s"]
    return f"ended: {attached_outcome(read_run(run.root), set()).word}", []


def _stop_controller(run: Run, timeout_s: float) -> tuple[str, list[str]]:
    """SIGTERM to the controller of a run on this machine; its state then, and what is left."""
    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.process.machine import controller_of, terminate
    from dynamo_mlperf.slurm.outcome import outcome_of
    from dynamo_mlperf.slurm.runs import read_run

    pid = None if run.finished is not None else controller_of(run.run_id)
    if pid is None:
        found = read_run(run.root)  # it may have ended since it was read
        if found.finished is None:
            return "had ended already: its controller is gone", []
        return f"had ended already: {outcome_of(found, None).word if found.verdict else 'no verdict'}", []
    try:
        terminate(pid, lambda: controller_of(run.run_id) == pid)
    except PermissionError as problem:
        raise SetupError(f"process {pid} belongs to another user", "ask its owner to cancel it") from problem
    click.echo(f"{run.name}: SIGTERM sent to its controller (pid {pid}), waiting for its end", err=True)
    deadline = time.monotonic() + timeout_s
    while controller_of(run.run_id) == pid and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if controller_of(run.run_id) == pid:
        return "still running", [f"controller with pid {pid}, still stopping after {timeout_s:g} s"]
    after = read_run(run.root)
    return f"ended: {outcome_of(after, None).word}" if after.verdict else "ended without a verdict", []

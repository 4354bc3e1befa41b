"""How a run comes to its end on record: the verdict, whatever happens on the way to it, and the page."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import DynamoMlperfError, SetupError, Stopped
from dynamo_mlperf.record import failed_verdict, write_verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.errors import ExitCode
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.record import Verdict


def verdict_of(job: Job, until_verdict: Callable[[], Verdict]) -> tuple[Verdict, ExitCode]:
    """The verdict, whatever happens on the way to it, and the exit code that goes with it."""
    try:
        verdict = until_verdict()
        if job.events.problem is not None:
            raise job.events.problem
    except DynamoMlperfError as problem:
        said = _real_cause(job, problem)
        job.events.add("error", what=str(said))
        return failed(job, said), said.exit_code
    except OSError as problem:
        return unwritable(job, problem)
    return verdict, verdict.exit_code


def _real_cause(job: Job, problem: DynamoMlperfError) -> DynamoMlperfError:
    """The stop request that explains a failure, where one arrives just after it: scancel ends all at once."""
    try:
        job.supervisor.await_signal()
    except Stopped as stopped:
        return stopped
    return problem


def unusable(run_dir: Path, problem: OSError) -> SetupError:
    """The error for a run directory that cannot be written."""
    where = problem.filename2 or problem.filename or run_dir
    return SetupError(f"{where}: {problem.strerror}", "mend that or name another --run-dir, then run again")


def unwritable(job: Job, problem: OSError) -> tuple[Verdict, ExitCode]:
    """A run whose evidence cannot be written has none."""
    said = unusable(job.paths.root, problem)
    job.events.add("error", what=str(said))
    return failed(job, said), said.exit_code


def failed(job: Job, problem: DynamoMlperfError, check: str = "run") -> Verdict:
    """The verdict of a run that did not measure: no figure, only why."""
    measure = job.topology.measure
    return failed_verdict(
        (job.result_class, measure.benchmark, measure.scenario),
        job.paths.root,
        problem,
        target_qps=measure.target_qps,
        model=job.topology.model.name,
        check=check,
    )


def record_bug(job: Job) -> None:
    """An exception that nobody expected leaves a verdict too, with the traceback beside it."""
    write_traceback(job)
    with contextlib.suppress(OSError):
        last = traceback.format_exc().strip().splitlines()[-1]
        problem = DynamoMlperfError(last, "please report traceback.txt with the command that you ran")
        job.events.add("error", what=last)
        write_verdict(job.paths, failed(job, problem, "bug"))


def write_traceback(job: Job) -> Path:
    """Write the traceback of the exception that is being handled; returns where."""
    path = job.paths.root / "traceback.txt"
    with contextlib.suppress(OSError):
        path.write_text(traceback.format_exc())
    return path


def write_page(job: Job) -> None:
    """The page; a run that has its verdict does not lose it for want of one."""
    from dynamo_mlperf.report.page import write_report

    try:
        write_report(job.paths.root)
    except (DynamoMlperfError, OSError) as problem:
        job.events.add("warning", what=f"no report.html: {problem}")

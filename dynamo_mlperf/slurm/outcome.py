"""How a run stands, from what its directory and Slurm say together.

Only a job that Slurm calls COMPLETED with 0:0 and that left a complete result is a success. Slurm alone says FAILED
0:0, or COMPLETED for a job whose result is missing; a directory alone does not know that a node died.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ExitCode
from dynamo_mlperf.record import EXIT_CODES

if TYPE_CHECKING:
    from dynamo_mlperf.slurm.jobs import JobInfo
    from dynamo_mlperf.slurm.runs import Run

CANCELLED = "CANCELLED"
"""A signal asked the controller to end; Slurm's word for it too."""


@dataclass(frozen=True)
class Outcome:
    """How a run stands.

    Attributes:
        word: `WAITING`, `RUNNING`, `VALID`, `INVALID`, `FAILED`, `CANCELLED` (a signal asked the controller to end),
            `LOST`, or the state that Slurm ended its job with.
        success: True for a success, False for an end without one, None while it is open or cannot be known.
        text: Why, for people; may be empty.
        warnings: What a person should know besides.
        exit_code: What a verb that waited for it ends with; None while it is open.
    """

    word: str
    success: bool | None
    text: str = ""
    warnings: tuple[str, ...] = ()
    exit_code: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "warnings": list(self.warnings)}


def outcome_of(run: Run, job: JobInfo | None, *, alive: bool = False) -> Outcome:
    """How the run stands.

    Args:
        run: What its directory says.
        job: What Slurm says; None for a run on this machine alone.
        alive: Whether the controller of such a run is known to live.
    """
    if job is None:
        return _on_this_machine(run, alive=alive)
    stage = job.meaning.stage
    if stage == "waiting":
        return Outcome("WAITING", None, _because(job))
    if stage == "running":
        return _running(run, job.meaning.meaning if job.state != "RUNNING" else "")
    if stage == "unknown":
        return _forgotten(run, job)
    if run.hold is not None and run.complete and not _contradiction(run):
        # What Slurm says is how the hold ended: the measurement was over, and its verdict on record, before that.
        how = () if job.clean else (f"the hold of its engines was ended by Slurm: {job.state}",)
        return replace(_by_verdict(run, run.finished), warnings=(*_warnings(job), *how))
    return _ended(run, job)


def attached_outcome(run: Run, steps: set[str] | None) -> Outcome:
    """How a run stands that is attached to a job, which tells nothing of it: the job goes on when the run has ended.

    Args:
        run: What its directory says.
        steps: The steps that run; None where Slurm does not answer.
    """
    if run.finished is None and steps is None:
        return Outcome("UNKNOWN", None, "Slurm does not answer")
    return _on_this_machine(run, alive=run.finished is None and steps is not None and run.step in steps)


def held_outcome(run: Run, holder: str) -> Outcome:
    """How a run stands that measures through the engines of another; `holder` is the word for that one."""
    if run.finished is None and holder == "UNKNOWN":
        return Outcome("UNKNOWN", None, "Slurm does not answer")
    if run.finished is None and run.verdict is None and holder != "RUNNING":
        text = f"run {Path(run.held_by).name}, which held its engines, is gone, and there is no verdict"
        return Outcome("LOST", success=False, text=text, exit_code=ExitCode.FAILED)
    return _on_this_machine(run, alive=run.finished is None and holder == "RUNNING")


def _running(run: Run, text: str = "") -> Outcome:
    """A run that is alive; one that holds its engines says what it has measured, and what it measures."""
    if run.hold is None or run.hold.ended:
        return Outcome("RUNNING", None, text)
    own = run.verdict["verdict"] if run.verdict else "no verdict"
    now = f", now {Path(run.hold.current).name}" if run.hold.current else ""
    told = f"measured {own}; its engines are held, {run.hold.text()}{now}"
    return Outcome("RUNNING", None, "; ".join(filter(None, (told, text))))


def _on_this_machine(run: Run, *, alive: bool) -> Outcome:
    if alive:
        return _running(run)
    if run.verdict is None:
        return Outcome("LOST", success=False, text="its controller is gone and left no verdict", exit_code=4)
    if run.finished is None:
        text = f"its verdict is {run.verdict['verdict']}, but its controller did not come to its end"
        return Outcome("LOST", success=False, text=text, exit_code=ExitCode.FAILED)
    if text := _contradiction(run):
        return Outcome("FAILED", success=False, text=text, exit_code=run.finished or ExitCode.FAILED)
    return _by_verdict(run, run.finished)


def _contradiction(run: Run) -> str:
    """Why the exit code that the controller recorded cannot be that of the verdict; empty where it can."""
    verdict = run.verdict["verdict"] if run.verdict else ""
    if run.finished is None or not verdict:
        return ""
    if run.finished == ExitCode.INVALID and _short_tests(run):
        return ""  # the performance test may be VALID, while one beside it is not
    said = {int(ExitCode.DONE): "VALID", int(ExitCode.INVALID): "INVALID"}.get(run.finished, "FAILED")
    return "" if said == verdict else f"its verdict is {verdict}, but its controller ended with {run.finished}"


def _forgotten(run: Run, job: JobInfo) -> Outcome:
    if not run.complete:
        return Outcome("UNKNOWN", None, job.reason or job.meaning.meaning)
    if text := _contradiction(run):
        return Outcome("FAILED", None, f"{text}; {job.meaning.meaning}", exit_code=run.finished or ExitCode.FAILED)
    told = _by_verdict(run, run.finished)
    text = f"{told.text}; " if told.text else ""
    return Outcome(told.word, None, f"{text}{job.meaning.meaning}", exit_code=told.exit_code)


def _ended(run: Run, job: JobInfo) -> Outcome:
    warnings = _warnings(job)
    code = job.exit_code or 0
    if job.clean:
        if not run.complete:
            missing = "no verdict" if run.verdict is None else "a verdict, but no end of its controller"
            text = f"the job is {job.state} 0:0, but {run.root} holds {missing}"
            return Outcome("FAILED", success=False, text=text, warnings=warnings, exit_code=ExitCode.FAILED)
        if run.verdict and run.verdict["verdict"] != "VALID":
            text = f"the job is {job.state} 0:0, but its verdict is {run.verdict['verdict']}"
            return Outcome("FAILED", success=False, text=text, warnings=warnings, exit_code=ExitCode.FAILED)
        if text := _contradiction(run):
            return Outcome("FAILED", success=False, text=text, warnings=warnings, exit_code=ExitCode.FAILED)
        told = _by_verdict(run, 0)
        return Outcome(told.word, success=True, text=told.text, warnings=warnings, exit_code=0)
    verdict = run.verdict["verdict"] if run.verdict else None
    told_by_verdict = verdict is not None and (verdict != "VALID" or _short_tests(run))
    if job.state == "FAILED" and told_by_verdict and code == run.finished:
        told = _by_verdict(run, code)
        return Outcome(told.word, success=False, text=told.text, warnings=warnings, exit_code=code)
    return Outcome(job.state, success=False, text=_end_text(run, job), warnings=warnings, exit_code=_end_code(job))


def _end_text(run: Run, job: JobInfo) -> str:
    parts = [job.meaning.meaning]
    if job.reason and job.reason not in {"NonZeroExitCode", job.state}:
        parts[0] += f" ({job.reason})"
    if job.exit_code or _real_signal(job):
        parts.append(f"exit code {job.exit_code}" + (f", signal {job.signal}" if _real_signal(job) else ""))
    if run.error:
        parts.append(run.error)
    elif job.exit_code and not run.present:
        parts.append(f"`dynamo-mlperf logs {run.job_id}` shows what it printed")
    elif run.verdict and run.verdict["verdict"] == "VALID":
        parts.append("its verdict says VALID, which does not count")
    return "; ".join(parts)


def _end_code(job: JobInfo) -> int:
    if job.exit_code:
        return job.exit_code
    if _real_signal(job) or job.state in {CANCELLED, "TIMEOUT"}:  # sacct notes both before the job's own end
        return 128 + (_real_signal(job) or 15)
    return int(ExitCode.FAILED)


def _real_signal(job: JobInfo) -> int:
    """The signal that ended the job, 0 for none; Slurm writes OUT_OF_MEMORY as 0:125, and there is no such signal."""
    return job.signal if job.signal < signal.NSIG else 0


def _by_verdict(run: Run, code: int | None) -> Outcome:
    verdict = run.verdict or {}
    word = str(verdict.get("verdict", "FAILED"))
    reasons = verdict.get("reasons")
    first = reasons[0] if isinstance(reasons, list) and reasons and isinstance(reasons[0], dict) else {}
    text = " ".join(str(first.get("got", "")).split()) if word != "VALID" else _figure(run)
    if word == "FAILED" and first.get("check") == "interrupted":
        by = text.removeprefix("stopped by ")
        word, text = CANCELLED, text if by == text else f"interrupted by {by} (cancelled)"
    text = f"{first['check']}: {text}" if first.get("check") and word == "INVALID" else text
    short = _short_tests(run)
    text = ", ".join([*([text] if text else []), *short])
    if run.hold is not None and run.hold.ended:
        text = "; ".join(filter(None, (text, f"held for {run.hold.text()}, until {run.hold.ended}")))
    return Outcome(
        word,
        word == "VALID" and not short,
        text,
        exit_code=EXIT_CODES.get(word, ExitCode.FAILED) if code is None else code,
    )


def _short_tests(run: Run) -> list[str]:
    """The accuracy and compliance tests of the run that are not VALID, such as `accuracy INVALID`."""
    tests = (run.verdict or {}).get("tests")
    return [f"{name} {one}" for name, one in tests.items() if one != "VALID"] if isinstance(tests, dict) else []


def _figure(run: Run) -> str:
    qps = (run.verdict or {}).get("completed_qps")
    return f"{qps:.2f} completed per second" if isinstance(qps, int | float) else ""


def _because(job: JobInfo) -> str:
    return job.reason or job.meaning.meaning


def _warnings(job: JobInfo) -> tuple[str, ...]:
    if job.step_out_of_memory:
        return ("a step of the job ran out of memory (Slurm's derived exit code)",)
    if job.derived and job.derived != job.exit_code:
        return (f"a step of the job ended with {job.derived} (Slurm's derived exit code)",)
    return ()

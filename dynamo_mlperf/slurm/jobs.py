"""What Slurm says of jobs: one batched question to sacct where accounting runs, to scontrol where it does not.

sacct knows a job for as long as the site keeps records; scontrol knows one for MinJobAge after its end. sacct leaves
out why a job still waits when that is for want of nodes (sacct(1), "Reason"), so of jobs that have not ended scontrol
is asked too. It also calls a job CANCELLED or TIMEOUT as soon as that is decided, while its processes still have their
grace (seen on 22.05); scontrol calls that COMPLETING, so it is asked of jobs that ended a short while ago as well.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.slurm.programs import ask
from dynamo_mlperf.slurm.states import STATES, UNKNOWN, State, state_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "DerivedExitCode", "NodeList", "Reason", "Submit", "Start", "End")
_NOTHING = {"", "None", "(null)", "None assigned", "Unknown", "N/A"}
_LIVE = ("waiting", "running")
POLL_S = 0.5
RECENT_S = 900.0
"""An end in sacct that is younger need not be the end of the job's processes."""
_OOM_SIGNAL = 125
"""What Slurm writes as the signal of a process that the kernel killed for want of memory; no signal has this number."""


@dataclass(frozen=True)
class JobInfo:
    """One job, as Slurm sees it.

    Attributes:
        job_id: Its id.
        state: A key of `STATES`.
        exit_code: Exit status of the batch script; None while it runs or when it is not known.
        signal: The signal that ended it, else 0.
        derived: The highest exit status of its steps; None where Slurm does not say.
        step_out_of_memory: Whether a step ran out of memory, which need not have ended the job.
        reason: Why it waits, or why it ended; empty where Slurm gives none.
        nodes: Its nodes as Slurm writes them; empty before it has some.
        output: The file that its output goes to; empty where the source does not say.
        source: `sacct`, `scontrol`, or empty when neither knows the job.
        end_t: When it ended, in seconds since the epoch; 0 where it has not, or it is not known.
    """

    job_id: str
    state: str = UNKNOWN
    exit_code: int | None = None
    signal: int = 0
    derived: int | None = None
    reason: str = ""
    nodes: str = ""
    output: str = ""
    source: str = ""
    end_t: float = 0.0
    step_out_of_memory: bool = False

    @property
    def meaning(self) -> State:
        """What the state means."""
        return STATES[self.state]

    @property
    def ended(self) -> bool:
        """Whether it has ended, well or not."""
        return self.meaning.stage == "ended"

    @property
    def clean(self) -> bool:
        """Whether Slurm says that it ended well: COMPLETED, and 0:0."""
        return (self.state, self.exit_code, self.signal) == ("COMPLETED", 0, 0)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def query_jobs(job_ids: Sequence[str]) -> dict[str, JobInfo]:
    """What Slurm knows of these jobs, by id; a job that it does not know is UNKNOWN.

    Args:
        job_ids: Ids of jobs; of a job of an array as squeue shows it, `17_3`, or its own.

    Raises:
        SetupError: Neither sacct nor scontrol answers.
    """
    if not job_ids:
        return {}
    recorded = _from_sacct(job_ids)
    found = recorded or {}
    if any(job_id not in found or _may_live(found[job_id]) for job_id in job_ids):
        live = _from_scontrol(job_ids, needed=recorded is None)
        found = {**found, **_newer(found, live)} if live is not None else found
    return {job_id: found.get(job_id, JobInfo(job_id)) for job_id in job_ids}


def _may_live(recorded: JobInfo) -> bool:
    """Whether what sacct says of a job may be behind, or ahead of, what the controller of Slurm knows."""
    return not recorded.ended or time.time() - recorded.end_t < RECENT_S


def _newer(recorded: Mapping[str, JobInfo], live: Mapping[str, JobInfo]) -> dict[str, JobInfo]:
    """What to believe scontrol: all that is still open, and ends that sacct has not heard of.

    A job that sacct holds for open and that scontrol does not know any more ended in a way that was never recorded
    (`sacctmgr show runawayjobs`).
    """
    found = {key: info for key, info in live.items() if key not in recorded or not (recorded[key].ended and info.ended)}
    for key, info in recorded.items():
        if not info.ended and key not in live:
            found[key] = JobInfo(info.job_id, reason=f"sacct holds it for {info.state}, slurmctld does not know it")
    return found


def _from_sacct(job_ids: Sequence[str]) -> dict[str, JobInfo] | None:
    """By sacct; None where there is no accounting."""
    argv = ["sacct", "-X", "--noheader", "--parsable2", f"--jobs={','.join(job_ids)}", f"--format={','.join(_FIELDS)}"]
    try:
        answer = ask(argv)
    except SetupError:
        return None
    return None if answer.status != 0 else parse_sacct(answer.stdout)


def parse_sacct(text: str) -> dict[str, JobInfo]:
    """Lines of `sacct -X -n -P` with the fields that we ask for; lines of another shape are left out."""
    found: dict[str, JobInfo] = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) < len(_FIELDS):
            continue
        row = dict(zip(_FIELDS, values, strict=False))
        status, signal = _code(row["ExitCode"])
        state = state_name(row["State"])
        ended = STATES[state].stage == "ended"
        info = JobInfo(
            row["JobIDRaw"],
            state,
            status if ended else None,
            signal,
            _code(row["DerivedExitCode"])[0],
            _cancelled_by(row["State"]) or _text(row["Reason"]),
            _text(row["NodeList"]),
            source="sacct",
            end_t=_seconds(row["End"]) if ended else 0.0,
            step_out_of_memory=_code(row["DerivedExitCode"])[1] == _OOM_SIGNAL,
        )
        found |= dict.fromkeys((row["JobIDRaw"], row["JobID"]), info)
    return found


def _from_scontrol(job_ids: Sequence[str], *, needed: bool) -> dict[str, JobInfo] | None:
    """By scontrol: of one job alone, or of all jobs in one question; None where it does not answer.

    Raises:
        SetupError: It does not answer, and nobody else could.
    """
    one = [job_ids[0]] if len(job_ids) == 1 else []
    try:
        answer = ask(["scontrol", "--details", "--all", "--oneliner", "show", "job", *one])
    except SetupError:
        if needed:
            raise
        return None
    if answer.status != 0 and "Invalid job id" not in answer.stderr:
        if needed:
            said = answer.stderr.strip()
            raise SetupError(f"Slurm does not answer: {said}", "try again, or look with `scontrol ping`")
        return None
    told = parse_scontrol(answer.stdout)
    if one and one[0] not in told and len(set(told.values())) == 1:
        told[one[0]] = next(iter(told.values()))  # of an array that waits: its jobs have one record, `17_[0-3]`
    return {job_id: told[job_id] for job_id in job_ids if job_id in told}


def parse_scontrol(text: str) -> dict[str, JobInfo]:
    """Lines of `scontrol --details --oneliner show job`; without --details it leaves out the derived exit code."""
    found: dict[str, JobInfo] = {}
    for line in text.splitlines():
        row = _words(line)
        if "JobId" not in row or "JobState" not in row:
            continue
        state = state_name(row["JobState"])
        status, signal = _code(row.get("ExitCode", ""))
        derived, derived_signal = _code(row.get("DerivedExitCode", ""))
        ended = STATES[state].stage == "ended"
        info = JobInfo(
            row["JobId"],
            state,
            status if ended else None,
            signal,
            derived,
            _text(row.get("Reason", "")),
            _text(row.get("NodeList", "")),
            row.get("StdOut", ""),
            source="scontrol",
            end_t=_seconds(row.get("EndTime", "")) if ended else 0.0,
            step_out_of_memory=derived_signal == _OOM_SIGNAL,
        )
        names = [row["JobId"]]
        if "ArrayJobId" in row:
            names.append(f"{row['ArrayJobId']}_{row.get('ArrayTaskId', '')}")
        found |= dict.fromkeys(names, info)
    return found


def _words(line: str) -> dict[str, str]:
    """`Key=value` pairs; a value may hold blanks, so it reaches to the next word that looks like a key."""
    pairs = re.findall(r"(?:^|\s)([A-Za-z][A-Za-z:_/]*)=(.*?)(?=\s+[A-Za-z][A-Za-z:_/]*=|\s*$)", line)
    words: dict[str, str] = {}
    for name, value in pairs:
        words.setdefault(name, value)
    return words


def _code(text: str) -> tuple[int | None, int]:
    """`4:0` as exit status and signal."""
    found = re.fullmatch(r"([0-9]+):([0-9]+)", text.strip())
    return (int(found[1]), int(found[2])) if found else (None, 0)


def _seconds(text: str) -> float:
    """A time as SLURM_TIME_FORMAT=%s has it; 0 where there is none."""
    return float(text) if re.fullmatch(r"[0-9]+", text.strip()) else 0.0


def _cancelled_by(state: str) -> str:
    found = re.search(r" by ([0-9]+)", state)
    return f"by user {found[1]}" if found else ""


def _text(value: str) -> str:
    return "" if value.strip() in _NOTHING else value.strip()


def wait_until_ended(job_id: str, timeout_s: float | None, every_s: float = POLL_S) -> JobInfo:
    """What Slurm says of the job when it has ended, or after `timeout_s`."""
    began = time.monotonic()
    while True:
        info = query_jobs([job_id])[job_id]
        if info.meaning.stage not in _LIVE or (timeout_s is not None and time.monotonic() - began > timeout_s):
            return info
        time.sleep(every_s)


def running_steps(job_id: str) -> list[str]:
    """Names of the job's steps that still run, as far as Slurm answers."""
    try:
        answer = ask(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--Format=StepID:64,StepName:128"])
    except SetupError:
        return []
    return [" ".join(line.split()) for line in answer.stdout.splitlines() if line.strip()]


def output_of(job_id: str) -> str:
    """The file that the job's output goes to; empty where Slurm does not know it any more.

    Raises:
        SetupError: scontrol is not installed, or does not answer.
    """
    found = _from_scontrol([job_id], needed=False) or {}
    return found[job_id].output if job_id in found else ""

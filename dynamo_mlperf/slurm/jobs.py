"""What Slurm says of jobs: one batched question to sacct where accounting runs, to scontrol where it does not.

sacct knows a job for as long as the site keeps records; scontrol knows one for MinJobAge after its end. sacct leaves
out why a job still waits when that is for want of nodes (sacct(1), "Reason"), so of jobs that have not ended scontrol
is asked too.
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
    from collections.abc import Sequence

_FIELDS = ("JobIDRaw", "State", "ExitCode", "DerivedExitCode", "NodeList", "Reason", "Submit", "Start", "End")
_NOTHING = {"", "None", "(null)", "None assigned", "Unknown", "N/A"}
_LIVE = ("waiting", "running")
POLL_S = 0.5


@dataclass(frozen=True)
class JobInfo:
    """One job, as Slurm sees it.

    Attributes:
        job_id: Its id.
        state: A key of `STATES`.
        exit_code: Exit status of the batch script; None while it runs or when it is not known.
        signal: The signal that ended it, else 0.
        derived: The highest exit status of its steps; None where Slurm does not say.
        reason: Why it waits, or why it ended; empty where Slurm gives none.
        nodes: Its nodes as Slurm writes them; empty before it has some.
        output: The file that its output goes to; empty where the source does not say.
        source: `sacct`, `scontrol`, or empty when neither knows the job.
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

    Raises:
        SetupError: Neither sacct nor scontrol answers.
    """
    if not job_ids:
        return {}
    recorded = _from_sacct(job_ids)
    found = recorded or {}
    if any(job_id not in found or not found[job_id].ended for job_id in job_ids):
        live = _from_scontrol(job_ids, needed=recorded is None)
        for job_id, info in live.items():
            if not (job_id in found and found[job_id].ended):
                found[job_id] = info
    return {job_id: found.get(job_id, JobInfo(job_id)) for job_id in job_ids}


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
    found = {}
    for line in text.splitlines():
        values = line.split("|")
        if len(values) < len(_FIELDS):
            continue
        row = dict(zip(_FIELDS, values, strict=False))
        status, signal = _code(row["ExitCode"])
        state = state_name(row["State"])
        found[row["JobIDRaw"]] = JobInfo(
            row["JobIDRaw"],
            state,
            status if STATES[state].stage == "ended" else None,
            signal,
            _code(row["DerivedExitCode"])[0],
            _cancelled_by(row["State"]) or _text(row["Reason"]),
            _text(row["NodeList"]),
            source="sacct",
        )
    return found


def _from_scontrol(job_ids: Sequence[str], *, needed: bool) -> dict[str, JobInfo]:
    """By scontrol: of one job alone, or of all jobs in one question.

    Raises:
        SetupError: It does not answer, and nobody else could.
    """
    one = [job_ids[0]] if len(job_ids) == 1 else []
    try:
        answer = ask(["scontrol", "--details", "--oneliner", "show", "job", *one])
    except SetupError:
        if needed:
            raise
        return {}
    if answer.status != 0 and needed and "Invalid job id" not in answer.stderr:
        raise SetupError(f"Slurm does not answer: {answer.stderr.strip()}", "try again, or look with `scontrol ping`")
    wanted = set(job_ids)
    return {job_id: info for job_id, info in parse_scontrol(answer.stdout).items() if job_id in wanted}


def parse_scontrol(text: str) -> dict[str, JobInfo]:
    """Lines of `scontrol --details --oneliner show job`; without --details it leaves out the derived exit code."""
    found = {}
    for line in text.splitlines():
        row = _words(line)
        if "JobId" not in row or "JobState" not in row:
            continue
        state = state_name(row["JobState"])
        status, signal = _code(row.get("ExitCode", ""))
        found[row["JobId"]] = JobInfo(
            row["JobId"],
            state,
            status if STATES[state].stage == "ended" else None,
            signal,
            _code(row.get("DerivedExitCode", ""))[0],
            _text(row.get("Reason", "")),
            _text(row.get("NodeList", "")),
            row.get("StdOut", ""),
            source="scontrol",
        )
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
    found = _from_scontrol([job_id], needed=False)
    return found[job_id].output if job_id in found else ""

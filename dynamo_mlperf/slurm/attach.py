"""A live allocation of the user's own that a run attaches to: what Slurm says of it, and which of its nodes are free.

In Slurm 22.05 a step that is started from outside the job (`srun --jobid`) sees only its own nodes in
SLURM_JOB_NODELIST and no SLURM_SUBMIT_DIR, gets all of the job's GPUs on them, and with `--overlap` waits for no other
step (srun(1)). So the controller is told its nodes, and which of them other runs use is told by the names of steps.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.slurm.deadline import parse_end_time
from dynamo_mlperf.slurm.hostlist import expand
from dynamo_mlperf.slurm.programs import ask, fault_of
from dynamo_mlperf.slurm.states import STATES, state_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
_STEP = re.compile(r"dmp-([0-9a-f]{6})([.-])(.*)")
_GPUS = re.compile(r"gpu(?::[^:(,]+)?:([0-9]+)")
_SHOWN_HOSTS = 8
_NAME_CHARS = 1024
"""The longest name of a step that slurmctld takes (step_mgr.c); a longer one is "Pathname too long"."""
_RANGES_CHARS = 64
_STEPS = (f"--Format=StepID:64,StepName:{_NAME_CHARS + 1},Nodes:4096",)


@dataclass(frozen=True)
class LiveJob:
    """A job that runs, as Slurm says.

    Attributes:
        job_id: Its id; of a job of an array its own, not the array's.
        hosts: Its nodes, in Slurm's order.
        gpus: GPUs that it was given by node; empty where Slurm does not say.
        end_t: When its time is over, in seconds since the epoch; None without a limit.
    """

    job_id: str
    hosts: tuple[str, ...]
    gpus: Mapping[str, int] = field(default_factory=dict)
    end_t: float | None = None


@dataclass(frozen=True)
class OtherRun:
    """A run of ours that is under way in a job.

    Attributes:
        token: Marks the names of its steps.
        hosts: Nodes that it uses.
        controller: The step of its controller, as in `17.4`; empty where that is the batch script.
        steps: How many steps it has.
    """

    token: str
    hosts: frozenset[str]
    controller: str
    steps: int


def is_ours(name: str) -> bool:
    """Whether a step of this name is a run's, its controller's included."""
    return _STEP.fullmatch(name) is not None


def step_prefix(token: str) -> str:
    """How the names of a run's steps begin, but for its controller's."""
    return f"dmp-{token}-"


def controller_step_name(token: str, positions: Sequence[int]) -> str:
    """The name of an attached controller's step: it says which of the job's nodes the run has, before it uses them.

    Where ranges would be long, the nodes are the bits of a number: `x4f` is what `0-3.6` is.

    Raises:
        SetupError: The nodes are so many and so scattered that no name can say them.
    """
    told = _ranges(positions)
    if len(told) > _RANGES_CHARS:
        told = min(told, f"x{sum(1 << position for position in set(positions)):x}", key=len)
    name = f"dmp-{token}.{told}"
    if len(name) > _NAME_CHARS:
        raise SetupError(
            f"{len(positions)} nodes of the job, in {told.count('.') + 1} places, do not fit into a step's name "
            f"({len(name)} characters, Slurm takes {_NAME_CHARS})",
            "wait for the end of the other runs in this job",
        )
    return name


def _ranges(positions: Sequence[int]) -> str:
    """`0-3.6` for 0, 1, 2, 3 and 6."""
    found: list[list[int]] = []
    for position in sorted(positions):
        if found and position == found[-1][1] + 1:
            found[-1][1] = position
        else:
            found.append([position, position])
    return ".".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _positions(text: str, nodes: int) -> set[int]:
    """What `controller_step_name` has written, among the positions of so many nodes; a name can be anyone's."""
    if bits := re.fullmatch(r"x([0-9a-f]+)", text):
        number = int(bits[1], 16)
        return {position for position in range(nodes) if number >> position & 1}
    found: set[int] = set()
    for part in text.split("."):
        if ends := re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part):
            found |= set(range(int(ends[1]), min(int(ends[2] or ends[1]) + 1, nodes)))
    return found


def live_job(job_id: str) -> LiveJob:
    """What Slurm says of a job that a run wants to attach to.

    Raises:
        ConfigError: That is no job's id.
        SetupError: There is no such job, it is not this user's, it does not run, or Slurm does not answer.
    """
    if not _JOB.fullmatch(job_id):
        raise ConfigError(f"--attach {job_id[:40]!r} is no job's id", "give the number that squeue --me shows")
    answer = ask(["scontrol", "--details", "--oneliner", "show", "job", job_id])
    if answer.status != 0:
        raise SetupError(f"job {job_id}: {fault_of('scontrol', answer)}", "squeue --me lists your jobs")
    lines = [line for line in answer.stdout.splitlines() if line.startswith("JobId=")]
    if not lines:
        raise SetupError(
            f"job {job_id}: scontrol's answer names no job", f"run it to see why: scontrol show job {job_id}"
        )
    if len(lines) > 1:
        raise SetupError(f"job {job_id} is {len(lines)} jobs", "name one of them, such as 17_3; squeue --me lists them")
    return parse_live_job(job_id, lines[0], os.getuid())


def parse_live_job(job_id: str, line: str, user: int) -> LiveJob:
    """One line of `scontrol --details --oneliner show job`; `user` is the id of the user who attaches.

    Raises:
        SetupError: The job is another user's, or does not run.
    """
    owner = re.search(r"\bUserId=(\S*?)\((\d+)\)", line)
    if owner is not None and int(owner[2]) != user:
        raise SetupError(
            f"job {job_id} is of user {owner[1]} (id {owner[2]}), you are {user}",
            "attach to a job of your own; squeue --me lists them",
        )
    state = state_name(_value(line, "JobState"))
    hosts = expand(_value(line, "NodeList")) if _value(line, "NodeList") not in ("", "(null)") else []
    if state != "RUNNING" or not hosts:
        reason = _value(line, "Reason")
        told = f" ({reason})" if reason not in ("", "None") else ""
        raise SetupError(
            f"job {job_id} does not run: it is {state}{told}, {STATES[state].meaning}",
            "wait until squeue --me shows it as running (R), or get an allocation: salloc --no-shell ...",
        )
    gpus: dict[str, int] = {}
    for names, given in re.findall(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", line):
        gpus |= dict.fromkeys(expand(names), gpus_in(given))
    return LiveJob(_value(line, "JobId") or job_id, tuple(hosts), gpus, parse_end_time(line))


def gpus_in(gres: str) -> int:
    """How many GPUs Slurm's text of generic resources names: 2 for `gpu:a100:2(IDX:0-1)`."""
    return sum(int(number) for number in _GPUS.findall(gres))


def _value(line: str, key: str) -> str:
    found = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return found[1] if found else ""


def other_runs(job: LiveJob) -> list[OtherRun]:
    """The runs of ours that are under way in the job, by the names of its steps.

    Raises:
        SetupError: Slurm does not answer.
    """
    answer = ask(["squeue", "--noheader", "--steps", f"--jobs={job.job_id}", *_STEPS])
    if answer.status != 0:
        raise SetupError(fault_of("squeue", answer), "look whether Slurm is up: sinfo")
    return parse_runs(answer.stdout, job.hosts)


def parse_runs(text: str, hosts: Sequence[str]) -> list[OtherRun]:
    """What squeue prints of a job's steps; `hosts` are the job's nodes in order.

    Raises:
        SetupError: The nodes of a step of ours are no node list.
    """
    used: dict[str, set[str]] = {}
    controllers: dict[str, str] = {}
    steps: dict[str, int] = {}
    for line in text.splitlines():
        step, name, nodes = [*line.split(), "", "", ""][:3]
        found = _STEP.fullmatch(name)
        if found is None:
            continue
        token, kind, rest = found.groups()
        steps[token] = steps.get(token, 0) + 1
        if kind == ".":
            controllers[token] = step
            used.setdefault(token, set()).update(hosts[at] for at in _positions(rest, len(hosts)))
        used.setdefault(token, set()).update(_nodes_of(step, nodes))
    return [OtherRun(token, frozenset(used[token]), controllers.get(token, ""), steps[token]) for token in steps]


def _nodes_of(step: str, nodes: str) -> list[str]:
    try:
        return expand(nodes) if nodes else []
    except ConfigError as problem:
        raise SetupError(f"squeue's row of step {step}: {problem.what}", "run it to see why: squeue --steps") from None


def choose_hosts(job: LiveJob, others: Sequence[OtherRun], *, nodes: int, gpus: int) -> tuple[str, ...]:
    """The first nodes of the job that no other run of ours uses.

    Args:
        job: The job.
        others: Runs that are under way in it.
        nodes: How many are planned.
        gpus: GPUs that the plan wants on each; 0 where it wants none of Slurm's.

    Raises:
        SetupError: There are too few nodes, free nodes, or GPUs on them.
    """
    whole = f"job {job.job_id} has {_counted(len(job.hosts))} ({_listed(job.hosts)})"
    if len(job.hosts) < nodes:
        raise SetupError(
            f"{whole}, {nodes} planned", f"run --nodes {len(job.hosts)}, or get an allocation of --nodes={nodes}"
        )
    busy = frozenset[str]().union(*(other.hosts for other in others))
    free = [host for host in job.hosts if host not in busy]
    if len(free) < nodes:
        steps = sum(other.steps for other in others)
        taken = [host for host in job.hosts if host in busy]
        runs = "another run of ours is" if len(others) == 1 else f"{len(others)} other runs of ours are"
        raise SetupError(
            f"{whole}; {runs} under way on {len(taken)} of them ({_listed(taken)}; {steps} steps), "
            f"{len(free)} free, {nodes} planned",
            "wait for its end, or end it: `dynamo-mlperf status` lists runs, `dynamo-mlperf cancel RUN` ends one",
        )
    fit = [host for host in free if not job.gpus or job.gpus.get(host, 0) >= gpus]
    if len(fit) < nodes:
        given = sorted({job.gpus.get(host, 0) for host in free})
        raise SetupError(
            f"job {job.job_id} was given {' or '.join(map(str, given))} GPUs on each of {_counted(len(free))} "
            f"({_listed(free)}), {gpus} on each of {nodes} planned",
            f"get an allocation with --gres=gpu:{gpus}, or device: cpu for a trial without GPUs",
        )
    return tuple(fit[:nodes])


def refuse_neighbour(job: LiveJob, token: str, hosts: Sequence[str], step: str) -> None:
    """Refuse nodes on which another run was quicker: two that attach at once have both seen them free.

    Of two controllers the one with the lower step goes on; one in a batch script always does.

    Raises:
        SetupError: Names the nodes.
    """
    for other in other_runs(job):
        shared = sorted(other.hosts & set(hosts))
        first = not other.controller or _number(other.controller) < _number(step)
        if other.token != token and shared and first:
            raise SetupError(
                f"another run of ours was quicker on {len(shared)} of {len(hosts)} nodes ({_listed(shared)}) "
                f"of job {job.job_id}",
                "wait for its end, then run again",
            )


def _number(step: str) -> int:
    number = step.rpartition(".")[2]
    return int(number) if re.fullmatch("[0-9]{1,9}", number) else 0


def controller_argv(job_id: str, host: str, name: str, program: Sequence[str], *, start_s: int) -> list[str]:
    """The `srun` command line of an attached controller; its standard input stays open, for the relay.

    `--overlap --mem=0`: it shares its node with the engines' steps, and waits for none; `--immediate`: nor for a busy
    node without end. `--quiet` leaves out srun's remarks, not its errors.
    """
    return [
        "srun",
        "--quiet",
        f"--jobid={job_id}",
        "--overlap",
        "--mem=0",
        f"--immediate={start_s}",
        "--nodes=1",
        "--ntasks=1",
        "--cpu-bind=none",
        f"--nodelist={host}",
        f"--job-name={name}",
        "--kill-on-bad-exit=0",
        *program,
    ]


def steps_of(job_id: str, token: str) -> list[str]:
    """Steps of a run that are still there, as far as Slurm answers."""
    try:
        answer = ask(["squeue", "--noheader", "--steps", f"--jobs={job_id}", *_STEPS])
    except SetupError:
        return []
    rows = (line.split() for line in answer.stdout.splitlines())
    return [row[0] for row in rows if len(row) > 1 and (found := _STEP.fullmatch(row[1])) and found[1] == token]


def live_steps(job_ids: Sequence[str]) -> set[str] | None:
    """All steps of these jobs that run, as in `17.4`; None where Slurm does not answer."""
    if not job_ids:
        return set()
    try:
        answer = ask(["squeue", "--noheader", "--steps", f"--jobs={','.join(job_ids)}", "--Format=StepID:64"])
    except SetupError:
        return None
    return set(answer.stdout.split()) if answer.status == 0 else None


def _counted(nodes: int) -> str:
    return f"{nodes} node" if nodes == 1 else f"{nodes} nodes"


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:_SHOWN_HOSTS]) + (" ..." if len(hosts) > _SHOWN_HOSTS else "")

"""`--attach JOBID`: the whole chain inside a live Slurm allocation of one's own, without another sbatch."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.launch import prepare, resumable
from dynamo_mlperf.errors import ConfigError, ExitCode, SetupError
from dynamo_mlperf.job.rate_search import CLOSING_S
from dynamo_mlperf.job.time_limit import refuse_without_time
from dynamo_mlperf.process.relay import through_launcher
from dynamo_mlperf.record import new_run_directory
from dynamo_mlperf.site import refuse_unfilled
from dynamo_mlperf.slurm.allocation import new_token
from dynamo_mlperf.slurm.attach import (
    choose_hosts,
    controller_argv,
    controller_step_name,
    live_job,
    other_runs,
    steps_of,
)
from dynamo_mlperf.slurm.programs import ask, clean_environment, signal_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.cli.call import Call
    from dynamo_mlperf.slurm.attach import LiveJob
    from dynamo_mlperf.topology.spec import Topology

KILL_S = 10.0
"""How long Slurm may take to end steps that a killed controller has left."""
_POLL_S = 0.2
_SIGNAL_BASE = 128
_STOPPED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


@dataclass(frozen=True)
class Within:
    """What an attached controller cannot read from its environment; its `job` verb gets it as one argument.

    Attributes:
        token: Marks the names of the run's steps.
        run_id: The run's name.
        hosts: The nodes of the job that the run has, in the order of node positions.
        base_dir: What relative paths of the file resolve against.
        blocks: What the command line lays over the file.
    """

    token: str
    run_id: str
    hosts: tuple[str, ...]
    base_dir: str
    blocks: Mapping[str, Mapping[str, object]] | None = None

    def as_text(self) -> str:
        """One argument."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> Within:
        """The inverse of `as_text`.

        Raises:
            ConfigError: It is something else.
        """
        try:
            value = json.loads(text)
            return Within(**{**value, "hosts": tuple(value["hosts"])})
        except (ValueError, TypeError, KeyError) as problem:
            raise ConfigError(f"--within is not as --attach writes it: {problem!r:.80}", "use --attach JOBID") from None


def run_attached(job_id: str, call: Call) -> int:
    """Run the file in that job and wait; its output comes here, stop requests reach its controller.

    The controller is a step on the first of its nodes, as it is the batch script of a job that sbatch starts.

    Returns:
        The controller's exit code.

    Raises:
        ConfigError: The file is refused, as `submit` refuses it.
        SetupError: The job cannot take the run, or no run began, whatever srun's status.
    """
    file, site = call.file, call.site
    topology, plan, its_site = prepare(file, site, Path.cwd(), call.nodes, from_afar=True, blocks=call.blocks)
    refuse_unfilled(site or topology.site, Path.cwd())
    old = None if call.resume is None else str(resumable(call.resume, topology, Path.cwd(), redo=call.redo))
    job = live_job(job_id)
    if job.end_t is not None and call.resume is None:  # what was resumed may need less
        refuse_without_time(topology, Path.cwd(), job.end_t - time.time() - CLOSING_S, f"job {job.job_id}")
    hosts = choose_hosts(job, other_runs(job), nodes=len(plan.nodes), gpus=_gpus_wanted(topology))
    token = new_token()
    run_id = f"{topology.name}-{job.job_id}-{token}"
    place = new_run_directory(call.run_dir or Path("runs") / run_id)
    within = Within(token, run_id, hosts, str(Path.cwd()), call.blocks)
    given = (("--site", site), ("--nodes", call.nodes), ("--resume", old), ("--within", within.as_text()))
    words = [
        *("job", str(file.absolute()), "--run-dir", str(place)),
        *(str(word) for name, value in given if value is not None for word in (name, value)),
        *(["--redo"] if call.redo else []),
        *(["--json"] if call.as_json else []),
    ]
    python = (sys.executable, "-m")
    program = (*python, "dynamo_mlperf.process.relay", *python, "dynamo_mlperf.cli", *words)
    name = controller_step_name(token, [job.hosts.index(host) for host in hosts])
    click.echo(_told(job, hosts), err=True)
    argv = controller_argv(job.job_id, hosts[0], name, program, start_s=its_site.step_start_s)
    status = through_launcher(argv, clean_environment(), Path.cwd())
    _end_steps(job.job_id, token)
    how = _how_it_ended(status)
    if not began(place) and status not in _STOPPED:
        raise SetupError(
            f"job {job.job_id}: no run began on {hosts[0]}: {how}",
            f"read the lines above; {sys.executable}, {Path.cwd()} and {file} must be seen from the job's nodes",
        )
    if not place.exists():
        click.echo(f"job {job.job_id}: stopped before a run began on {hosts[0]}: {how}", err=True)
    elif status > _SIGNAL_BASE and status not in _STOPPED:
        click.echo(f"job {job.job_id}: the run in {place} was cut short: {how}", err=True)
    return status


def began(place: Path) -> bool:
    """Whether the controller made the run directory."""
    for folder in (place.parent.parent, place.parent):  # an NFS client looks anew at what it opens (nfs(5))
        with contextlib.suppress(OSError):
            os.scandir(folder).close()
    return place.exists()


def _how_it_ended(status: int) -> str:
    signalled = f" ({signal_name(status - _SIGNAL_BASE)})" if status > _SIGNAL_BASE else ""
    return f"srun ended with {status}{signalled}"


def _gpus_wanted(topology: Topology) -> int:
    """GPUs that Slurm must have given on each node."""
    return 0 if topology.device == "cpu" or topology.engine == "mocker" else topology.nodes.gpus


def _told(job: LiveJob, hosts: tuple[str, ...]) -> str:
    left = "" if job.end_t is None else f", {max(0.0, job.end_t - time.time()) / 60:.0f} min of its time left"
    return f"attached to job {job.job_id}: {len(hosts)} of {len(job.hosts)} nodes, first {hosts[0]}{left}"


def _end_steps(job_id: str, token: str) -> None:
    """Kill what a controller that was killed has left; the allocation is then free for the next run."""
    until = time.monotonic() + KILL_S
    while (left := steps_of(job_id, token)) and time.monotonic() < until:
        ask(["scancel", "--signal=KILL", *left])
        time.sleep(_POLL_S)
    if left:
        click.echo(f"warning: {len(left)} steps still run: {', '.join(left)}; scancel {' '.join(left)}", err=True)

"""`job`: a topology file inside the Slurm job that it is the batch script of."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.call import Call
from dynamo_mlperf.cli.hold import hold_block, hold_options
from dynamo_mlperf.cli.run_options import run_options

if TYPE_CHECKING:
    from dynamo_mlperf.cli.launch import Launch


@click.command(name="job")
@run_options
@click.option("--resume", metavar="RUN", help="Go on with the search or sweep of an interrupted run.")
@click.option("--redo", is_flag=True, help="With --resume: splits found by other settings are searched on.")
@click.option(
    "--attach",
    metavar="JOBID|RUN",
    help="Run in this live Slurm job of yours, from outside, or through the engines that RUN holds; they stay.",
)
@hold_options
@click.option("--within", hidden=True, help="What --attach tells the controller that it starts in the job.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def command(
    file: Path,
    run_dir: Path | None,
    site: str | None,
    *,
    nodes: int | None,
    resume: str | None,
    redo: bool,
    attach: str | None,
    hold: bool,
    hold_s: float | None,
    within: str | None,
    as_json: bool,
) -> int:
    """Run FILE on the nodes of the Slurm job that calls this; `sbatch FILE` does, by the file's first line.

    Relative paths resolve against the directory of submission. The batch job ends with this command's exit code.
    On another number of nodes: `sbatch --nodes=N FILE --nodes N`. An executable FILE runs in an allocation that you
    hold by `./FILE --attach JOBID`, as `run FILE --attach JOBID` does.
    """
    blocks = hold_block(hold=hold, hold_s=hold_s)
    call = Call(
        file=file, site=site, run_dir=run_dir, nodes=nodes, resume=resume, redo=redo, blocks=blocks, as_json=as_json
    )
    if attach is not None:
        from dynamo_mlperf.cli.run import run_here

        return run_here(call, attach)
    from dynamo_mlperf.cli.launch import Launch, launch
    from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob

    if within is not None:
        return launch(_attached(within, call))
    job = SlurmJob.current(os.environ)
    return launch(
        Launch(
            call,
            base_dir=Path(job.submit_dir),
            run_id=lambda name: f"{name}-{job.job_id}",
            allocation=lambda _plan, site: SlurmAllocation(job, site),
        )
    )


def _attached(text: str, call: Call) -> Launch:
    """The call in a controller that is a step of a live job.

    Raises:
        ConfigError: It was not started by --attach.
        SetupError: It is no step.
    """
    from dynamo_mlperf.cli.attach import Within
    from dynamo_mlperf.cli.launch import Launch
    from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob

    told = Within.of(text)
    job = SlurmJob.attached(os.environ, told.hosts, told.base_dir)
    return Launch(
        replace(call, blocks=told.blocks),
        base_dir=Path(told.base_dir),
        run_id=lambda _name: told.run_id,
        allocation=lambda _plan, site: SlurmAllocation(job, site, told.token),
    )

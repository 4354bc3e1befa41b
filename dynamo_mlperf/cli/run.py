"""`run`: a topology file on this machine alone, or in a live Slurm allocation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.call import Call
from dynamo_mlperf.cli.hold import hold_block, hold_options
from dynamo_mlperf.cli.run_options import run_options

if TYPE_CHECKING:
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology


@click.command(name="run")
@run_options
@click.option(
    "--attach",
    metavar="JOBID|RUN",
    help="Run in this live Slurm job of yours instead, or through the engines that RUN holds; they stay.",
)
@hold_options
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def command(
    file: Path,
    run_dir: Path | None,
    site: str | None,
    nodes: int | None,
    *,
    attach: str | None,
    hold: bool,
    hold_s: float | None,
    as_json: bool,
) -> int:
    """Serve FILE's topology on this machine (nodes are virtual), measure, judge and record it.

    No Slurm, root or GPU is needed. Progress goes to stderr; the last line on stdout is the verdict. Ends with 0 for
    VALID, 5 for INVALID, 4 for FAILED.

    With --attach it runs on the nodes of an allocation that you hold (salloc, or a job that sleeps), on those that no
    other run uses; Ctrl-C ends the run, and the allocation is free for the next one.

    With --hold the engines stay up after the measurement, until Ctrl-C, `cancel RUN`, or an hour without another one;
    meanwhile --attach RUN measures through them what differs in the measurement alone: rate, scenario, data set, tests.
    """
    blocks = hold_block(hold=hold, hold_s=hold_s)
    call = Call(file=file, site=site, run_dir=run_dir, nodes=nodes, blocks=blocks, as_json=as_json)
    return run_here(call, attach)


def run_here(call: Call, attach: str | None = None) -> int:
    """Run the file from the working directory, here, in a live Slurm job or on held engines; returns the exit code.

    Args:
        call: What is asked for.
        attach: The id of that job, or a run that holds its engines; None = this machine.
    """
    if attach is not None:
        from dynamo_mlperf.cli.attach import run_attached
        from dynamo_mlperf.cli.attach_held import held_run, run_on_held

        holder = held_run(attach)
        return run_attached(attach, call) if holder is None else run_on_held(holder, call)
    from dynamo_mlperf.cli.launch import Launch, launch
    from dynamo_mlperf.job.context import local_run_id, new_nonce

    def run_id(name: str) -> str:
        return local_run_id(name, new_nonce())

    fits = refuse_too_few_gpus
    return launch(Launch(call, Path.cwd(), run_id, this_machine, fits))


def refuse_too_few_gpus(topology: Topology, plan: Plan) -> None:
    """Refuse a file whose engines want GPUs that this machine has not.

    Raises:
        CapacityError: Names both numbers.
    """
    from dynamo_mlperf.errors import CapacityError
    from dynamo_mlperf.process.machine import visible_gpus

    if topology.device == "cpu" or topology.engine == "mocker":
        return
    wanted, seen = max(node.gpus for node in plan.nodes), visible_gpus()
    if seen < wanted:
        count = len(plan.nodes)
        raise CapacityError(
            f"this file wants {count} {'node' if count == 1 else 'nodes'} x {wanted} GPUs, "
            f"and this machine has {seen} GPUs",
            "submit it (`dynamo-mlperf submit FILE`, `sbatch FILE`, or --attach JOBID of a live job), or rehearse it "
            "without GPUs: `dynamo-mlperf rehearse FILE`",
        )


def this_machine(plan: Plan, site: Site) -> Allocation:
    """Virtual nodes on this machine.

    Raises:
        ConfigError: The site wants engines started in a way that only a Slurm job has.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.process.allocation import LocalAllocation
    from dynamo_mlperf.slurm.engine_step import changes_engines

    if changes_engines(site):
        raise ConfigError(
            f"site {site.name} has a container, modules, prologue or mpi, and `run` starts engines as they are here",
            "use --site laptop, or submit the file to Slurm",
        )
    return LocalAllocation(len(plan.nodes))

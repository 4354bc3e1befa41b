"""`job`: a topology file inside the Slurm job that it is the batch script of."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(name="job")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to record the run. [default: runs/ID]")
@click.option("--site", help="Site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
@click.option("--nodes", type=int, help="Another node count than the file's; workers scale in proportion.")
@click.option("--resume", metavar="RUN", help="Go on with the search or sweep of an interrupted run.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def command(
    file: Path, run_dir: Path | None, site: str | None, *, nodes: int | None, resume: str | None, as_json: bool
) -> int:
    """Run FILE on the nodes of the Slurm job that calls this; `sbatch FILE` does, by the file's first line.

    Relative paths resolve against the directory of submission. The batch job ends with this command's exit code.
    On another number of nodes: `sbatch --nodes=N FILE --nodes N`.
    """
    from dynamo_mlperf.cli.launch import Launch, launch
    from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob

    job = SlurmJob.current(os.environ)
    return launch(
        Launch(
            file=file,
            site=site,
            base_dir=Path(job.submit_dir),
            run_dir=run_dir,
            as_json=as_json,
            run_id=lambda name: f"{name}-{job.job_id}",
            allocation=lambda _plan, site: SlurmAllocation(job, site),
            nodes=nodes,
            resume=resume,
        )
    )

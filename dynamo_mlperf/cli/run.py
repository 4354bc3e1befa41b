"""`run`: a topology file on this machine alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="run")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to record the run. [default: runs/ID]")
@click.option("--site", help="Site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def command(file: Path, run_dir: Path | None, site: str | None, *, as_json: bool) -> int:
    """Serve FILE's topology on this machine (nodes are virtual), measure, judge and record it.

    No Slurm, root or GPU is needed. Progress goes to stderr; the last line on stdout is the verdict. Ends with 0 for
    VALID, 5 for INVALID, 4 for FAILED.
    """
    from dynamo_mlperf.cli.launch import Launch, launch
    from dynamo_mlperf.job.context import local_run_id, new_nonce
    from dynamo_mlperf.process.allocation import LocalAllocation

    return launch(
        Launch(
            file=file,
            site=site,
            base_dir=Path.cwd(),
            run_dir=run_dir,
            as_json=as_json,
            run_id=lambda name: local_run_id(name, new_nonce()),
            allocation=lambda plan: LocalAllocation(len(plan.nodes)),
        )
    )

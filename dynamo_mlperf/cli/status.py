"""`status`: how runs stand, by their directories and by Slurm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamo_mlperf.slurm.standing import Standing

WATCH_S = 2.0


@click.command(name="status")
@click.argument("runs", nargs=-1, metavar="[RUN|JOBID]...")
@click.option("--watch", is_flag=True, help="Say it again every 2 s, until all of them have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(runs: tuple[str, ...], *, watch: bool, as_json: bool) -> None:
    """Show how runs stand: phase, workers, progress, and what Slurm says, with its reason while a job waits.

    RUN is a directory, the name of a run below runs/ or its beginning, or the id of a job; without any, all are shown.
    Only a job that Slurm calls COMPLETED 0:0 and that left a complete result counts as a success.
    """
    while True:
        found = _found(runs)
        if watch and not as_json:
            click.clear()
        click.echo(_shown(found, alone=bool(runs) and len(found) == 1, as_json=as_json))
        if not watch or all(standing.outcome.word not in {"WAITING", "RUNNING"} for standing in found):
            return
        time.sleep(WATCH_S)


def _found(words: tuple[str, ...]) -> list[Standing]:
    from dynamo_mlperf.slurm.runs import find_run, list_runs
    from dynamo_mlperf.slurm.standing import standings

    place = Path.cwd() / "runs"
    found, problem = standings([find_run(word, place) for word in words] if words else list_runs(place))
    if problem:
        click.echo(f"warning: Slurm was not asked: {problem}", err=True)
    return found


def _shown(found: list[Standing], *, alone: bool, as_json: bool) -> str:
    from dynamo_mlperf.cli.output import json_text
    from dynamo_mlperf.cli.standing import details, table

    if as_json:
        return json_text([standing.as_json() for standing in found])
    if not found:
        return "no runs below runs/: start one with `dynamo-mlperf run FILE` or `dynamo-mlperf submit FILE`"
    return details(found[0]) if alone else table(found)

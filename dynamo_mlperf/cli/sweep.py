"""`sweep`: several splits of one allocation, each at its highest rate; the best is confirmed and is the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.call import Call, check_redo

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command(name="sweep")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--splits", help="Splits, with commas between: 6P4D,5P6D,4P8D; with another TP: 4P4x4D2.")
@click.option("--all", "every", is_flag=True, help="All splits that use the whole allocation.")
@click.option("--rates", help="Full-length runs at these target_qps alone, with commas between, instead of searches.")
@click.option("--resume", metavar="RUN", help="Go on with the sweep of an interrupted run.")
@click.option("--redo", is_flag=True, help="With --resume: splits that were found with other settings are redone.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where to record the run. [default: runs/ID]")
@click.option("--site", help="Site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
@click.option("--nodes", type=int, help="Another node count than the file's.")
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="One Slurm job per split, N at once, instead of one allocation for all; RUN of --resume is then its folder.",
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Whether to wait for jobs of --parallel.")
@click.option("--attach", metavar="JOBID", help="Sweep in this live Slurm job of yours instead; it stays alive.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict, or with --parallel the summary, as JSON.")
def command(
    file: Path,
    *,
    splits: str | None,
    every: bool,
    rates: str | None,
    resume: str | None,
    redo: bool,
    run_dir: Path | None,
    site: str | None,
    nodes: int | None,
    parallel: int | None,
    wait: bool,
    attach: str | None,
    as_json: bool,
) -> int:
    """Serve one split of FILE after another on this machine, search each, and name the best.

    FILE's own `sweep:` holds where no option says otherwise; on a cluster, `sbatch FILE` does the same. Ends with 0
    when a split holds some rate: its confirming run is the result; 5 when none does.
    """
    check_redo(resume, redo=redo)
    blocks = {"sweep": _block(splits, rates, every=every)}
    if parallel is not None:
        from dynamo_mlperf.cli.sweep_parallel import Parallel, check_choice, folder_of, sweep_in_parallel

        check_choice(run_dir=run_dir, nodes=nodes, attach=attach)
        root = run_dir if resume is None else folder_of(resume)
        return sweep_in_parallel(Parallel(file, site, blocks, parallel, root, wait=wait, as_json=as_json, redo=redo))
    from dynamo_mlperf.cli.run import run_here

    call = Call(
        file=file, site=site, run_dir=run_dir, nodes=nodes, resume=resume, redo=redo, blocks=blocks, as_json=as_json
    )
    return run_here(call, attach)


def _block(splits: str | None, rates: str | None, *, every: bool) -> Mapping[str, object]:
    """The keys of `sweep:` that the command line gives.

    Raises:
        ConfigError: They exclude each other, or a rate is no number.
    """
    from dynamo_mlperf.errors import ConfigError

    block: dict[str, object] = {}
    if every and splits is not None:
        raise ConfigError("--all and --splits are both given", "leave one out")
    if every:
        block["splits"] = "all"
    if splits is not None:
        block["splits"] = [word.strip() for word in splits.split(",") if word.strip()]
    if rates is not None:
        block["rates"] = [_number(word) for word in rates.split(",") if word.strip()]
    return block


def _number(word: str) -> float:
    from dynamo_mlperf.errors import ConfigError

    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"--rates: {word.strip()[:40]!r} is no number", "give rates as 10,20,30") from None

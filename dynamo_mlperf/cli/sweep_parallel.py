"""`sweep --parallel N`: one Slurm job per split, sent as job arrays, and one summary of them all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.cli.launch import prepare
from dynamo_mlperf.errors import ConfigError, ExitCode, SetupError
from dynamo_mlperf.job.context import class_of
from dynamo_mlperf.job.parallel_sweep import ParallelSweep, SentPoint
from dynamo_mlperf.job.sweep_records import POINTS_DIR
from dynamo_mlperf.report.sweep import sweep_lines, sweep_table, view_of
from dynamo_mlperf.report.terminal import near
from dynamo_mlperf.slurm.arrays import largest_array, send_arrays, still_there
from dynamo_mlperf.slurm.submission import make_submission, segment_of
from dynamo_mlperf.topology.batch import batch_directives
from dynamo_mlperf.topology.sweeping import splits_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.spec import Topology

POLL_S = 2.0
_OURS = {"parsable", "job-name", "array", "output", "error", "open-mode", "signal"}
"""Options that are submitit's, or that mean one job alone."""


@dataclass(frozen=True)
class Parallel:
    """One call.

    Attributes:
        file: The topology file.
        site: As given on the command line.
        blocks: Keys of the file that the command line overlays.
        at_once: How many jobs may run at once.
        root: The sweep's folder, where one goes on or is named.
        wait: Whether to wait for the jobs' end.
        as_json: Whether the answer is one JSON object.
        redo: Whether splits that were found with other settings are measured again.
    """

    file: Path
    site: str | None
    blocks: Mapping[str, Mapping[str, object]]
    at_once: int
    root: Path | None
    wait: bool
    as_json: bool
    redo: bool = False


def sweep_in_parallel(call: Parallel) -> int:
    """Send what is not measured yet, wait, and say who has won: 0 with a winner, 5 without, 3 where Slurm refuses."""
    topology, _plan, site = prepare(call.file, call.site, Path.cwd(), from_afar=True, blocks=call.blocks)
    root = (call.root or Path("runs") / f"{topology.name}-parallel-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    sweep = ParallelSweep(root, call.file, topology, splits_of(topology), redo=call.redo)
    facts = {
        "name": topology.name,
        "benchmark": topology.measure.benchmark,
        "scenario": topology.measure.scenario,
        "class": class_of(topology),
    }
    with sweep.alone():
        busy = still_there(point.job_id for point in sweep.sent)
        refused = _send(call, sweep, topology, site, busy)
    busy = still_there(point.job_id for point in sweep.sent)
    if refused is not None:
        sweep.write_summary(facts, busy)
        raise _refusal(refused, sweep, call)
    told = -1
    while call.wait and busy:
        if len(busy) != told:
            told = len(busy)
            click.echo(f"{told} of {len(sweep.sent)} jobs wait or run", err=True)
        time.sleep(POLL_S)
        busy = still_there(point.job_id for point in sweep.sent)
    return _conclude(call, root, sweep.write_summary(facts, busy))


def _send(call: Parallel, sweep: ParallelSweep, topology: Topology, site: Site, busy: Collection[str]) -> str | None:
    """Send a job for each split that has none; returns what Slurm said where it refused one."""
    splits = sweep.open_splits(busy)
    if not splits:
        return None
    made = [sweep.argv_of(split) for split in splits]
    site_words = ["--site", call.site] if call.site else []
    argvs = [[*argv, *site_words] for argv, _name in made]
    most = largest_array()
    options = sbatch_options(call.file, topology, site)
    done = send_arrays(argvs, options, sweep.logs, at_once=call.at_once, most=most)
    pairs = zip(splits, made, done.job_ids, strict=False)
    sweep.note([SentPoint(split.name, job_id, name) for split, (_argv, name), job_id in pairs])
    click.echo(f"{len(done.job_ids)} jobs sent, {most} in an array at most: {near(str(sweep.root))}", err=True)
    return done.refused


def sbatch_options(file: Path, topology: Topology, site: Site) -> dict[str, Any]:
    """The options of sbatch that `submit` would give the file, by long name; True for one without a value."""
    segment = segment_of(topology.nodes.count, topology.nodes.nvlink_domain)
    submission = make_submission(file, topology.name, site, gpus=topology.nodes.gpus, segment=segment)
    found: dict[str, Any] = {"job-name": topology.name}
    for directive in batch_directives(submission.script):
        if directive.option not in _OURS:
            found[directive.option] = True if directive.value is None else directive.value
    for option in submission.options:
        if option.name not in _OURS:
            _name, equals, value = option.text.partition("=")
            found[option.name] = value if equals else True
    return found


def _refusal(said: str, sweep: ParallelSweep, call: Parallel) -> SetupError:
    """What was sent, and how to end it or go on."""
    ids = [point.job_id for point in sweep.sent]
    told = f"{len(ids)} jobs were sent: {', '.join(ids)}" if ids else "no job was sent"
    again = f"dynamo-mlperf sweep {call.file} --parallel {call.at_once} --resume {near(str(sweep.root))}"
    end = f"end them: scancel {' '.join(dict.fromkeys(one.partition('_')[0] for one in ids))}; or " if ids else ""
    last = said.strip().splitlines()[-1] if said.strip() else "no word"
    return SetupError(f"Slurm refused a part of the sweep: {last}; {told}", f"{end}go on later: {again}")


def _conclude(call: Parallel, root: Path, summary: Mapping[str, Any]) -> int:
    from rich.console import Console

    from dynamo_mlperf.cli.output import json_text

    if call.as_json:
        click.echo(json_text({**summary, "directory": str(root)}))
    else:
        view = view_of(summary)
        console = Console()
        console.print(sweep_table(view))
        for line in sweep_lines(view):
            click.echo(line)
        click.echo(_line(summary, root))
    if summary["winner"] is not None:
        return int(ExitCode.DONE)
    return int(ExitCode.INVALID if call.wait else ExitCode.DONE)


def _line(summary: Mapping[str, Any], root: Path) -> str:
    """The last line on stdout."""
    winner = next((one for one in summary["splits"] if one["split"] == summary["winner"]), None)
    if winner is None:
        return f"no winner yet [{summary['state']}]  {near(str(root))}"
    word = f"winner {winner['split']}: {winner['rate_qps']:.5g} queries/s [{summary['class']}, {summary['state']}]"
    return f"{word}  {near(winner['run_dir'])}"


def folder_of(resume: str) -> Path:
    """The folder of a parallel sweep that is to go on; nothing is begun, or written over, in another place.

    Raises:
        ConfigError: It is none.
    """
    root = Path(resume)
    if not (root / POINTS_DIR).is_dir():
        why = "is the run directory of one job" if (root / "events.jsonl").exists() else f"has no {POINTS_DIR}/"
        raise ConfigError(
            f"{root} is no folder of a parallel sweep: it {why}",
            "name the folder that --parallel made; without --parallel, --resume takes the run directory of one job",
        )
    return root


def check_choice(*, run_dir: Path | None, nodes: int | None, attach: str | None = None) -> None:
    """Refuse what a parallel sweep has no use for.

    Raises:
        ConfigError: Names it.
    """
    if attach is not None:
        raise ConfigError("--parallel sends jobs of its own, --attach uses one that is there", "leave one out")
    if nodes is not None:
        raise ConfigError("--parallel takes the file's own node count", "write another nodes.count instead of --nodes")
    if run_dir is not None and run_dir.exists():
        raise ConfigError(f"{run_dir} exists", f"go on with it by --resume {run_dir}, or name another --run-dir")

"""What `run` and `job` share: read, plan, run, and say how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console

from dynamo_mlperf.cli.output import flush_stdout, quiet_stdout
from dynamo_mlperf.cli.progress import TerminalProgress
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.controller import JobRequest, run_job
from dynamo_mlperf.job.weights import read_manifest
from dynamo_mlperf.job.workload import check_workload
from dynamo_mlperf.report.summary import print_summary
from dynamo_mlperf.report.terminal import near
from dynamo_mlperf.serving.workers import check_launchable
from dynamo_mlperf.site import load_site, refuse_unfilled
from dynamo_mlperf.topology.capacity import scaled
from dynamo_mlperf.topology.memory import memory_of
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import load_topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology


@dataclass(frozen=True)
class Launch:
    """One call of `run` or `job`."""

    file: Path
    site: str | None
    base_dir: Path
    run_dir: Path | None
    as_json: bool
    run_id: Callable[[str], str]
    allocation: Callable[[Plan, Site], Allocation]
    nodes: int | None = None


def prepare(
    file: Path, site: str | None, base_dir: Path, nodes: int | None = None, *, from_afar: bool = False
) -> tuple[Topology, Plan, Site]:
    """Read the file and plan it; all that can be refused before a job is refused here.

    With `nodes`, workers scale in proportion to that node count, and the topology that comes back says so. With
    `from_afar` the job runs elsewhere: a data set or manifest that is not there is left to it, and said on stderr.

    Raises:
        ConfigError: The file, the site, the data set or the manifest cannot be used, or does not fit.
        SetupError: The LoadGen wheel is of another round.
    """
    topology = load_topology(file)
    topology = topology if nodes is None else scaled(topology, nodes)
    plan = make_plan(topology)
    check_launchable(topology, plan)
    memory_of(topology, base_dir)  # refuses what cannot load
    place = load_site(site or topology.site, base=base_dir)
    if (unknown := check_workload(topology, base_dir, from_afar=from_afar)) is not None:
        click.echo(f"{'note' if from_afar else 'warning'}: not checked: {unknown}", err=True)
    if not from_afar:
        refuse_unfilled(site or topology.site, base_dir)
        read_manifest(topology, base_dir)
    return topology, plan, place


def launch(call: Launch) -> int:
    """Run a topology file; everything that can be refused is refused before anything starts."""
    topology, plan, site = prepare(call.file, call.site, call.base_dir, call.nodes)
    run_id = call.run_id(topology.name)
    run_dir = (call.run_dir or call.base_dir / "runs" / run_id).resolve()
    if run_dir.exists():
        raise ConfigError(f"{run_dir} exists: results of two runs would mix", "name another --run-dir, or leave it out")
    progress = TerminalProgress()
    request = JobRequest(
        call.file, topology, plan, site, call.base_dir, run_dir, run_id, call.allocation(plan, site), progress
    )
    try:
        verdict, code = run_job(request)
    finally:
        progress.close()
    try:
        _say(verdict, run_dir, as_json=call.as_json)
        flush_stdout()
    except BrokenPipeError:  # the reader has seen enough; the exit code still tells how the run ended
        quiet_stdout()
    return int(code)


def _say(verdict: Verdict, run_dir: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(verdict.as_json()))
    else:
        _summarise(run_dir)
        click.echo(verdict_line(verdict))
    if verdict.verdict == "FAILED":
        for reason in verdict.reasons:
            click.echo(f"error: {reason.got}\n  Try: {reason.action}", err=True)


def _summarise(run_dir: Path) -> None:
    """The summary; a run directory that cannot even be read does not keep the verdict from being said."""
    try:
        print_summary(run_dir, Console())
    except (ConfigError, OSError) as problem:
        click.echo(f"no summary: {problem}", err=True)


def verdict_line(verdict: Verdict) -> str:
    """The last line on stdout: the verdict and its main figure."""
    unit = "samples/s" if verdict.scenario == "Offline" else "queries/s"
    figure = f" {verdict.completed_qps:.2f} {unit}" if verdict.completed_qps is not None else ""
    why = f" ({verdict.reasons[0].check})" if verdict.reasons else ""
    model = f", model {verdict.model}" if verdict.model not in ("", verdict.benchmark) else ""
    what = f"{verdict.benchmark} {verdict.scenario}{figure}{model}"
    return f"{verdict.verdict}{why} [{verdict.result_class}] {what}  {near(verdict.run_dir)}"

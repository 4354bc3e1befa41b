"""What `run` and `job` share: read, plan, run, and say how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from dynamo_mlperf.cli.output import flush_stdout, json_text, quiet_stdout
from dynamo_mlperf.cli.progress import TerminalProgress
from dynamo_mlperf.cli.run_directory import run_directory
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded, read_text
from dynamo_mlperf.job.controller import JobRequest, run_job
from dynamo_mlperf.job.endpoints_data import check_client
from dynamo_mlperf.job.expected import check_enough
from dynamo_mlperf.job.known_flags import AT_ONCE, check_from_here
from dynamo_mlperf.job.predictions import predicted_qps
from dynamo_mlperf.job.resuming import SEARCH_DIR, begun_run, check_resume, refuse_living
from dynamo_mlperf.job.sweep_start import sweep_start
from dynamo_mlperf.job.weights import read_manifest
from dynamo_mlperf.job.workload import check_workload
from dynamo_mlperf.record import new_run_directory
from dynamo_mlperf.report.resuming import action_of
from dynamo_mlperf.report.summary import print_summary
from dynamo_mlperf.report.sweep import SWEEP_SUMMARY, read_sweep, winner_line
from dynamo_mlperf.report.terminal import near
from dynamo_mlperf.report.words import in_words
from dynamo_mlperf.serving.workers import check_launchable
from dynamo_mlperf.site import load_site, refuse_few_ports, refuse_unfilled, unfilled_lines
from dynamo_mlperf.topology.batch import unfilled
from dynamo_mlperf.topology.capacity import scaled
from dynamo_mlperf.topology.heads import check_heads
from dynamo_mlperf.topology.memory import memory_of
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import load_topology
from dynamo_mlperf.tuning.records import ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from dynamo_mlperf.cli.call import Call
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology


@dataclass(frozen=True)
class Launch:
    """A call, and the place where this process makes its run.

    Attributes:
        call: The call.
        base_dir: What relative paths of the file resolve against.
        run_id: The run's name, by the topology's.
        allocation: The nodes of a plan.
        fits: Refuses what the place cannot hold, before anything else of it is looked at.
    """

    call: Call
    base_dir: Path
    run_id: Callable[[str], str]
    allocation: Callable[[Plan, Site], Allocation]
    fits: Callable[[Topology, Plan], None] | None = None


def prepare(
    file: Path,
    site: str | None,
    base_dir: Path,
    nodes: int | None = None,
    *,
    from_afar: bool = False,
    blocks: Mapping[str, Mapping[str, object]] | None = None,
    fits: Callable[[Topology, Plan], None] | None = None,
) -> tuple[Topology, Plan, Site]:
    """Read the file and plan it; all that can be refused before a job is refused here, and lines left open are told.

    With `nodes`, workers scale in proportion to that node count, and the topology that comes back says so. With
    `from_afar` the job runs elsewhere: a data set or manifest that is not there is left to it, and said on stderr.

    Raises:
        ConfigError: The file, the site, the data set or the manifest cannot be used, or does not fit.
        SetupError: The LoadGen wheel is of another round.
    """
    topology = load_topology(file, blocks)
    topology = topology if nodes is None else scaled(topology, nodes)
    check_heads(topology, base_dir)
    plan = make_plan(topology) if topology.sweep is None else sweep_start(topology, base_dir)[1]
    check_launchable(topology, plan)
    if fits is not None:
        fits(topology, plan)
    memory_of(topology, base_dir)  # refuses what cannot load
    place = load_site(site or topology.site, base=base_dir)
    refuse_few_ports(place, plan.ports_needed)
    unknown = (
        check_workload(topology, base_dir, from_afar=from_afar),
        check_client(topology, place, from_afar=from_afar),
    )
    still = (*unfilled(read_text(file)), *unfilled_lines(site or topology.site, base_dir))
    for warning in filter(None, (*still, check_enough(topology, base_dir))):
        click.echo(f"warning: {warning}", err=True)
    for what in filter(None, unknown):
        click.echo(f"{'note' if from_afar else 'warning'}: not checked: {what}", err=True)
    if not from_afar:
        refuse_unfilled(site or topology.site, base_dir)
        predicted_qps(topology, base_dir)  # refuses a prediction that cannot be read
        read_manifest(topology, base_dir)
    return topology, plan, place


def resumable(run: str, topology: Topology, base_dir: Path, *, redo: bool = False) -> Path:
    """The run directory whose search or sweep goes on.

    Args:
        run: Its path, its name, or its job's id.
        topology: The file that goes on with it.
        base_dir: What the file's paths are relative to.
        redo: Whether what was found by other settings is looked for again.

    Raises:
        ConfigError: There is no such run, it still runs, or its records are of something else.
    """
    named = run_directory(run).resolve()
    place = begun_run(named, topology)
    for one in dict.fromkeys((named, place)):
        refuse_living(one)
    check_resume(topology, base_dir, place, redo=redo)
    return place


def launch(here: Launch) -> int:
    """Run a topology file; everything that can be refused is refused before anything starts."""
    call, base_dir = here.call, here.base_dir
    origin, plan, site = prepare(call.file, call.site, base_dir, call.nodes, blocks=call.blocks, fits=here.fits)
    resume = None if call.resume is None else resumable(call.resume, origin, base_dir, redo=call.redo)
    topology, plan = (origin, plan) if origin.sweep is None else sweep_start(origin, base_dir, resume)
    _refuse_flags(topology, site)
    run_id = here.run_id(topology.name)
    run_dir = new_run_directory(call.run_dir or base_dir / "runs" / run_id)
    progress = TerminalProgress()
    answered: list[Verdict] = []

    def told(verdict: Verdict) -> None:
        answered.append(verdict)
        progress.close()
        answer(verdict, run_dir, as_json=call.as_json)

    request = JobRequest(
        call.file,
        topology,
        plan,
        site,
        base_dir,
        run_dir,
        run_id,
        here.allocation(plan, site),
        progress,
        resume,
        origin,
        {**({} if call.nodes is None else {"nodes": call.nodes}), **(call.blocks or {})},
        told,
    )
    try:
        verdict, code = run_job(request)
    finally:
        progress.close()
    if not answered:
        answer(verdict, run_dir, as_json=call.as_json)
    return int(code)


def _refuse_flags(topology: Topology, site: Site) -> None:
    """Refuse flags that the engine does not know while there is no run directory yet.

    What is not known at once is left to the job, which asks an engine while its workers load weights.

    Raises:
        ConfigError: Names them.
    """
    ask = (lambda line: click.echo(line, err=True)) if topology.engine in AT_ONCE else None
    check_from_here(topology, site, ask=ask, every=False)


def answer(verdict: Verdict, run_dir: Path, *, as_json: bool) -> None:
    """The result on stdout: the summary and the verdict's line, or one JSON object; what failed is told on stderr."""
    try:
        _say(verdict, run_dir, as_json=as_json)
        flush_stdout()
    except BrokenPipeError:  # the reader has seen enough; the exit code still tells how the run ended
        quiet_stdout()


def _say(verdict: Verdict, run_dir: Path, *, as_json: bool) -> None:
    found = _search_answer(run_dir)
    if as_json:
        click.echo(json_text({**verdict.as_json(), **({"search": found} if found else {}), **_sweep_summary(run_dir)}))
    else:
        _summarise(run_dir)
        if found and found["answer_qps"] is not None:
            click.echo(answer_line(found))
        if best := _best_split(run_dir):
            click.echo(best)
        click.echo(verdict_line(verdict))
    if verdict.verdict == "FAILED":
        for reason in verdict.reasons:
            click.echo(f"error: {reason.got}\n  Try: {action_of(reason, run_dir)}", err=True)


def _search_answer(run_dir: Path) -> dict[str, Any] | None:
    """What a rate search of the run found; None where there was none, or it did not end."""
    try:
        value: dict[str, Any] = json.loads(read_bounded(run_dir / SEARCH_DIR / ANSWER))
    except (OSError, ValueError):
        return None
    return value


def answer_line(found: Mapping[str, Any]) -> str:
    """The answer of a rate search for people."""
    within = found.get("located_within")
    where = "" if within is None else f", the highest at most {100 * within:.1f} % above"
    where = where if found["located"] else ", the best certified so far: the highest rate is not located yet"
    above = f"; above it {in_words(found['binding_constraint'])} fails first" if found["binding_constraint"] else ""
    cost = found["engine_seconds"] / found["full_run_s"]
    return (
        f"highest rate that holds: {found['answer_qps']:.5g} queries/s{where}{above}; "
        f"{len(found['probes'])} probes, {cost:.2f} full runs of engine time"
    )


def _best_split(run_dir: Path) -> str | None:
    """What a sweep found; None where the run is none, or no split holds any rate yet."""
    view = read_sweep(run_dir)
    return None if view is None else winner_line(view)


def _sweep_summary(run_dir: Path) -> dict[str, Any]:
    """`sweep/summary.json` under the key `sweep`; empty where the run is no sweep, or did not get that far."""
    try:
        return {"sweep": json.loads(read_bounded(run_dir / SWEEP_SUMMARY))}
    except (OSError, ValueError):
        return {}


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
    why = f" ({in_words(verdict.reasons[0].check)})" if verdict.reasons else ""
    model = f", model {verdict.model}" if verdict.model not in ("", verdict.benchmark) else ""
    what = f"{verdict.benchmark} {verdict.scenario}{figure}{model}"
    return f"{verdict.verdict}{why} [{verdict.result_class}] {what}  {near(verdict.run_dir)}"

"""`plan`: what a topology file will run, before any job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.numa import Share
    from dynamo_mlperf.topology.picture import PlanFacts
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology

_INDENTED_WORKERS = 2000
"""JSON of more workers than this comes on one line: Python indents slowly."""


@click.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, help="Plan for another node count; workers scale in proportion.")
@click.option("--site", help="Site file: a name or a path; default: the file's site, then $DYNAMO_MLPERF_SITE.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--fix-batch", is_flag=True, help="Rewrite the #SBATCH lines that disagree with the plan.")
@click.option("--svg", type=click.Path(path_type=Path), help="Also draw the plan into this SVG file.")
def command(
    file: Path, nodes: int | None, site: str | None, svg: Path | None, *, as_json: bool, fix_batch: bool
) -> None:
    """Show which worker stands on which GPUs, and what does not fit.

    Nothing is started. Exit code 2 when FILE has problems or asks for more than its nodes hold.
    """
    import json
    from dataclasses import replace

    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.site import load_site, unfilled
    from dynamo_mlperf.topology.memory import memory_of
    from dynamo_mlperf.topology.picture import PlanFacts
    from dynamo_mlperf.topology.plan import make_plan, plan_as_json
    from dynamo_mlperf.topology.spec import load_topology

    if fix_batch and nodes is not None:
        raise ConfigError(
            "--fix-batch with --nodes would contradict the file's nodes.count", "change nodes.count, then --fix-batch"
        )
    topology = load_topology(file)
    plan = make_plan(topology, nodes)
    memory = memory_of(topology, Path.cwd())
    place = load_site(site or topology.site)
    segment = _segment(plan, topology) if place.segment else None
    if fix_batch:
        _fix(file, topology, plan, segment)
    example = unfilled(site or topology.site)
    warnings = (
        *_warnings(file, topology, plan, place, segment),
        *([f"{example}; submit refuses it"] if example else []),
    )
    plan = replace(plan, warnings=plan.warnings + warnings)
    notes, shares = _notes(topology, plan, place), _shares(plan, place)
    if svg is not None:
        _draw(svg, topology, plan)
    if as_json:
        value = plan_as_json(plan) | {
            "memory": [role.as_json() for role in memory],
            "cores": [
                {"worker": name, "node": node, "cores": share.core_list, "memory_gib": share.memory_gib}
                for (name, node), share in shares.items()
            ],
            "notes": notes,
        }
        click.echo(json.dumps(value, indent=2 if len(plan.workers) <= _INDENTED_WORKERS else None))
        return
    _show(topology, plan, PlanFacts(memory, notes, shares))


def _show(topology: Topology, plan: Plan, facts: PlanFacts) -> None:
    from rich.console import Console

    from dynamo_mlperf.cli.plan_picture import show_plan
    from dynamo_mlperf.report.terminal import trimmed

    console = Console(highlight=False)
    with trimmed(console):
        show_plan(console, topology, plan, facts)


def _draw(svg: Path, topology: Topology, plan: Plan) -> None:
    from dynamo_mlperf.cli.output import write_output
    from dynamo_mlperf.cli.plan_picture import summary_of, title_of
    from dynamo_mlperf.topology.picture import as_svg

    text = as_svg(plan, f"{plan.name}: {title_of(topology, plan)}", summary_of(topology, plan))
    write_output("--svg", svg, text, "plan.svg")
    click.echo(f"{svg}: written", err=True)


def _shares(plan: Plan, site: Site) -> Mapping[tuple[str, int], Share]:
    from dynamo_mlperf.site import core_numbers
    from dynamo_mlperf.topology.numa import NumaArea, shares_of

    return shares_of(
        plan, [NumaArea(tuple(core_numbers(area.cores)), tuple(area.gpus), area.memory_gib) for area in site.numa]
    )


def _segment(plan: Plan, topology: Topology) -> int | None:
    """Nodes of one NVLink domain that the job needs at a time; None where it needs none, or Slurm cannot be asked."""
    from dynamo_mlperf.slurm.submission import segment_of

    return segment_of(len(plan.nodes), topology.nodes.nvlink_domain)


def _notes(topology: Topology, plan: Plan, site: Site) -> list[str]:
    """What is not asked of Slurm though the plan counts on it."""
    domain, nodes = topology.nodes.nvlink_domain or 1, len(plan.nodes)
    if domain == 1 or nodes == 1:
        return []
    wanted = f"the plan counts on NVLink domains of {domain} nodes"
    if _segment(plan, topology) is None:
        return [f"{wanted}, but Slurm cannot be asked for them: --segment has to divide the {nodes} nodes of the job"]
    if not site.segment:
        lacks = f"site {site.name} has no `segment: true`"
        what = f"{wanted}, and domain placement is not asked for: {lacks}; Slurm may spread the job over domains"
        return [f"{what}; {_way_to_segments(site)}"]
    return []


def _way_to_segments(site: Site) -> str:
    from dynamo_mlperf.site import BUILT_IN

    if site.name == BUILT_IN:
        return "name your cluster's site with --site NAME"
    return "ask your cluster's people whether its Slurm has topology/block, then write `segment: true` in the site file"


def _fix(file: Path, topology: Topology, plan: Plan, segment: int | None) -> None:
    from dynamo_mlperf.files import write_atomic
    from dynamo_mlperf.topology.batch import batch_differences, fix_batch_lines

    before = file.read_text()
    changes = batch_differences(before, topology, plan, shipped=_is_shipped(file), segment=segment)
    after = fix_batch_lines(before, topology, plan, shipped=_is_shipped(file), segment=segment)
    if after == before:
        click.echo(f"{file}: the #SBATCH lines agree with the plan", err=True)
        return
    real, mode = file.resolve(), file.stat().st_mode
    write_atomic(real, after)
    real.chmod(mode)
    for difference in changes:
        click.echo(f"{file}: {difference.change}", err=True)


def _is_shipped(file: Path) -> bool:
    """Whether the file is one of this project's own, which others copy."""
    package = Path(__file__).resolve().parent.parent
    return file.resolve().parent in {package.parent / "topologies", package / "shipped" / "topologies"}


def _warnings(file: Path, topology: Topology, plan: Plan, site: Site, segment: int | None) -> tuple[str, ...]:
    from dynamo_mlperf.topology.batch import batch_differences, ignored_batch_lines

    text = file.read_text()
    differences = batch_differences(text, topology, plan, shipped=_is_shipped(file), segment=segment)
    agrees = len(plan.nodes) == topology.nodes.count
    way_out = (
        f"`dynamo-mlperf plan --fix-batch {file}` corrects it"
        if agrees
        else f"submit with sbatch --nodes={len(plan.nodes)} {file} --nodes {len(plan.nodes)}"
    )
    found = [f"{difference.text}; {way_out}" for difference in differences]
    found += [f"line {number}: Slurm ignores #SBATCH after the first YAML line" for number in ignored_batch_lines(text)]
    if plan.ports_needed > len(site.ports):
        found.append(f"{plan.ports_needed} ports needed, site {site.name} has {len(site.ports)}; widen its port_range")
    return (*found, *_refusals(topology, plan), *_place_warnings(topology, site))


def _refusals(topology: Topology, plan: Plan) -> tuple[str, ...]:
    """Why `run` would refuse what can be planned, each with what to do."""
    from dynamo_mlperf.errors import ConfigError, SetupError
    from dynamo_mlperf.serving.workers import check_launchable

    def launch() -> None:
        check_launchable(topology, plan)

    def measure() -> None:
        directory = topology.resolve(Path.cwd()).dataset
        if directory is None or directory.exists():
            from dynamo_mlperf.job.workload import check_workload

            check_workload(topology, Path.cwd())

    found = []
    for look in (launch, measure):
        try:
            look()
        except (ConfigError, SetupError) as problem:
            found.append(f"run refuses this: {problem.what}; {problem.action}")
    return tuple(found)


def _place_warnings(topology: Topology, site: Site) -> tuple[str, ...]:
    """What can be said from here about paths; whether the nodes see them is checked inside the job."""
    paths = topology.resolve(Path.cwd())
    named = (("model.weights", paths.manifest or paths.weights), ("measure.dataset", paths.dataset))
    found = [f"{key}: {path} is not there (seen from here)" for key, path in named if path and not path.exists()]
    package = Path(__file__).resolve().parent.parent
    if site.shared_path and not package.is_relative_to(Path(site.shared_path).resolve()):
        found.append(f"dynamo-mlperf runs from {package}, outside the site's shared_path; nodes may not see it")
    return tuple(found)

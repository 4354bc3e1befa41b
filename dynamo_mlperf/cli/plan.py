"""`plan`: what a topology file will run, before any job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.plan import Plan, Worker
    from dynamo_mlperf.topology.spec import Topology

_COLOURS = {"prefill": "cyan", "decode": "magenta", "aggregated": "green"}
_IDLE, _HEAD = "·", "-"


@click.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, help="Plan for another node count; workers scale in proportion.")
@click.option("--site", help="Site file: a name or a path; default: the file's site, then $DYNAMO_MLPERF_SITE.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--fix-batch", is_flag=True, help="Rewrite the #SBATCH lines that disagree with the plan.")
def command(file: Path, nodes: int | None, site: str | None, *, as_json: bool, fix_batch: bool) -> None:
    """Show which worker stands on which GPUs, and what does not fit.

    Nothing is started. Exit code 2 when FILE has problems or asks for more than its nodes hold.
    """
    import json
    from dataclasses import replace

    from rich.console import Console

    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.report.terminal import trimmed
    from dynamo_mlperf.site import load_site
    from dynamo_mlperf.topology.plan import make_plan, plan_as_json
    from dynamo_mlperf.topology.spec import load_topology

    if fix_batch and nodes is not None:
        raise ConfigError(
            "--fix-batch with --nodes would contradict the file's nodes.count", "change nodes.count, then --fix-batch"
        )
    topology = load_topology(file)
    plan = make_plan(topology, nodes)
    place = load_site(site or topology.site)
    if fix_batch:
        _fix(file, topology, plan)
    plan = replace(plan, warnings=plan.warnings + _warnings(file, topology, plan, place))
    if as_json:
        click.echo(json.dumps(plan_as_json(plan), indent=2))
        return
    console = Console(highlight=False)
    with trimmed(console):
        show_plan(console, topology, plan)


def _fix(file: Path, topology: Topology, plan: Plan) -> None:
    from dynamo_mlperf.files import write_atomic
    from dynamo_mlperf.topology.batch import fix_batch_lines

    before = file.read_text()
    after = fix_batch_lines(before, topology, plan, shipped=_is_shipped(file))
    if after == before:
        click.echo(f"{file}: the #SBATCH lines agree with the plan", err=True)
        return
    real, mode = file.resolve(), file.stat().st_mode
    write_atomic(real, after)
    real.chmod(mode)
    click.echo(f"{file}: #SBATCH lines rewritten", err=True)


def _is_shipped(file: Path) -> bool:
    """Whether the file is one of this project's own, which others copy."""
    package = Path(__file__).resolve().parent.parent
    return file.resolve().parent in {package.parent / "topologies", package / "shipped" / "topologies"}


def _warnings(file: Path, topology: Topology, plan: Plan, site: Site) -> tuple[str, ...]:
    from dynamo_mlperf.topology.batch import batch_differences, ignored_batch_lines

    text = file.read_text()
    differences = batch_differences(text, topology, plan, shipped=_is_shipped(file))
    agrees = len(plan.nodes) == topology.nodes.count
    way_out = (
        f"`dynamo-mlperf plan --fix-batch {file}` corrects it"
        if agrees
        else f"submit with sbatch --nodes={len(plan.nodes)}"
    )
    found = [f"{difference.text}; {way_out}" for difference in differences]
    found += [f"line {number}: Slurm ignores #SBATCH after the first YAML line" for number in ignored_batch_lines(text)]
    if plan.ports_needed > len(site.ports):
        found.append(f"{plan.ports_needed} ports needed, site {site.name} has {len(site.ports)}; widen its port_range")
    return (*found, *_refusals(topology, plan), *_place_warnings(topology, site))


def _refusals(topology: Topology, plan: Plan) -> tuple[str, ...]:
    """Why `run` would refuse what can be planned, each with what to do."""
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.job.measurement import decide_settings, read_data_set
    from dynamo_mlperf.serving.workers import check_launchable

    def launch() -> None:
        check_launchable(topology, plan)

    def measure() -> None:
        directory = topology.resolve(Path.cwd()).dataset
        if directory is None or directory.exists():
            decide_settings(topology, len(read_data_set(topology, Path.cwd())))

    found = []
    for look in (launch, measure):
        try:
            look()
        except ConfigError as problem:
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


def show_plan(console: Console, topology: Topology, plan: Plan) -> None:
    """Print the plan for people: workers, the grid of nodes and GPUs, the split, idle GPUs, warnings."""
    console.print(
        f"[bold]{plan.name}[/bold]: {plan.split.workers} on {len(plan.nodes)} x {plan.nodes[0].gpus} {_unit(topology)}"
    )
    console.print(_table(plan))
    console.print(_grid(topology, plan))
    for line in _summary(topology, plan):
        console.print(line, soft_wrap=True, markup=False)
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/yellow] {_escaped(warning)}", soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _unit(topology: Topology) -> str:
    return "GPUs" if topology.device == "cuda" else "GPU slots"


def _table(plan: Plan) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("node", "worker", "role", "GPUs", "ports"):
        table.add_column(title)
    for worker in sorted(plan.workers, key=lambda worker: worker.ranks):
        table.add_row(
            _numbers(worker.nodes),
            worker.name,
            worker.role,
            _gpus(worker),
            f"+{worker.port_offset} to +{worker.port_offset + worker.ports - 1}",
            style=_COLOURS[worker.role],
        )
    return table


def _gpus(worker: Worker) -> str:
    if len(worker.nodes) > 1:
        return f"all ({len(worker.ranks)})"
    return _numbers([slot.gpu for slot in worker.ranks])


def _numbers(values: list[int] | tuple[int, ...]) -> str:
    """`0`, `0-3`: both ascending and without gaps."""
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def _grid(topology: Topology, plan: Plan) -> Text:
    """One row per node, one cell per GPU: the letter of its role and the number of its worker."""
    from rich.text import Text

    from dynamo_mlperf.topology.spec import ROLE_LETTERS

    owner = {slot: worker for worker in plan.workers for slot in worker.ranks}
    width = 1 + max(len(str(worker.index)) for worker in plan.workers)
    at = {(slot.node, slot.gpu): worker for slot, worker in owner.items()}
    grid = Text()
    for node in plan.nodes:
        grid.append(f"node {node.position:<4}")
        for gpu in range(node.gpus):
            worker = at.get((node.position, gpu))
            free = _HEAD if node.position < topology.nodes.count - topology.worker_nodes else _IDLE
            cell = f"{ROLE_LETTERS[worker.role]}{worker.index}" if worker else free
            grid.append(f" {cell:<{width}}", style=f"bold {_COLOURS[worker.role]}" if worker else "dim")
        grid.append("  head\n" if node.position == plan.head_node else "\n")
    return grid


def _summary(topology: Topology, plan: Plan) -> list[str]:
    split, total = plan.split, sum(node.gpus for node in plan.nodes)
    unit = _unit(topology)
    if split.aggregated_gpus is None:
        used = split.prefill_gpus + split.decode_gpus
        share = round(100 * split.prefill_gpus / used)
        by_gpus = f"{split.prefill_gpus} prefill, {split.decode_gpus} decode ({share}:{100 - share})"
    else:
        used, by_gpus = split.aggregated_gpus, f"{split.aggregated_gpus} aggregated"
    frontends = f"{len(plan.frontends)} on node {plan.head_node}, at +{plan.frontends[0].port_offset}"
    return [
        f"by GPUs     {by_gpus}, {used} of {total} {unit}",
        f"by workers  {split.workers}",
        f"idle        {_idle(plan)}",
        f"frontends   {frontends}",
        f"ports       {plan.ports_needed} from the base that the job picks",
    ]


def _idle(plan: Plan) -> str:
    """`node 0 GPU 3, node 2 GPUs 0-3`: the idle GPUs of a node are its last ones."""
    by_node: dict[int, list[int]] = {}
    for slot in plan.idle_gpus:
        by_node.setdefault(slot.node, []).append(slot.gpu)
    return ", ".join(f"node {n} GPU{'s' if len(g) > 1 else ''} {_numbers(g)}" for n, g in by_node.items()) or "none"

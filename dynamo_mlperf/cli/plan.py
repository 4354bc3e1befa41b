"""`plan`: what a topology file will run, before any job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.memory import RoleMemory
    from dynamo_mlperf.topology.numa import Share
    from dynamo_mlperf.topology.picture import PlanFacts
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology

_INDENTED_WORKERS = 2000
"""JSON of more workers than this comes on one line: Python indents slowly."""
_SPLITS_SHOWN = 12


@click.command(name="plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, help="Plan for another node count; workers scale in proportion.")
@click.option("--site", help="Site file: a name or a path; default: the file's site, then $DYNAMO_MLPERF_SITE.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--fix-batch", is_flag=True, help="Rewrite the #SBATCH lines that disagree with the plan.")
@click.option("--check-flags", is_flag=True, help="Ask the engine, if it is here, whether it has the file's flags.")
@click.option("--svg", type=click.Path(path_type=Path), help="Also draw the plan into this SVG file.")
def command(
    file: Path,
    nodes: int | None,
    site: str | None,
    svg: Path | None,
    *,
    as_json: bool,
    fix_batch: bool,
    check_flags: bool,
) -> None:
    """Show which worker stands on which GPUs, what is measured and as what class, and what does not fit.

    Nothing is started. Exit code 2 when FILE has problems, asks for more than its nodes hold, or could not be run.
    """
    import json
    from dataclasses import replace

    from dynamo_mlperf.cli.plan_measure import measure_facts
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.job.expected import check_enough
    from dynamo_mlperf.job.predictions import predicted_qps
    from dynamo_mlperf.job.time_limit import check_time_limit
    from dynamo_mlperf.site import load_site, refuse_unfilled, unfilled_lines
    from dynamo_mlperf.topology.heads import check_heads
    from dynamo_mlperf.topology.memory import memory_doubt, memory_of
    from dynamo_mlperf.topology.picture import PlanFacts
    from dynamo_mlperf.topology.plan import make_plan, plan_as_json
    from dynamo_mlperf.topology.spec import load_topology

    if fix_batch and nodes is not None:
        raise ConfigError(
            "--fix-batch with --nodes would contradict the file's nodes.count", "change nodes.count, then --fix-batch"
        )
    topology = load_topology(file)
    swept: list[str] = []
    if topology.sweep is None:
        check_heads(topology, Path.cwd())
        plan = make_plan(topology, nodes)
    else:
        topology, plan, swept = _first_of_sweep(topology, nodes)
    predicted_qps(topology, Path.cwd())  # refuses a prediction that cannot be read
    place = load_site(site or topology.site)
    refuse_unfilled(site or topology.site)
    _refuse(topology, plan, place)
    unknown = _unchecked_flags(topology, place, ask=check_flags)  # before memory, which a misspelt flag misleads
    memory = memory_of(topology, Path.cwd())
    segment = _segment(plan, topology) if place.segment else None
    if fix_batch:
        _fix(file, topology, plan, segment)
    unseen, refused = _measurement(topology, place)
    if refused is not None and as_json:
        raise refused
    few = [
        memory_doubt(topology),
        check_enough(topology, Path.cwd()),
        check_time_limit(file.read_text(), topology, Path.cwd()),
    ]
    still = unfilled_lines(site or topology.site)
    found = (*_warnings(file, topology, plan, place, segment), *still, *unknown, *unseen, *filter(None, few))
    plan = replace(plan, warnings=(*plan.warnings, *found))
    bound = topology.engine != "mocker"  # simulated engines are not
    notes = [
        *swept,
        *_notes(topology, plan, place),
        *_unjudged(topology, memory),
        *_unsubmittable(topology),
        *(_kept_back(plan, place) if bound else []),
    ]
    shares = _shares(plan, place) if bound else {}
    if svg is not None:
        _draw(svg, topology, plan, [*(f"memory: {role.text}" for role in memory), *(f"note: {note}" for note in notes)])
    if as_json:
        value = plan_as_json(plan) | {
            "router": topology.frontends.router if plan.frontends else None,
            "memory": [role.as_json() for role in memory],
            "cores": [
                {"worker": name, "node": node, "cores": share.core_list, "memory_gib": share.memory_gib}
                for (name, node), share in shares.items()
            ],
            "notes": notes,
            **measure_facts(topology, Path.cwd()),
        }
        click.echo(json.dumps(value, indent=2 if len(plan.workers) <= _INDENTED_WORKERS else None))
        return
    _show(topology, plan, PlanFacts(memory, notes, shares))
    if refused is not None:
        raise refused


def _first_of_sweep(topology: Topology, nodes: int | None) -> tuple[Topology, Plan, list[str]]:
    """The split that a sweep begins with, its plan, and a note that names the others.

    Raises:
        ConfigError: A split does not fit, or could not be run.
    """
    from dynamo_mlperf.job.sweep_start import sweep_start
    from dynamo_mlperf.topology.capacity import scaled
    from dynamo_mlperf.topology.sweeping import splits_of

    topology = topology if nodes is None else scaled(topology, nodes)
    first, plan = sweep_start(topology, Path.cwd())
    names = [split.name for split in splits_of(topology)]
    shown = ", ".join(names[:_SPLITS_SHOWN]) + (" ..." if len(names) > _SPLITS_SHOWN else "")
    return first, plan, [f"a sweep over {len(names)} splits ({shown}) begins so; which is next, the measurements tell"]


def _show(topology: Topology, plan: Plan, facts: PlanFacts) -> None:
    from rich.console import Console

    from dynamo_mlperf.cli.plan_picture import show_plan
    from dynamo_mlperf.report.terminal import trimmed

    console = Console(highlight=False)
    with trimmed(console):
        show_plan(console, topology, plan, facts)


def _draw(svg: Path, topology: Topology, plan: Plan, notes: Sequence[str]) -> None:
    from dynamo_mlperf.cli.output import write_output
    from dynamo_mlperf.cli.plan_picture import summary_of, title_of
    from dynamo_mlperf.topology.picture import as_svg

    lines = [*summary_of(topology, plan), *notes, *(f"warning: {warning}" for warning in plan.warnings)]
    text = as_svg(plan, f"{plan.name}: {title_of(topology, plan)}", lines)
    write_output("--svg", svg, text, "plan.svg")
    click.echo(f"{svg}: written", err=True)


def _shares(plan: Plan, site: Site) -> Mapping[tuple[str, int], Share]:
    from dynamo_mlperf.site import head_cores, numa_areas
    from dynamo_mlperf.topology.numa import shares_of

    return shares_of(plan, numa_areas(site), head_cores=head_cores(site, len(plan.frontends)))


def _kept_back(plan: Plan, site: Site) -> list[str]:
    """Which cores the workers of the head's node leave alone."""
    from dynamo_mlperf.site import head_cores, numa_areas
    from dynamo_mlperf.topology.numa import core_list, kept_back

    kept = kept_back(numa_areas(site), head_cores(site, len(plan.frontends)))
    if not kept or not any(plan.head_node in worker.nodes for worker in plan.workers):
        return []
    what = f"cores {core_list(kept)} of node {plan.head_node} are kept back for frontends, load client and controller"
    return [f"{what} (head_cores of site {site.name})"]


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


def _unjudged(topology: Topology, memory: Sequence[RoleMemory]) -> list[str]:
    """That GPU memory was not checked, of which roles, and why: a plan without its rows is not one that fits."""
    from dynamo_mlperf.topology.model_files import served_model

    judged = {each.role for each in memory}
    left = [name for name, _role in topology.roles.present() if name not in judged]
    if topology.device != "cuda" or topology.engine == "mocker" or not left:
        return []
    if topology.nodes.gpu is None and topology.nodes.gpu_memory_gib is None:
        why = "the file does not say what the GPUs are; write nodes: {gpu: NAME}, or gpu_memory_gib"
    elif served_model(topology, Path.cwd()) is None:
        why = f"the shape of {topology.model.name} is not known here; its weights' config.json would tell it"
    else:
        why = "flags of theirs change what memory holds (quantization, cpu-offload-gb, kv-cache-memory-bytes)"
    return [f"GPU memory of {' and '.join(left)} workers is not checked: {why}"]


def _unsubmittable(topology: Topology) -> list[str]:
    """That a run by the full rules could not be submitted for its load client alone: nobody books GPUs for that."""
    from dynamo_mlperf.benchmark.rules import ONLY_ENDPOINTS

    measure = topology.measure
    if topology.reduced is not None or topology.engine == "mocker" or measure.client != "loadgen":
        return []
    if (measure.benchmark, measure.scenario) not in ONLY_ENDPOINTS:
        return []
    what = f"{measure.benchmark} {measure.scenario} measured by LoadGen is for tuning and cannot be submitted"
    return [f"{what}; for a submission write measure: {{client: endpoints}} (docs/endpoints.md)"]


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
    from dynamo_mlperf.files import shell_word
    from dynamo_mlperf.topology.batch import batch_differences, ignored_batch_lines, unfilled

    text = file.read_text()
    differences = batch_differences(text, topology, plan, shipped=_is_shipped(file), segment=segment)
    agrees = len(plan.nodes) == topology.nodes.count
    way_out = (
        f"`dynamo-mlperf plan --fix-batch {shell_word(file)}` corrects it"
        if agrees
        else f"submit with sbatch --nodes={len(plan.nodes)} {shell_word(file)} --nodes {len(plan.nodes)}"
    )
    found = [f"{difference.text}; {way_out}" for difference in differences]
    found += [f"line {number}: Slurm ignores #SBATCH after the first YAML line" for number in ignored_batch_lines(text)]
    found += [*unfilled(text), *_blind(topology)]
    return (*found, *_place_warnings(topology, site))


def _refuse(topology: Topology, plan: Plan, site: Site) -> None:
    """Refuse what `run` would refuse of the deployment, as far as it can be seen from here.

    Raises:
        ConfigError: As `run` says it.
    """
    from dynamo_mlperf.serving.workers import check_launchable
    from dynamo_mlperf.site import refuse_few_ports

    check_launchable(topology, plan)
    refuse_few_ports(site, plan.ports_needed)
    paths = topology.resolve(Path.cwd())
    if paths.manifest is not None and paths.manifest.exists():
        from dynamo_mlperf.staging.manifest import load_manifest

        load_manifest(paths.manifest)


def _unchecked_flags(topology: Topology, site: Site, *, ask: bool) -> tuple[str, ...]:
    """That the file has flags nobody has held against the engine's; refuses those that it does not know."""
    from dynamo_mlperf.job.known_flags import check_from_here

    tell = (lambda line: click.echo(line, err=True)) if ask else None
    unseen = check_from_here(topology, site, ask=tell, every=ask)
    return () if unseen is None else (f"not checked: {unseen}",)


def _measurement(topology: Topology, site: Site) -> tuple[tuple[str, ...], ConfigError | None]:
    """What this machine lacks that the one that runs it needs, for people; why `run` would refuse the measurement.

    The plan is shown all the same: where workers go does not depend on the data set.
    """
    from dynamo_mlperf.errors import ConfigError, SetupError

    dataset = topology.resolve(Path.cwd()).dataset
    seen = dataset is None or dataset.exists()
    if not seen and topology.measure.client == "loadgen":
        return (), None
    from dynamo_mlperf.job.endpoints_data import check_client
    from dynamo_mlperf.job.workload import check_workload

    try:
        if seen:
            check_workload(topology, Path.cwd(), from_afar=True)
        if (unseen := check_client(topology, site, from_afar=True)) is not None:
            return (f"not checked: {unseen}",), None
    except SetupError as problem:  # of this machine, which need not be the one that runs it
        return (f"run from here would refuse this: {problem.what}; {problem.action}",), None
    except ConfigError as problem:
        return (), problem
    return (), None


def _blind(topology: Topology) -> list[str]:
    """Which workers would refuse every query of a benchmark with images: Dynamo's vLLM takes them only where told."""
    from dynamo_mlperf.benchmark.rules import WITH_IMAGES

    if topology.measure.benchmark != WITH_IMAGES or topology.engine != "vllm":
        return []
    lacking = [name for name, role in topology.roles.present() if not role.args.get("enable-multimodal")]
    what = f"{' and '.join(lacking)} workers refuse requests with images"
    return [f"{what}; write args: {{enable-multimodal: true}} for each role"] if lacking else []


def _place_warnings(topology: Topology, site: Site) -> tuple[str, ...]:
    """What can be said from here about paths; whether the nodes see them is checked inside the job."""
    from dynamo_mlperf.job.data_source import benchmark_readme, where_from

    paths = topology.resolve(Path.cwd())
    unseen = "is not there (seen from here)"
    found = []
    if (weights := paths.manifest or paths.weights) and not weights.exists():
        read = benchmark_readme(topology, Path.cwd())
        way = f"; {read} says how to get the model and write its manifest" if paths.manifest and read else ""
        found.append(f"model.weights: {weights} {unseen}{way}")
    if paths.dataset and not paths.dataset.exists():
        found.append(f"measure.dataset: {paths.dataset} {unseen}; {where_from(topology, paths.dataset, Path.cwd())[0]}")
    package = Path(__file__).resolve().parent.parent
    if site.shared_path and not package.is_relative_to(Path(site.shared_path).resolve()):
        found.append(f"dynamo-mlperf runs from {package}, outside the site's shared_path; nodes may not see it")
    return tuple(found)

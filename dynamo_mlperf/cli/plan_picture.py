"""A plan for people: the table of workers, the coloured grid of nodes and GPUs, and what it comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dynamo_mlperf.cli.plan_measure import measure_lines
from dynamo_mlperf.topology.picture import PlanFacts, label, rows_of, shades

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dynamo_mlperf.topology.picture import Row
    from dynamo_mlperf.topology.plan import Plan, Worker
    from dynamo_mlperf.topology.spec import Topology

_COLOURS = {
    "prefill": ("cyan", "bright_blue", "blue", "bright_cyan"),
    "decode": ("magenta", "bright_yellow", "red", "bright_magenta"),
    "aggregated": ("green", "bright_cyan", "yellow", "bright_green"),
}
_IDLE, _HEAD = "·", "-"
_IDLE_NODES_SHOWN = 8


def show_plan(console: Console, topology: Topology, plan: Plan, facts: PlanFacts | None = None) -> None:
    """Print the plan: workers, the grid of nodes and GPUs, the split, idle GPUs, memory, notes, warnings."""
    facts = facts or PlanFacts()
    rows = rows_of(plan)
    console.print(f"[bold]{plan.name}[/bold]: {title_of(topology, plan)}")
    console.print(_table(plan, rows, facts))
    console.print(_grid(topology, plan, rows))
    for line in [*summary_of(topology, plan), *(f"memory      {role.text}" for role in facts.memory)]:
        console.print(line, soft_wrap=True, markup=False)
    for note in facts.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)
    for warning in plan.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)


def title_of(topology: Topology, plan: Plan) -> str:
    """`4P8D on 4 x 4 GPUs`."""
    return f"{plan.split.workers} on {len(plan.nodes)} x {plan.nodes[0].gpus} {_unit(topology)}"


def _unit(topology: Topology) -> str:
    return "GPUs" if topology.device == "cuda" else "GPU slots"


def _shown(rows: Sequence[Row]) -> dict[str, Worker]:
    """The workers that rows draw, by name."""
    return {worker.name: worker for row in rows for worker in row.cells if worker}


def _table(plan: Plan, rows: Sequence[Row], facts: PlanFacts) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("node", "worker", "role", "GPUs", "ports", *(["cores"] if facts.shares else [])):
        table.add_column(title)
    colours, shown = shades(rows), _shown(rows)
    for worker in sorted(shown.values(), key=lambda worker: worker.ranks):
        table.add_row(
            _numbers(worker.nodes),
            worker.name,
            worker.role,
            _gpus(worker),
            f"+{worker.port_offset} to +{worker.port_offset + worker.ports - 1}",
            *([facts.shares[worker.name, worker.node].core_list] if facts.shares else []),
            style=_COLOURS[worker.role][colours[worker.name]],
        )
    if len(plan.workers) > len(shown):
        table.add_row("...", f"{len(plan.workers) - len(shown)} more like these")
    return table


def _gpus(worker: Worker) -> str:
    if len(worker.nodes) > 1:
        return f"all ({len(worker.ranks)})"
    return _numbers([slot.gpu for slot in worker.ranks])


def _numbers(values: Sequence[int]) -> str:
    """`0`, `0-3`: both ascending and without gaps."""
    return str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}"


def _grid(topology: Topology, plan: Plan, rows: Sequence[Row]) -> Text:
    """One row per node or kind of node, one cell per GPU: the letter of its role and the number of its worker."""
    colours, shown = shades(rows), _shown(rows)
    width = max(len(label(worker)) for worker in shown.values())
    grid = Text()
    for row in rows:
        node = row.nodes[0]
        grid.append(f"node {node:<4}")
        free = _HEAD if node < topology.nodes.count - topology.worker_nodes else _IDLE
        for worker in row.cells:
            style = f"bold {_COLOURS[worker.role][colours[worker.name]]}" if worker else "dim"
            grid.append(f" {label(worker) if worker else free:<{width}}", style=style)
        marks = ("head" if plan.head_node in row.nodes else "", row.others)
        grid.append("".join(f"  {mark}" for mark in marks if mark) + "\n")
    return grid


def summary_of(topology: Topology, plan: Plan) -> list[str]:
    """What the plan comes to: the split both ways, idle GPUs, frontends and router, ports, and what is measured."""
    split, total = plan.split, sum(node.gpus for node in plan.nodes)
    unit = _unit(topology)
    if split.aggregated_gpus is None:
        used = split.prefill_gpus + split.decode_gpus
        share = round(100 * split.prefill_gpus / used)
        by_gpus = f"{split.prefill_gpus} prefill, {split.decode_gpus} decode ({share}:{100 - share})"
    else:
        used, by_gpus = split.aggregated_gpus, f"{split.aggregated_gpus} aggregated"
    frontends = "none, workers answer requests themselves"
    if plan.frontends:
        place = f"{len(plan.frontends)} on node {plan.head_node}, at +{plan.frontends[0].port_offset}"
        frontends = f"{place}, router {topology.frontends.router}"
    return [
        f"by GPUs     {by_gpus}, {used} of {total} {unit}",
        f"by workers  {split.workers}",
        f"idle        {_idle(plan)}",
        f"frontends   {frontends}",
        f"ports       {plan.ports_needed} from the base that the job picks",
        *measure_lines(topology),
    ]


def _idle(plan: Plan) -> str:
    """`node 0 GPU 3, node 2 GPUs 0-3`: the idle GPUs of a node are its last ones."""
    by_node: dict[int, list[int]] = {}
    for slot in plan.idle_gpus:
        by_node.setdefault(slot.node, []).append(slot.gpu)
    named = [
        f"node {node} GPU{'s' if len(gpus) > 1 else ''} {_numbers(gpus)}"
        for node, gpus in list(by_node.items())[:_IDLE_NODES_SHOWN]
    ]
    if len(by_node) > len(named):
        named.append(f"... {len(plan.idle_gpus)} on {len(by_node)} nodes in all")
    return ", ".join(named) or "none"

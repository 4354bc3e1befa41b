"""One self-contained HTML page per run: no script, no external resource, every text from the run escaped."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dynamo_mlperf import __version__
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.causes import causes_of, untold_errors
from dynamo_mlperf.report.charts import Mark, distribution, over_time
from dynamo_mlperf.report.diagrams import flow, shown_processes, timeline_chart
from dynamo_mlperf.report.figures import Figures, LatencyRow, derive_figures
from dynamo_mlperf.report.logs import logs_that_matter, tail
from dynamo_mlperf.report.predicted import beside
from dynamo_mlperf.report.probes import read_probes
from dynamo_mlperf.report.queries import ascending_ms, causes, per_query_ms
from dynamo_mlperf.report.run_data import Command, RunData, read_run
from dynamo_mlperf.report.side_tests import side_rows
from dynamo_mlperf.report.sweep import read_sweep, sweep_chart
from dynamo_mlperf.report.words import CONSTRAINTS, counter, spoken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.report.layout import Layout

_COMMANDS_SHOWN = 80
_TOPOLOGY_CHARACTERS = 65536
_ERRORS_SHOWN = 10
_SHADES = 4
_LIST_SHOWN = 16
_CLIENT_RAW = ("first_issue_t", "role")
"""Of the load client's account, what is for programs: a time on their clock, and what a process's name says already."""


@dataclass(frozen=True)
class Chart:
    """One picture with its title and the sentence that says how to read it."""

    svg: Markup
    title: str
    caption: str


@dataclass(frozen=True)
class Cell:
    """One GPU in the grid."""

    label: str
    css: str
    title: str


@dataclass(frozen=True)
class CounterTable:
    """Counter differences of the workers of one role: a row per counter, a column per worker, and the sum."""

    role: str
    workers: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], str], ...]


def write_report(run_dir: Path, target: Path | None = None) -> Path:
    """Write the page of the run in `run_dir` and return its path.

    Args:
        run_dir: A run directory.
        target: Where to write; `report.html` in the run directory by default.

    Raises:
        ConfigError: `run_dir` is no run directory.
        SetupError: It cannot be read, or the page cannot be written there.
    """
    run = read_run(run_dir)
    return write_page(run, target or run.paths.report)


def write_page(run: RunData, target: Path) -> Path:
    """Write the page of a run that has been read to `target`, whole or not at all.

    Raises:
        ConfigError: There is no directory for `target`.
        SetupError: It cannot be written.
    """
    page = render_page(run)
    try:
        write_atomic(target, page)
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise (ConfigError if absent else SetupError)(
            f"the report cannot be written to {target}: {error.strerror}",
            "--html FILE in a directory that you can write to, or --no-html",
        ) from error
    return target


def render_page(run: RunData) -> str:
    """The page as HTML text."""
    figures = derive_figures(run)
    template = environment().get_template("page.html.j2")
    return template.render(
        run=run,
        figures=figures,
        causes=causes_of(run, figures),
        errors=untold_errors(run, figures),
        unit=run.layout.unit if run.layout else "GPU",
        predicted=beside(run.paths.root, run.layout.split if run.layout else "", figures.completed_qps),
        version=__version__,
        began=_utc(run.timeline.began_at),
        distributions=_distributions(run, figures),
        scatters=_scatters(run, figures),
        query_errors=causes(run.queries)[:_ERRORS_SHOWN] if run.queries else (),
        timeline=_timeline(run),
        side_tests=side_rows(run.paths.root),
        search=read_probes(run.paths.root),
        sweep=(sweep := read_sweep(run.paths.root)),
        sweep_chart=Markup(sweep_chart("sweep-rates", sweep)) if sweep and sweep.rows else None,  # noqa: S704 - escaped in svg.py
        flow=_flow(run, figures),
        counter_tables=counter_tables(run.counters),
        grid=gpu_grid(run.layout) if run.layout else (),
        topology=(run.topology or "")[:_TOPOLOGY_CHARACTERS],
        topology_cut=len(run.topology or "") > _TOPOLOGY_CHARACTERS,
        laid_over=yaml.safe_dump(dict(run.laid_over), sort_keys=False) if run.laid_over else "",
        client=in_words_by_name(run.client, _CLIENT_RAW),
        canary=in_words_by_name(run.canary),
        commands=run.commands[:_COMMANDS_SHOWN],
        commands_left_out=max(0, len(run.commands) - _COMMANDS_SHOWN),
        common_env=common_environment(run.commands),
        tails=[(log, tail(log.path)) for log in logs_that_matter(run)],
    )


def environment() -> Environment:
    """Templates that escape every text that they are given, and show none of its control characters."""
    made = Environment(
        loader=PackageLoader("dynamo_mlperf.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            q.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
        ),
    )
    made.globals["q"] = q
    made.filters["shell"] = shell_line
    return made


def _utc(epoch_s: float | None) -> str:
    if epoch_s is None:
        return ""
    try:
        return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError):
        return ""


def _distributions(run: RunData, figures: Figures) -> list[Chart]:
    """One per measure that has values; only of a run that measured."""
    charts: list[Chart] = []
    for row in figures.latencies:
        if run.queries is None or row.constraint not in CONSTRAINTS:
            continue
        values = ascending_ms(run.queries, row.constraint)
        if len(values):
            name = f"distribution-{len(charts)}"
            svg = distribution(name, f"Distribution of the {row.name} latency", values, _marks(row))
            charts.append(Chart(Markup(svg), _capital(row.name), _distribution_caption(row)))  # noqa: S704 - svg.py escapes its texts
    return charts


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _marks(row: LatencyRow) -> list[Mark]:
    if row.judged_at is None:
        return []
    judged = row.percentiles.get(row.judged_at)
    marks = [
        Mark("judged", q.percentile_name(row.judged_at), judged) if judged is not None else None,
        Mark("early", "early stopping", row.early_stopping) if row.early_stopping is not None else None,
        Mark("limit", "limit", row.limit) if row.limit is not None else None,
    ]
    return [mark for mark in marks if mark is not None]


def _distribution_caption(row: LatencyRow) -> str:
    how = "Bars: queries (left). Line: share of the queries answered within that latency (right)."
    if row.judged_at is None:
        return f"Shown, not judged. {how}"
    early = " Too few queries for the early-stopping rule." if row.early_stopping is None else ""
    return f"Judged at {q.percentile_name(row.judged_at)}.{early} {how}"


def _scatters(run: RunData, figures: Figures) -> list[Chart]:
    """Latency over the run: the judged measures, else end-to-end; of a run that did not measure, as a diagnosis."""
    queries = run.queries
    if queries is None:
        return []
    judged = [(row.constraint, row.limit) for row in figures.latencies if row.judged_at is not None]
    charts: list[Chart] = []
    for constraint, limit in [pair for pair in judged if pair[0] in CONSTRAINTS] or [("end_to_end", None)]:
        name = CONSTRAINTS[constraint]
        svg = over_time(
            f"over-time-{len(charts)}",
            f"{name} latency by issue time",
            issued_s=queries.issued_ms / 1000.0,
            latency_ms=per_query_ms(queries, constraint),
            failed=~queries.succeeded,
            limit_ms=limit,
        )
        caption = "A dot per query, or a cell for several, darker where they crowd."
        if 'class="median"' in svg:  # short runs have too few queries for it
            caption = f"{caption} Line: running median."
        if not figures.measured:
            caption = f"{caption} For diagnosis only: this run did not measure."
        charts.append(Chart(Markup(svg), _capital(name), caption))  # noqa: S704 - svg.py escapes its texts
    return charts


def _timeline(run: RunData) -> Chart | None:
    if not run.timeline.phases and not run.timeline.processes:
        return None
    names = {str(node.position): node.name for node in run.layout.nodes} if run.layout else {}
    hidden = len(run.timeline.processes) - len(shown_processes(run.timeline.processes))
    caption = "Light: from start to ready. Solid: ready until exit. Tinted: the measurement."
    if hidden:
        caption += f" {q.many(hidden, 'process', 'processes')} that came up sooner left out."
    return Chart(Markup(timeline_chart("timeline", run.timeline, names)), "", caption)  # noqa: S704 - escaped in svg.py


def _flow(run: RunData, figures: Figures) -> Markup | None:
    if figures.proof is None or not figures.proof.disaggregated:
        return None
    return Markup(flow("flow", figures.proof, _role(run.layout, "prefill"), _role(run.layout, "decode")))  # noqa: S704


def _role(layout: Layout | None, role: str) -> str:
    workers = [worker for worker in layout.workers if worker.role == role] if layout else []
    gpus = sum(len(worker.ranks) for worker in workers)
    unit = layout.unit if layout else "GPU"
    return f"{q.many(len(workers), 'worker')}, {q.many(gpus, unit)}" if workers else "no plan on record"


def gpu_grid(layout: Layout) -> list[tuple[str, list[Cell]]]:
    """Nodes and their GPUs, each GPU with the worker that holds it; all rows have the widest node's length."""
    holders = {rank: worker for worker in layout.workers for rank in worker.ranks}
    columns = max((node.gpus for node in layout.nodes), default=0)
    grid = []
    for node in layout.nodes:
        cells = []
        for gpu in range(columns):
            worker = holders.get((node.position, gpu))
            if worker is not None:
                role = worker.role if worker.role in ("prefill", "decode") else "aggregated"
                cells.append(Cell(worker.short_name, f"gpu {role} shade-{worker.index % _SHADES}", worker.name))
            elif gpu < node.gpus:
                cells.append(Cell("idle", "gpu idle", "no worker"))
            else:
                cells.append(Cell("", "", f"no such {layout.unit}"))
        grid.append((node.name, cells))
    return grid


def counter_tables(counters: Mapping[str, Mapping[str, Any]]) -> list[CounterTable]:
    """One table per role, in the order in which the evidence names the roles."""
    tables = []
    for role in dict.fromkeys(worker.rpartition("-")[0] or worker for worker in counters):
        workers = tuple(worker for worker in counters if (worker.rpartition("-")[0] or worker) == role)
        names = dict.fromkeys(name for worker in workers for name in counters[worker])
        rows = []
        for name in names:
            values = [q.number_or_none(counters[worker].get(name)) for worker in workers]
            known = [value for value in values if value is not None]
            cells = tuple(q.NO_VALUE if value is None else plain_number(value) for value in values)
            rows.append((counter(name), cells, plain_number(sum(known)) if known else q.NO_VALUE))
        tables.append(CounterTable(role, workers, tuple(rows)))
    return tables


def plain_number(value: float) -> str:
    """A counter as it is: whole where it is whole, else with three decimals at most (four digits below 1)."""
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1 else f"{value:,.3f}".rstrip("0").rstrip(".")


def in_words_by_name(values: Mapping[str, Any], left_out: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The same pairs as `flat`, their names in words; without those whose own key is in `left_out`."""
    return [(spoken(name), text) for name, text in flat(values) if name.rpartition(".")[2] not in left_out]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested JSON values as (dotted name, text) pairs; of a long list, its length.

    An entry of a list that has a `name` is called by it, and not told it again.
    """
    pairs: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, list) and len(value) > _LIST_SHOWN:
            pairs.append((name, q.many(len(value), "entry", "entries")))
        elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
            pairs += flat(dict(_called(part, place) for place, part in enumerate(value)), f"{name}.")
        elif isinstance(value, dict):
            pairs += flat(value, f"{name}.")
        else:
            pairs.append((name, _scalar(value)))
    return pairs


def _called(entry: object, place: int) -> tuple[str, object]:
    """What a list's entry is called, by its own `name`, else its place; and the entry without that name."""
    if not isinstance(entry, dict) or "name" not in entry:
        return str(place), entry
    return str(entry["name"]), {key: value for key, value in entry.items() if key != "name"}


def _scalar(value: object) -> str:
    number = q.number_or_none(value)
    if number is not None:
        return plain_number(number)
    if isinstance(value, list):
        return ", ".join(_scalar(part) for part in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return q.NO_VALUE if value is None else str(value)


def common_environment(commands: Sequence[Command]) -> dict[str, str]:
    """The variables that every process has with the same value; empty for a single process."""
    if len(commands) < 2:  # noqa: PLR2004 - "common" needs two
        return {}
    seen = Counter(pair for command in commands for pair in command.env.items())
    return {name: value for (name, value), times in seen.items() if times == len(commands)}


def shell_line(argv: Sequence[str]) -> str:
    """An argument vector as a shell would take it, each option on a line of its own."""
    lines: list[str] = []
    for part in argv:
        quoted = shlex.quote(part)
        if not lines or part.startswith("--"):
            lines.append(quoted)
        else:
            lines[-1] = f"{lines[-1]} {quoted}"
    return " \\\n    ".join(lines)

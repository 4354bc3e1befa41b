"""The terminal summary of one run, readable at 80 columns and without colour."""

from __future__ import annotations

from io import TextIOWrapper
from statistics import median
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.causes import causes_of, last_log_line, untold_deaths, untold_errors
from dynamo_mlperf.report.figures import DAMAGED, NO_VERDICT, Figures, LatencyRow, Proof, derive_figures
from dynamo_mlperf.report.logs import log_of, logs_that_matter
from dynamo_mlperf.report.predicted import beside
from dynamo_mlperf.report.run_data import RunData, read_run
from dynamo_mlperf.report.run_files import is_there
from dynamo_mlperf.report.side_tests import side_rows
from dynamo_mlperf.report.sweep import read_sweep, sweep_lines, sweep_table
from dynamo_mlperf.report.terminal import near, say, trimmed

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType

    from dynamo_mlperf.report.timeline import Process, Timeline

_STYLES = {"VALID": "bold green", "INVALID": "bold yellow", "FAILED": "bold red"}
_STYLES |= {NO_VERDICT: "bold cyan", DAMAGED: "bold red"}
_BAR_WIDTH = 34
_WORKERS_LISTED = 24
_WIDE_GAPS = 3


def print_summary(run_dir: Path, console: Console) -> None:
    """Print the summary of the run in `run_dir`.

    Raises:
        ConfigError: `run_dir` is no run directory.
    """
    print_run(read_run(run_dir), console)


def print_run(run: RunData, console: Console) -> None:
    """Print the summary of a run that has been read."""
    if isinstance(console.file, TextIOWrapper):
        console.file.reconfigure(errors="replace")  # a terminal that is not UTF-8 must not end a run
    figures = derive_figures(run)
    with trimmed(console):
        _headline(run, figures, console)
        _reasons(run, figures, console)
        _sweep(run, console)
        _throughput(figures, console)
        _predicted(run, figures, console)
        _latency(figures, console)
        _disaggregation(figures.proof, console)
        _side_tests(run, console)
        _phases(run.timeline, console)
        _workers(run, console)
        _files(run, console)


def _side_tests(run: RunData, console: Console) -> None:
    rows = side_rows(run.paths.root)
    if not rows:
        return
    _section(console, "Accuracy and compliance")
    _grid(console, [entry for row in rows for entry in ((row.name, row.text()), *(("", why) for why in row.why))])


def _text(content: str, style: str = "") -> Text:
    return Text(q.printable(content), style=style, overflow="fold")


def _indented(console: Console, content: RenderableType, indent: int = 2) -> None:
    console.print(Padding(content, (0, 0, 0, indent), expand=False))


def _section(console: Console, title: str) -> None:
    console.print()
    console.print(Rule(Text(title, style="bold"), align="left", characters="─", style="dim"))


def _grid(console: Console, rows: list[tuple[str, str]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=16)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_text(name, "dim"), _text(value))
    _indented(console, table)


def _headline(run: RunData, figures: Figures, console: Console) -> None:
    line = Text(figures.state, style=_STYLES.get(figures.state, "bold"))
    if figures.state == "INVALID" and figures.reasons:
        line.append(q.printable(f" ({figures.reasons[0].check})"))
    if figures.result_class:
        line.append(q.printable(f" [{figures.result_class}]"))
    named = q.printable("  ".join(part for part in (figures.benchmark, figures.scenario) if part))
    if not named or line.cell_len + 2 + len(named) <= console.width:
        console.print(Text("  " if named else "").join([line, Text(named, style="bold")]))
    else:
        console.print(line)
        say(console, named, style="bold")
    about = f" Class {figures.result_class}: {figures.class_meaning}." if figures.class_meaning else ""
    say(console, f"{figures.meaning}{about}")
    if run.layout is not None:
        where = f"{q.many(len(run.layout.nodes), 'node')}, {q.many(run.layout.gpus, run.layout.unit)}"
        say(console, ", ".join(part for part in (run.layout.name, run.layout.split, where) if part))
    if figures.model:
        say(console, f"model  {figures.model}")


def _reasons(run: RunData, figures: Figures, console: Console) -> None:
    deaths, errors = untold_deaths(run, figures), untold_errors(run, figures)
    if not (figures.reasons or errors or run.timeline.warnings or deaths or figures.notes):
        return
    _section(console, "Why, and what to do" if figures.state != "VALID" else "Notes")
    causes = causes_of(run, figures)
    width = len(f"{len(causes)}.")
    for number, cause in enumerate(causes, start=1):
        hanging = " " * (width + 3)
        say(console, cause.text, f"  {f'{number}.':>{width}} ", hanging)
        if cause.detail:
            say(console, near(cause.detail), hanging)
        if cause.log is not None:
            say(console, near(str(cause.log)), hanging)
        if cause.action:
            say(console, near(cause.action), f"  {'→':>{width}} ", hanging)
    for process in deaths:
        _death(run, process, console)
    for error in errors:
        say(console, near(f"error: {error}"))
    for warning in run.timeline.warnings:
        say(console, near(f"warning: {warning}"))
    for note in figures.notes:
        say(console, near(f"note: {note}"))


def _death(run: RunData, process: Process, console: Console) -> None:
    node = run.layout.node_name(process.node) if run.layout else process.node
    when = q.duration(process.exited_s)
    consequence = "" if process == run.timeline.deaths[0] else " (after the first death)"
    say(console, f"{process.name} on {node} ended by itself after {when}, status {process.status}{consequence}")
    log = log_of(run, process.name)
    if last := last_log_line(log):
        say(console, f"last line of its log: {near(last)}", "    ")
        say(console, near(str(log)), "    ")


def _sweep(run: RunData, console: Console) -> None:
    view = read_sweep(run.paths.root)
    if view is None:
        return
    _section(console, f"Sweep over splits{view.simulated}")
    _indented(console, sweep_table(view))
    for line in sweep_lines(view):
        _indented(console, _text(line, "dim"))


def _throughput(figures: Figures, console: Console) -> None:
    _section(console, f"Throughput{figures.simulated}")
    if not figures.measured:
        say(console, q.NOT_MEASURED)
        return
    unit = figures.rate_unit
    target = f"{q.rate(figures.target_qps)} {unit}" if figures.target_qps is not None else "none set"
    _grid(
        console,
        [
            ("target", target),
            ("completed", _with_unit(q.rate(figures.completed_qps), unit)),
            ("output", _with_unit(q.rate(figures.tokens_per_second), "tokens/s")),
            ("requests", f"{q.count(figures.requests)}, {q.count(figures.failed_requests)} failed"),
            ("measured for", q.duration(figures.duration_s)),
        ],
    )


def _predicted(run: RunData, figures: Figures, console: Console) -> None:
    found = beside(run.paths.root, run.layout.split if run.layout else "", figures.completed_qps)
    if found is None:
        return
    _section(console, "Predicted beside measured")
    rows = [("rehearsed", _with_unit(found.rehearsed, figures.rate_unit)), ("measured", found.measured)]
    _grid(console, [*rows, ("difference", found.difference)] if found.difference else rows)
    say(console, f"rehearsed by {found.basis}")


def _with_unit(figure: str, unit: str) -> str:
    return figure if figure == q.NOT_MEASURED else f"{figure} {unit}"


def _latency(figures: Figures, console: Console) -> None:
    _section(console, f"Latency, ms{figures.simulated}")
    if not figures.latencies:
        say(console, q.NOT_MEASURED)
        return
    fractions = sorted({fraction for row in figures.latencies for fraction in row.percentiles})
    # Four percentiles and more leave no room for wide gaps in 80 columns.
    table = Table(box=None, padding=(0, 2 if len(fractions) <= _WIDE_GAPS else 1, 0, 0), pad_edge=False)
    table.add_column("")
    for title in (*(q.percentile_name(f) for f in fractions), "early stop", "limit", "over limit"):
        table.add_column(title, justify="right", header_style="dim")
    for row in figures.latencies:
        table.add_row(*(_text(cell) for cell in _latency_cells(row, fractions)))
    _indented(console, table)
    judged = sorted({row.judged_at for row in figures.latencies if row.judged_at is not None})
    if judged:
        say(console, f"judged at {', '.join(q.percentile_name(f) for f in judged)} by the early-stopping rule")


def _latency_cells(row: LatencyRow, fractions: list[float]) -> list[str]:
    shown = [row.percentiles.get(f) for f in fractions]
    cells = [row.name, *(q.NO_VALUE if value is None else q.milliseconds(value) for value in shown)]
    if row.judged_at is None:
        return [*cells, q.NO_VALUE, q.NO_VALUE, "not judged"]
    early = "too few" if row.early_stopping is None else q.milliseconds(row.early_stopping)
    return [*cells, early, q.NO_VALUE if row.limit is None else q.limit_ms(row.limit), row.over_text]


def _disaggregation(proof: Proof | None, console: Console) -> None:
    _section(console, "Proof of disaggregation")
    if proof is None:
        say(console, q.NOT_MEASURED)
        return
    if not proof.disaggregated:
        say(console, "Aggregated deployment: nothing to prove.")
        return
    rows = [("remote prefills", f"{q.count(proof.remote_prefills)} of {q.count(proof.requests)} requests")]
    if proof.kind == "kv-counters":
        rows += [
            (
                "prompt tokens",
                f"{q.count(proof.external_tokens)} of {q.count(proof.prompt_tokens)} came by KV transfer",
            ),
            ("computed there", f"{q.count(proof.local_tokens)} prompt tokens by decode workers themselves"),
            ("KV moved", f"{q.size(proof.kv_bytes)} in {q.count(proof.transfers)} NIXL transfers"),
            ("failed", f"{q.count(proof.failed_transfers)} transfers"),
        ]
    else:
        rows.append(("KV moved", f"{q.NOT_MEASURED} (proof: {proof.kind})"))
    _grid(console, rows)


def _phases(timeline: Timeline, console: Console) -> None:
    _section(console, "Where the time went")
    if not timeline.phases:
        say(console, "no phase on record")
        return
    longest = max((phase.seconds or 0.0 for phase in timeline.phases), default=0.0)
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right", min_width=12)
    table.add_column()
    for phase in timeline.phases:
        cells = round(_BAR_WIDTH * (phase.seconds or 0.0) / longest) if longest else 0
        took = "did not end" if phase.seconds is None else q.duration(phase.seconds)
        table.add_row(_text(phase.name), _text(took), Text("█" * cells, style="blue"))
    table.add_row(_text("in all", "dim"), _text(q.duration(timeline.length_s)), "")
    _indented(console, table)


def _workers(run: RunData, console: Console) -> None:
    if run.layout is None or not run.layout.workers:
        return
    _section(console, "Workers")
    lives = {process.name: process for process in run.timeline.processes}
    layout = run.layout
    if len(layout.workers) > _WORKERS_LISTED:
        _workers_by_role(run, lives, console)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("worker", header_style="dim")
    table.add_column("where", header_style="dim", overflow="fold")
    table.add_column("ready after", justify="right", header_style="dim")
    for worker in layout.workers:
        table.add_row(_text(worker.name), _text(layout.where(worker)), _text(_ready(lives.get(worker.name), run)))
    _indented(console, table)
    if layout.idle_gpus:
        say(console, f"{q.many(layout.idle_gpus, layout.unit)} idle")


def _workers_by_role(run: RunData, lives: dict[str, Process], console: Console) -> None:
    """Many workers: their start times by role, and by name those that never were ready."""
    layout = run.layout
    if layout is None:
        return
    for role in dict.fromkeys(worker.role for worker in layout.workers):
        names = [worker.name for worker in layout.workers if worker.role == role]
        times = [lives[name].ready_after_s for name in names if name in lives]
        known = sorted(seconds for seconds in times if seconds is not None)
        spread = (
            f", ready after {q.duration(known[0])} to {q.duration(known[-1])}, median {q.duration(median(known))}"
            if known
            else ""
        )
        say(console, f"{q.many(len(names), f'{role} worker')}{spread}")
        late = [name for name in names if name not in lives or lives[name].ready_s is None]
        if run.held_by:
            say(console, f"held by {run.held_by}", "    ")
        elif late:
            say(console, f"never ready: {', '.join(late)}", "    ")


def _ready(life: Process | None, run: RunData) -> str:
    if life is None:
        return f"held by {run.held_by}" if run.held_by else "not started"
    if life.ready_s is None:
        return "never ready"
    return q.duration(life.ready_after_s if life.ready_after_s is not None else life.ready_s - life.started_s)


def _files(run: RunData, console: Console) -> None:
    _section(console, "Files")
    if is_there(run.paths.report):
        _file(console, run.paths.report, "the report, for a browser")
    for log in logs_that_matter(run):
        _file(console, log.path, log.why)
    _file(console, run.paths.root, "everything that the run left")
    if run.missing:
        say(console, f"not there: {', '.join(run.missing)}")
    for damage in run.damaged:
        say(console, f"damaged: {damage}")


def _file(console: Console, path: Path, what: str) -> None:
    """The path whole, so that it can be copied, and beside it what it holds, or below where there is no room."""
    shown = q.printable(near(str(path)))
    if len(f"  {shown}  {what}") <= console.width:
        console.print(Text(f"  {shown}  {q.printable(what)}"), soft_wrap=True)
    else:
        console.print(Text(f"  {shown}"), soft_wrap=True)
        say(console, what, "    ")

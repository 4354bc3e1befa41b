"""A comparison of two runs for a terminal: what differs in tables, what is equal in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.terminal import near, say, trimmed
from dynamo_mlperf.report.words import spoken

if TYPE_CHECKING:
    from rich.console import Console

    from dynamo_mlperf.report.diff import Comparison, Side
    from dynamo_mlperf.report.diff_values import Row, Section, Value

_ROWS_SHOWN = 40
_LONG = 120
_AROUND = 24
_WHOLE = 1000.0
_IN_WORDS = ("result", "search", "disaggregation", "client")
"""Sections of our own figures; keys of files, flags and LoadGen's settings are shown as one would write them."""


def print_diff(comparison: Comparison, console: Console) -> None:
    """Print both runs, each section that differs, and the names of those that do not."""
    with trimmed(console):
        for name, side in (("A", comparison.a), ("B", comparison.b)):
            say(console, side_text(name, side), "", "   ", style="bold")
            say(console, near(side.run_dir), "   ")
            for line in lacking_lines(side):
                say(console, line, "   ")
        for section in comparison.sections:
            if section.rows:
                _section(section, console)
        closing = closing_lines(comparison)
        if closing:
            console.print()
        for line in closing:
            say(console, line, "")


def side_text(name: str, side: Side) -> str:
    """`A  VALID [official]  qwen3-vl-235b-a22b Interactive  4P8D  39.85 queries/s`."""
    figures = side.figures
    rate = f"{q.rate(figures.completed_qps)} {figures.rate_unit}" if figures.completed_qps is not None else ""
    state = f"{figures.state} [{figures.result_class}]" if figures.result_class else figures.state
    what = f"{figures.benchmark} {figures.scenario}".strip()
    parts = (name, state, what, side.split, rate)
    return "  ".join(part for part in parts if part)


def lacking_lines(side: Side) -> list[str]:
    """What the run should have left and did not, and what of it cannot be read."""
    lines = [f"not there: {', '.join(side.missing)}"] if side.missing else []
    return [*lines, *(f"damaged: {damage}" for damage in side.damaged)]


def closing_lines(comparison: Comparison) -> list[str]:
    """Which sections are equal, and which one of the runs, or both, have nothing of."""
    equal = [section.title for section in comparison.sections if section.equal]
    both = [section.title for section in comparison.sections if section.absent == "both"]
    lines = [f"Equal: {'; '.join(equal)}."] if equal else []
    for run in ("a", "b"):
        lacking = [section.title for section in comparison.sections if section.absent == run]
        lines += [f"Only {'B' if run == 'a' else 'A'} has on record: {'; '.join(lacking)}."] if lacking else []
    return [*lines, *([f"On record in neither: {'; '.join(both)}."] if both else [])]


def _section(section: Section, console: Console) -> None:
    console.print()
    console.print(Rule(Text(section.title, style="bold"), align="left", characters="─", style="dim"))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title, justify in (("", "left"), ("A", "left"), ("B", "left"), ("change", "right")):
        table.add_column(title, justify=justify, header_style="dim", overflow="fold")  # type: ignore[arg-type]
    for row in section.rows[:_ROWS_SHOWN]:
        table.add_row(*(Text(q.printable(cell)) for cell in (key_text(section, row), *cells_of(row), change_text(row))))
    console.print(table)
    if len(section.rows) > _ROWS_SHOWN:
        say(console, f"and {len(section.rows) - _ROWS_SHOWN} more: --json has all", "")


def key_text(section: Section, row: Row) -> str:
    """What is compared, for people."""
    return spoken(row.key) if section.name in _IN_WORDS and ":" not in row.key else row.key


def cells_of(row: Row) -> tuple[str, str]:
    """Both values for people; of long texts, where they differ."""
    a, b = value_text(row.a), value_text(row.b)
    if max(len(a), len(b)) <= _LONG or None in (row.a, row.b):
        return _cut(a), _cut(b)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    rest = min(len(a), len(b)) - start
    end = next((i for i in range(rest) if a[len(a) - 1 - i] != b[len(b) - 1 - i]), rest)
    first = max(0, start - _AROUND)
    return tuple(_piece(text, first, len(text) - max(0, end - _AROUND)) for text in (a, b))  # type: ignore[return-value]


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


def _piece(text: str, first: int, last: int) -> str:
    return f"{'…' if first else ''}{_cut(text[first:last])}{'…' if last < len(text) else ''}"


def value_text(value: Value) -> str:
    """A value for people: whole numbers whole, others with four significant digits or more."""
    if value is None:
        return q.NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    number = q.number_or_none(value)
    if number is None:
        return str(value)
    if isinstance(value, int) or number.is_integer():
        return f"{number:.0f}"
    return f"{number:.2f}" if abs(number) >= _WHOLE else f"{number:.4g}"


def change_text(row: Row) -> str:
    """`+12.3 %`; empty where there is none to tell."""
    change = row.change_percent
    return "" if change is None else f"{change:+.1f} %"

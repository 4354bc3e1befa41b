"""A comparison of two runs for a terminal: what differs in tables, what is equal in one line."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.diff_commands import flags_of, words_of
from dynamo_mlperf.report.terminal import near, say, trimmed
from dynamo_mlperf.report.words import spoken

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    shown = section.rows[:_ROWS_SHOWN]
    cells = {row: (key_text(section, row), value_text(row.a), value_text(row.b), change_text(row)) for row in shown}
    short = _that_fit(cells, console.width)
    if short:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for title, justify in (("", "left"), ("A", "left"), ("B", "left"), ("change", "right")):
            table.add_column(title, justify=justify, header_style="dim", overflow="fold")  # type: ignore[arg-type]
        for row in short:
            table.add_row(*(Text(q.printable(cell)) for cell in cells[row]))
        console.print(table)
    for row in shown:
        if row not in short:
            _below(cells[row][0], row, console)
    if len(section.rows) > _ROWS_SHOWN:
        say(console, f"and {len(section.rows) - _ROWS_SHOWN} more: --json has all", "")


def _that_fit(cells: Mapping[Row, tuple[str, ...]], width: int) -> list[Row]:
    """The rows of a table that breaks no cell at that width: those with the longest cell are left out until it does."""
    rows = list(cells)
    while rows:
        columns = [max(len(cells[row][place]) for row in rows) for place in range(4)]
        if sum((*columns[:3], max(columns[3], len("change")))) + 2 * len(columns) <= width:
            break
        rows.remove(max(rows, key=lambda row: max(map(len, cells[row]))))
    return rows


def _below(key: str, row: Row, console: Console) -> None:
    """A row too wide for the table: of command lines the flags that differ, else both values where they differ."""
    say(console, key, "", "  ")
    flags = flags_that_differ(row)
    for name, a, b in flags:
        _folded(f"{name}: {a} in A, {b} in B", "  ", console)
    if not flags:
        for side, text in zip("AB", cells_of(row), strict=True):
            _folded(text, f"  {side}  ", console)


def _folded(text: str, indent: str, console: Console) -> None:
    width = max(console.width, len(indent) + _AROUND)
    hanging = " " * max(4, len(indent))
    for line in textwrap.wrap(
        q.printable(text), width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
    ):
        console.print(Text(line), soft_wrap=True)


def flags_that_differ(row: Row) -> list[tuple[str, str, str]]:
    """Each flag that differs between two command lines, with its values; empty where the values are none."""
    if not (isinstance(row.a, str) and isinstance(row.b, str)):
        return []
    a, b = (flags_of(words_of(text)) for text in (row.a, row.b))
    if not all(any(name.startswith("--") for name in flags) for flags in (a, b)):
        return []
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [(name, a.get(name, "not there"), b.get(name, "not there")) for name in names]


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

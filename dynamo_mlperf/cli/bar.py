"""How far long work has come, on stderr: a bar on a terminal, a line each quarter elsewhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Report = Callable[[int, int], None]

_QUARTERS = 4
_TOLD_FROM = 10_000
"""Less than so many parts are over before anybody reads a line about them."""


@contextmanager
def bar(name: str) -> Iterator[Report]:
    """Gives what is told how many parts are done, and of how many; several rounds may follow one another."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _plain_report(name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _plain_report(name: str) -> Report:
    told = (0, 0)

    def report(done: int, total: int) -> None:
        nonlocal told
        if total < _TOLD_FROM:
            return
        quarter = done * _QUARTERS // total
        if told[0] != total:
            told = (total, 0)
        if quarter > told[1]:
            told = (total, quarter)
            click.echo(f"{name}: {done} of {total}", err=True)

    return report

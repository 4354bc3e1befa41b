"""`logs`: what the processes of a run wrote."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.slurm.runs import Run

POLL_S = 0.2
ASK_S, ASK_SELDOM_S = 0.5, 5.0
"""Between questions to Slurm: once the run's own record says that it is over, and before."""
_TAIL_BLOCK_BYTES = 65536
_MOST_BYTES = 64 * 2**20
"""Of one log at once: one without line ends is no log that anybody reads."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
JOB = "job"
"""Names the output of the batch job itself."""


@click.command(name="logs")
@click.argument("run")
@click.argument("worker", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as more is written, until the run has ended.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Last lines to begin with."
)
@click.option("--json", "as_json", is_flag=True, help="Print the names and paths of the logs as one JSON object.")
def command(run: str, worker: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Show the logs of RUN: of WORKER alone (any process: prefill-0, frontend-0, loadgen, job), or of all.

    RUN is a directory, the name of a run below runs/ or its beginning, or the id of a job. `job` is what the batch job
    itself printed. Lines that look like faults and are none stand as they are; notes on stderr say which, and why.
    """
    from dynamo_mlperf.slurm.runs import find_run

    found = find_run(run, Path.cwd() / "runs")
    logs = _logs(found)
    chosen = logs if worker is None else {worker: _one(worker, logs, found)}
    if as_json:
        import json

        click.echo(json.dumps({name: str(path) for name, path in chosen.items()}))
        return
    printer = _Printer(several=worker is None and len(chosen) != 1)
    _show(printer, chosen, lines, found if follow else None, all_of_them=worker is None)
    _tell_harmless(found, printer.known)


def _logs(run: Run) -> dict[str, Path]:
    """Every log of the run by its process' name."""
    from dynamo_mlperf.slurm.job_output import output_file

    output = output_file(run)
    return ({JOB: output} if output else {}) | _written(run.root)


def _written(root: Path) -> dict[str, Path]:
    """The logs of a run's processes by their names."""
    from dynamo_mlperf.files import RunPaths

    return {path.stem: path for path in sorted(RunPaths(root).logs.glob("*.log"))}


def _one(worker: str, logs: Mapping[str, Path], run: Run) -> Path:
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.job.held import called
    from dynamo_mlperf.topology.strict import nearest

    if worker in logs:
        return logs[worker]
    if run.held_by and worker in _written(Path(run.held_by)):
        holder = called(Path(run.held_by))
        raise ConfigError(
            f"{run.name} has no log {worker!r} before its end: run {holder}, which holds its engines, has it",
            f"dynamo-mlperf logs {holder} {worker}",
        )
    near = nearest(worker, list(logs))
    raise ConfigError(
        f"{run.name} has no log {worker!r}; there are {', '.join(logs) or 'none yet'}",
        f"dynamo-mlperf logs {run.name} {near}" if near else "name one of them",
    )


def _tell_harmless(run: Run, known: Mapping[str, list[str]]) -> None:
    """Say which of the lines that were shown look like faults and are none."""
    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.report.known_lines import harmless_lines, stop_time
    from dynamo_mlperf.report.run_files import Reader

    events = Reader().lines(RunPaths(run.root).events, "events.jsonl") if known else []
    for name, shown in known.items():
        for why, count in harmless_lines(shown, stop_time(events, name)).items():
            what = "1 line looks like a fault and is" if count == 1 else f"{count} lines look like faults and are"
            click.echo(f"note: {name}: {what} none: {why}", err=True)


def _show(printer: _Printer, logs: Mapping[str, Path], lines: int, following: Run | None, *, all_of_them: bool) -> None:
    """The last lines of each log, then, while it is followed, what comes; several logs have their names before them."""
    ends: dict[str, int] = {}
    for name, path in logs.items():
        text, ends[name] = _tail(path, lines)
        printer.show(name, text)
    if not any(ends.values()):
        what = f"the log of {next(iter(logs))} is empty" if len(logs) == 1 else "no process has written anything"
        click.echo(f"{what}{' so far' if following is not None else ''}", err=True)
    end = _End(following) if following is not None else None
    while following is not None and end is not None:
        over = end.reached()
        if all_of_them:
            logs = {**logs, **_written(following.root)}
        came = False
        for name, path in logs.items():
            text, ends[name] = _more(path, ends.get(name, 0), whole=over)
            printer.show(name, text)
            came = came or bool(text)
        if over and not came:
            return
        time.sleep(POLL_S)


class _Printer:
    """Prints pieces of logs, each under its log's name where there are several."""

    def __init__(self, *, several: bool) -> None:
        self._several = several
        self._last = ""
        self.known: dict[str, list[str]] = {}
        """Lines that were shown and may be harmless, by the name of their log."""

    def show(self, name: str, text: str) -> None:
        """Print a piece of a log."""
        from dynamo_mlperf.report.known_lines import looks_known
        from dynamo_mlperf.report.quantities import printable

        if not text:
            return
        if known := [line for line in text.splitlines() if looks_known(line)]:
            self.known.setdefault(name, []).extend(known)
        if self._several and name != self._last:
            click.echo(f"==> {name} <==")
            self._last = name
        click.echo(printable(_COLOUR.sub("", text)), nl=not text.endswith("\n"))


def _tail(path: Path, lines: int) -> tuple[str, int]:
    """The last lines of a file, and the place behind them; it reads no more of the file than they take."""
    if not path.is_file():
        return "", 0
    with path.open("rb") as source:
        end = source.seek(0, os.SEEK_END)
        start, block, step = end, b"", _TAIL_BLOCK_BYTES
        while start > 0 and block.count(b"\n") <= lines and len(block) < _MOST_BYTES:
            start, step = max(0, start - step), step * 2
            source.seek(start)
            block = source.read(end - start)
    whole = block.split(b"\n")
    last = whole[-lines - 1 :] if block.endswith(b"\n") else whole[-lines:]
    return b"\n".join(last if lines else []).decode(errors="replace"), end


def _more(path: Path, after: int, *, whole: bool) -> tuple[str, int]:
    """What has been written since, and the place behind it; a line that is not whole waits, unless it is the last."""
    if not path.is_file():
        return "", after
    with path.open("rb") as source:
        if source.seek(0, os.SEEK_END) < after:
            after = 0  # begun anew
        source.seek(after)
        block = source.read(_MOST_BYTES)
    taken = block if whole or len(block) == _MOST_BYTES else block[: block.rfind(b"\n") + 1]
    return taken.decode(errors="replace"), after + len(taken)


class _End:
    """Whether a run has ended: one on this machine by its own record, a job when Slurm says so.

    A job goes on to print after its controller has recorded its end. Slurm is asked seldom until then.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ask_s = 0.0

    def reached(self) -> bool:
        """Whether it has."""
        from dynamo_mlperf.slurm.runs import read_run
        from dynamo_mlperf.slurm.standing import standings

        there = (self._run.root / "events.jsonl").is_file()
        now = read_run(self._run.root, self._run.submitted) if there else self._run
        if (now.step or not now.job_id) and now.finished is not None:
            return True
        if time.monotonic() < self._ask_s:
            return False
        self._ask_s = time.monotonic() + (ASK_SELDOM_S if now.finished is None else ASK_S)
        (standing,), _ = standings([now])
        return standing.outcome.word not in {"WAITING", "RUNNING"}

"""A sweep as a report shows it: one row per split, and a picture of their rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from dynamo_mlperf.files import read_bounded
from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.run_files import parsed
from dynamo_mlperf.report.svg import WIDTH, Plot, line, picture, rect, text, y_axis
from dynamo_mlperf.report.words import in_words
from dynamo_mlperf.tuning.sweep import FAILED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SWEEP_SUMMARY = "sweep/summary.json"
_SKIPPED = "skipped"
_LEFT_OUT = {"pruned": _SKIPPED, "not_measured": "not measured"}
"""What people call splits without a result, by the summary's key."""
_ENDS = {"running": "not at its end", "stopped": "stopped before its end"}
_MOST_BYTES = 16_000_000
_LEFT, _RIGHT, _TOP, _HEIGHT = 64.0, WIDTH - 16.0, 34.0, 200.0
_BELOW = 58.0
_WIDEST = 90.0
_SHOWN = 40
_TICK, _LINE = 9.0, 20.0
_LABEL = 92.0
"""What the widest label below a bar takes."""


@dataclass(frozen=True)
class SweepRow:
    """One split.

    Attributes:
        split: As in `4P8D`.
        shares: Share of the split's GPUs by role, in percent: `50:50`.
        rate_qps: Its rate; None without one.
        per_gpu_qps: The same for each of its GPUs.
        predicted_qps: What a rehearsal predicted.
        located: Whether nothing much higher would hold.
        binding: The constraint that is broken first above it.
        bottleneck: The role that limits.
        why: How far above its rate the highest may be and what the engines told of it, or why there is no rate.
        restarts: Workers that were started for it.
        engine_s: Engine time that it took, in seconds.
        winner: Whether it has won.
        failed: Whether it did not measure: it may hold any rate.
    """

    split: str
    shares: str
    rate_qps: float | None
    per_gpu_qps: float | None
    predicted_qps: float | None
    located: bool
    binding: str
    bottleneck: str
    why: str
    restarts: float
    engine_s: float
    winner: bool
    failed: bool

    @property
    def rate_text(self) -> str:
        """Its rate for people; a lower bound is told as one."""
        if self.rate_qps is None:
            return q.NO_VALUE
        return q.rate(self.rate_qps) if self.located else f"≥ {q.rate(self.rate_qps)}"


@dataclass(frozen=True)
class LeftOut:
    """A split without a result.

    Attributes:
        split: As in `4P8D`.
        how: `skipped`, since it cannot win, or `not measured`, for another reason.
        reason: Why, for people.
    """

    split: str
    how: str
    reason: str


@dataclass(frozen=True)
class SweepView:
    """A sweep.

    Attributes:
        state: `running`, `stopped` or `finished`.
        simulated: `, simulated` where the engines were.
        rows: The measured splits, in the order of the file.
        left_out: Splits without a result.
        restarts: Workers started between splits.
        engine_s: Engine time of all, in seconds.
        resumed: What it goes on with, and of which run; empty where it was begun anew.
    """

    state: str
    simulated: str
    rows: tuple[SweepRow, ...]
    left_out: tuple[LeftOut, ...]
    restarts: float
    engine_s: float
    resumed: str = ""

    @property
    def predicted(self) -> bool:
        """Whether some split has a prediction."""
        return any(row.predicted_qps is not None for row in self.rows)

    @property
    def measured(self) -> int:
        """Splits whose rate, or that none holds, is known."""
        return sum(1 for row in self.rows if not row.failed)

    @property
    def unknown(self) -> list[str]:
        """How many splits may be better than they look, for people, by why."""
        failed = len(self.rows) - self.measured
        without = sum(1 for one in self.left_out if one.how != _SKIPPED)
        counts = {"failed to measure": failed, _LEFT_OUT["not_measured"]: without}
        return [f"{count} {how}" for how, count in counts.items() if count]

    def text(self) -> str:
        """What it cost, how it ended, and what its table's signs mean, for people."""
        skipped = sum(1 for one in self.left_out if one.how == _SKIPPED)
        told = [f"{q.many(self.measured, 'split')} measured", *([f"{skipped} {_SKIPPED}"] if skipped else [])]
        told += self.unknown
        told.append(f"{q.many(self.restarts, 'worker')} restarted, {q.duration(self.engine_s)} of engine time")
        end = _ENDS.get(self.state, "")
        below = any(row.rate_qps is not None and not row.located for row in self.rows)
        legend = "≥: it holds, but the highest rate that does was not located" if below else ""
        return "; ".join(one for one in (", ".join(told), end, self.resumed, legend) if one)


def read_sweep(root: Path) -> SweepView | None:
    """The sweep of a run directory; None where there is none, or its summary cannot be read."""
    path = root / SWEEP_SUMMARY
    try:
        value = parsed(read_bounded(path, _MOST_BYTES))
    except (OSError, ValueError):
        return None
    return view_of(value) if isinstance(value, dict) else None


def view_of(value: Mapping[str, Any]) -> SweepView:
    """What `summary.json` holds; what is not as it should be is left out."""
    order = {name: place for place, name in enumerate(_list(value.get("order"))) if isinstance(name, str)}
    rows = [_row(one, value.get("winner")) for one in _list(value.get("splits")) if isinstance(one, dict)]
    left_out = [
        LeftOut(str(one.get("split", "")), how, in_words(str(one.get("reason", ""))))
        for key, how in _LEFT_OUT.items()
        for one in _list(value.get(key))
        if isinstance(one, dict)
    ]
    return SweepView(
        str(value.get("state", "")),
        ", simulated" if value.get("class") == "rehearsal" else "",
        tuple(sorted(rows, key=lambda row: order.get(row.split, len(order)))),
        tuple(sorted(left_out, key=lambda one: order.get(one.split, len(order)))),
        q.number_or_none(value.get("restarts")) or 0.0,
        q.number_or_none(value.get("engine_seconds")) or 0.0,
        _resumed(_mapping(value.get("resumes"))),
    )


def _resumed(value: Mapping[str, Any]) -> str:
    """What a sweep took over, for people; empty where that was nothing."""
    told = [f"{name} was finished there" for name in _list(value.get("finished"))]
    probes = {name: q.number_or_none(count) or 0.0 for name, count in _mapping(value.get("probes")).items()}
    told += [f"{name} goes on with {q.many(count, 'probe')}" for name, count in probes.items()]
    return f"resumes {value.get('run')}: {', '.join(told)}" if told else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _row(value: Mapping[str, Any], winner: object) -> SweepRow:
    limits = _mapping(value.get("bottleneck"))
    rate = q.number_or_none(value.get("rate_qps"))
    name = str(value.get("split", ""))
    within, most = q.number_or_none(value.get("located_within")), []
    if rate is not None and within is not None:
        most = [f"no more than {q.rate(rate * (1.0 + within))} queries/s holds, with probability 0.9"]
    return SweepRow(
        name,
        _shares(value),
        rate,
        q.number_or_none(value.get("rate_qps_per_gpu")),
        q.number_or_none(value.get("predicted_qps")),
        value.get("located") is True,
        _word(value.get("binding_constraint")),
        _word(limits.get("role")),
        in_words("; ".join([*most, str(limits.get("text", "") if rate is not None else value.get("reason", ""))])),
        q.number_or_none(value.get("restarts")) or 0.0,
        q.number_or_none(value.get("engine_seconds")) or 0.0,
        winner == name,
        value.get("kind") == FAILED,
    )


def _word(value: object) -> str:
    return q.NO_VALUE if value is None else in_words(str(value))


def _shares(value: Mapping[str, Any]) -> str:
    degrees = _mapping(value.get("tensor_parallel"))
    gpus = [
        (q.number_or_none(count) or 0.0) * (q.number_or_none(degrees.get(role)) or 0.0)
        for role, count in _mapping(value.get("workers")).items()
    ]
    total = sum(gpus)
    return ":".join(f"{100 * one / total:.0f}" for one in gpus) if total else q.NO_VALUE


def sweep_chart(name: str, view: SweepView) -> str:
    """The rates of the splits as bars, in the order of the file, with a rehearsal's predictions as ticks.

    Args:
        name: Unique within the page.
        view: At least one row.
    """
    rows = view.rows[:_SHOWN]
    values = [value for row in rows for value in (row.rate_qps, row.predicted_qps) if value is not None]
    plot = Plot(_LEFT, _RIGHT, _TOP, _TOP + _HEIGHT, (0.0, float(len(rows))), (0.0, max(values, default=1.0) * 1.12))
    parts = [*y_axis(plot, "queries/s", grid=True), line(plot.left, plot.bottom, plot.right, plot.bottom, "axis")]
    step = (plot.right - plot.left) / len(rows)
    width = min(_WIDEST, step * 0.62)
    every = math.ceil(_LABEL / step)  # labels that would run into each other are left to the table
    first = next((place for place, row in enumerate(rows) if row.winner), 0)
    for place, row in enumerate(rows):
        middle = plot.left + step * (place + 0.5)
        parts += _bar(plot, row, middle, width)
        parts += _labels(plot, row, middle) if (place - first) % every == 0 else []
    told = "; ".join(f"{row.split} {row.rate_text}{' (winner)' if row.winner else ''}" for row in rows)
    title = f"Rate of each split{view.simulated}"
    return picture(name, plot.bottom + _BELOW, title, f"Highest rate that holds, in queries/s: {told}.", parts)


def _labels(plot: Plot, row: SweepRow, middle: float) -> list[str]:
    parts = [text(middle, plot.bottom + 17, row.split, "tick", "middle")]
    parts.append(text(middle, plot.bottom + 33, row.shares, "tick", "middle"))
    if row.bottleneck != q.NO_VALUE:
        parts.append(text(middle, plot.bottom + 49, f"{row.bottleneck} limits", "tick", "middle"))
    if row.rate_qps is not None:
        css, top = "mark-text judged" if row.winner else "tick", plot.y(row.rate_qps)
        predicted = top if row.predicted_qps is None else plot.y(row.predicted_qps)
        top = predicted if top - _LINE < predicted < top else top  # not across the tick of the prediction
        parts.append(text(middle, top - 6, row.rate_text, css, "middle"))
    return parts


def _bar(plot: Plot, row: SweepRow, middle: float, width: float) -> list[str]:
    parts = []
    if row.rate_qps is not None:
        top = plot.y(row.rate_qps)
        parts.append(rect(middle - width / 2, top, width, plot.bottom - top, "bars winner" if row.winner else "bars"))
    if row.predicted_qps is not None:
        at, half = plot.y(row.predicted_qps), width / 2 + min(_TICK, 0.2 * width)
        parts.append(line(middle - half, at, middle + half, at, "mark early"))
    return parts


def sweep_table(view: SweepView) -> Table:
    """The splits for a terminal, one a line, then those that were skipped."""
    table = Table.grid(padding=(0, 1))  # it has to fit 80 columns
    heads = ["split", "GPUs, %", "queries/s", "per GPU", *(["rehearsed"] if view.predicted else [])]
    heads += ["breaks first", "limits", "restarts", "engine s"]
    for head in heads:
        table.add_column(justify="left" if head in {"split", "breaks first", "limits"} else "right")
    table.add_row(*(Text(head, style="dim") for head in heads))
    for row in view.rows:
        cells = [row.split, row.shares, row.rate_text, _rate(row.per_gpu_qps)]
        cells += [_rate(row.predicted_qps)] if view.predicted else []
        cells += [row.binding, row.bottleneck, q.count(row.restarts), q.count(row.engine_s)]
        table.add_row(*(Text(q.printable(cell), style="bold green" if row.winner else "") for cell in cells))
    for one in view.left_out:
        table.add_row(Text(q.printable(one.split), style="dim"), "", Text(one.how, style="dim"))
    return table


def _rate(value: float | None) -> str:
    return q.NO_VALUE if value is None else q.rate(value)


def sweep_lines(view: SweepView) -> list[str]:
    """What a terminal shows below the table: what limits each split, and why some were skipped."""
    told = [f"{row.split}: {row.why}" for row in view.rows if row.why]
    return [*told, *(f"{one.split} {one.how}: {one.reason}" for one in view.left_out), view.text()]


def winner_line(view: SweepView) -> str | None:
    """The best split in a line for people; None where none holds any rate."""
    for row in view.rows:
        if row.winner and row.rate_qps is not None:
            best = f"best split: {row.split}, {row.rate_text} queries/s ({_rate(row.per_gpu_qps)} per GPU)"
            return ", ".join([f"{best}, of {view.measured} measured", *view.unknown])
    return None

"""Charts of latencies: numbers in, one SVG string out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.queries import percentile
from dynamo_mlperf.report.svg import WIDTH, Plot, line, n, picture, text, x_axis, y_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LEFT, _RIGHT = 64.0, WIDTH - 56.0
_BINS = 72
_CURVE_POINTS = 240
_ROW = 18.0
_PLOT_HEIGHT = 230.0
_BELOW = 44.0
_TAIL = 0.995
_FAR = 2.5
_ROOM_LEFT = 0.3
_EXACT_POINTS = 3000
_CELL = 4.0
_DENSITIES = (("few", 1), ("some", 4), ("many", np.inf))
_WINDOWS = 60
_WINDOW_QUERIES = 10


@dataclass(frozen=True)
class Mark:
    """A latency to mark: the limit, the judged percentile, or the early-stopping latency."""

    kind: Literal["limit", "judged", "early"]
    label: str
    value_ms: float


def axis_end(ascending: NDArray[np.float64], marks: Sequence[Mark]) -> float:
    """Where a latency axis ends, in ms: at the largest value, unless a few stragglers would squeeze all others.

    A mark counts where it is not far beyond the values; one further out is shown at the edge.
    """
    tail = percentile(ascending, _TAIL) or 0.0
    near = max([tail, *(mark.value_ms for mark in marks if mark.value_ms <= _FAR * tail)])
    largest = float(ascending[-1])
    end = max(near, largest if largest <= _FAR * near else near) * 1.06
    return end if end > 0 else 1.0


def distribution(name: str, title: str, ascending: NDArray[np.float64], marks: Sequence[Mark]) -> str:
    """Histogram and cumulative curve of latencies, with `marks` as labelled vertical lines.

    Args:
        name: Unique within the page.
        title: What is shown.
        ascending: Latencies in ms, ascending, at least one.
        marks: Latencies to mark.
    """
    end = axis_end(ascending, marks)
    top = _ROW * len(marks) + 26
    bottom = top + _PLOT_HEIGHT
    counts, _ = np.histogram(np.maximum(ascending, 0.0), bins=_BINS, range=(0.0, end))
    plot = Plot(_LEFT, _RIGHT, top, bottom, (0.0, end), (0.0, max(float(counts.max()), 1.0) * 1.04))
    shares = Plot(_LEFT, _RIGHT, top, bottom, (0.0, end), (0.0, 1.0))
    parts = [*_share_axis(shares), *y_axis(plot, "queries", grid=False), _bars(plot, counts), _curve(shares, ascending)]
    parts += _marks(plot, marks)
    parts += x_axis(plot, "latency, ms")
    described = "; ".join(_mark_text(mark) for mark in marks)
    beyond = int((ascending > end).sum())
    outside = f" {q.count(beyond)} of them lie beyond the right edge." if beyond else ""
    about = f"Latencies of {q.count(len(ascending))} answered queries.{outside} Marked: {described or 'nothing'}."
    return picture(name, bottom + _BELOW, title, about, parts)


def _share_axis(shares: Plot) -> list[str]:
    parts = [text(WIDTH, shares.top - 10, "share within", "axis-title", "end")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = shares.y(share)
        parts += [
            line(shares.left, at, shares.right, at, "grid"),
            text(shares.right + 8, at + 4, f"{share:.0%}", "tick"),
        ]
    return parts


def _bars(plot: Plot, counts: NDArray[np.int_]) -> str:
    width = (plot.right - plot.left) / len(counts)
    steps = [
        f"M{n(plot.left + width * place + 0.5)} {n(plot.bottom)}V{n(plot.y(count))}h{n(width - 1)}V{n(plot.bottom)}z"
        for place, count in enumerate(counts.tolist())
        if count
    ]
    return f'<path class="bars" d="{"".join(steps)}"/>'


def _curve(shares: Plot, ascending: NDArray[np.float64]) -> str:
    """The cumulative curve through evenly spaced ranks, cut at the plot's right edge."""
    ranks = np.unique(np.linspace(0, len(ascending) - 1, min(_CURVE_POINTS, len(ascending))).round().astype(int))
    places = [(max(float(ascending[rank]), 0.0), (rank + 1) / len(ascending)) for rank in ranks.tolist()]
    inside = [(x, y) for x, y in places if x <= shares.x_range[1]]
    points = [f"{n(shares.x(x))} {n(shares.y(y))}" for x, y in inside]
    start = f"M{n(shares.x(inside[0][0]))} {n(shares.bottom)}L" if inside else "M0 0"
    level = f"H{n(shares.right)}" if inside else ""
    return f'<path class="curve" d="{start}{" ".join(points)}{level}"/>'


def _marks(plot: Plot, marks: Sequence[Mark]) -> list[str]:
    """Vertical lines under their labels, each label on a row of its own: marked values are often close together.

    All labels stand on one side of their lines, and the order of the rows keeps every line clear of the others' labels.
    """
    off = [mark for mark in marks if mark.value_ms > plot.x_range[1]]
    inside = sorted((mark for mark in marks if mark not in off), key=lambda mark: mark.value_ms)
    to_left = bool(inside) and inside[0].value_ms > plot.x_range[1] * _ROOM_LEFT
    parts = [
        text(plot.right, _ROW * row + 14, f"{_mark_text(mark)}, further right →", f"mark-text {mark.kind}", "end")
        for row, mark in enumerate(off)
    ]
    for row, mark in enumerate(reversed(inside) if to_left else inside, start=len(off)):
        at, label_y = plot.x(mark.value_ms), _ROW * row + 14
        place, anchor = (at - 6, "end") if to_left else (at + 6, "start")
        parts += [
            line(at, label_y - 10, at, plot.bottom, f"mark {mark.kind}"),
            text(place, label_y, _mark_text(mark), f"mark-text {mark.kind}", anchor),
        ]
    return parts


def _mark_text(mark: Mark) -> str:
    value = q.limit_ms(mark.value_ms) if mark.kind == "limit" else q.milliseconds(mark.value_ms)
    return f"{mark.label} {value} ms"


def over_time(
    name: str,
    title: str,
    *,
    issued_s: NDArray[np.float64],
    latency_ms: NDArray[np.float64],
    failed: NDArray[np.bool_],
    limit_ms: float | None,
) -> str:
    """Latency of each query by its issue time, with the limit and the running median; failed queries on a line above.

    More than 3,000 queries are gathered into small cells whose opacity tells how many they hold; the cells of
    over-limit queries are kept apart, so that none of them vanishes in a crowd.

    Args:
        name: Unique within the page.
        title: What is shown.
        issued_s: Issue times in seconds, shape (n,); NaN for one that never was issued.
        latency_ms: Latencies, NaN where there is none, shape (n,).
        failed: Which queries failed, shape (n,).
        limit_ms: The limit, None where there is none.
    """
    known = np.isfinite(latency_ms) & np.isfinite(issued_s)
    times, values = issued_s[known], latency_ms[known]
    marks = [] if limit_ms is None else [Mark("limit", "limit", limit_ms)]
    end = axis_end(np.sort(values), marks) if len(values) else 1.0
    top = 58.0 if failed.any() else 32.0
    bottom = top + _PLOT_HEIGHT
    plot = Plot(_LEFT, _RIGHT, top, bottom, (0.0, float(np.nanmax(issued_s, initial=0.0)) or 1.0), (0.0, end))
    parts = [*y_axis(plot, "ms", grid=True), *_points(plot, times, values, limit_ms), _median_line(plot, times, values)]
    parts += _failed_lane(plot, issued_s[failed])
    parts += _limit_line(plot, limit_ms)
    parts += x_axis(plot, "issued, seconds after the first query")
    beyond, failures = int((values > end).sum()), int(failed.sum())
    outside = f" {q.count(beyond)} above {q.milliseconds(end)} ms are drawn on the upper edge." if beyond else ""
    over = "" if limit_ms is None else f" {q.count(int((values > limit_ms).sum()))} over the limit."
    about = f"{q.count(len(values))} answered and {q.count(failures)} failed queries.{over}{outside}"
    return picture(name, bottom + _BELOW, title, about, parts)


def _limit_line(plot: Plot, limit_ms: float | None) -> list[str]:
    if limit_ms is None:
        return []
    if limit_ms > plot.y_range[1]:
        label = f"limit {q.limit_ms(limit_ms)} ms, further up \N{UPWARDS ARROW}"
        return [text(plot.right, plot.top - 10, label, "mark-text limit", "end")]
    at = plot.y(limit_ms)
    return [
        line(plot.left, at, plot.right, at, "mark limit"),
        text(plot.right + 6, at + 4, "limit", "mark-text limit"),
    ]


def _points(plot: Plot, times: NDArray[np.float64], values: NDArray[np.float64], limit_ms: float | None) -> list[str]:
    over = values > (np.inf if limit_ms is None else limit_ms)
    return [
        *_dots(plot, times[~over], values[~over], "dots", thin=len(values) > _EXACT_POINTS),
        *_dots(plot, times[over], values[over], "dots over", thin=len(values) > _EXACT_POINTS),
    ]


def _dots(plot: Plot, times: NDArray[np.float64], values: NDArray[np.float64], css: str, *, thin: bool) -> list[str]:
    if not len(times):
        return []
    x = plot.left + times / plot.x_range[1] * (plot.right - plot.left)
    y = plot.bottom - np.clip(values, 0.0, plot.y_range[1]) / plot.y_range[1] * (plot.bottom - plot.top)
    if not thin:
        return [_dot_path(zip(x.tolist(), y.tolist(), strict=True), f"{css} some")]
    columns = np.minimum(x - plot.left, plot.right - plot.left - _CELL) // _CELL
    rows = (y - plot.top) // _CELL
    cells, counts = np.unique(np.stack((columns, rows)), axis=1, return_counts=True)
    places = cells * _CELL + np.array([[plot.left], [plot.top + _CELL / 2]])
    paths, least = [], 0.0
    for density, most in _DENSITIES:
        chosen = (counts > least) & (counts <= most)
        least = most
        if chosen.any():
            paths.append(_dot_path(zip(*places[:, chosen].tolist(), strict=True), f"{css} cells {density}", _CELL))
    return paths


def _dot_path(places: zip[tuple[float, float]], css: str, length: float = 0) -> str:
    """Dots as short strokes (of no length, with round ends): a third of the size of circle or rect elements."""
    return f'<path class="{css}" d="{"".join(f"M{n(x)} {n(y)}h{n(length)}" for x, y in places)}"/>'


def _median_line(plot: Plot, times: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    """The median of each of 60 time windows that hold at least 10 queries."""
    windows = np.minimum(times / plot.x_range[1] * _WINDOWS, _WINDOWS - 1).astype(int)
    points = []
    for window in range(_WINDOWS):
        inside = values[windows == window]
        if len(inside) >= _WINDOW_QUERIES:
            middle = (window + 0.5) / _WINDOWS * plot.x_range[1]
            points.append(f"{n(plot.x(middle))} {n(plot.y(min(float(np.median(inside)), plot.y_range[1])))}")
    return f'<path class="median" d="M{"L".join(points)}"/>' if len(points) > 1 else ""


def _failed_lane(plot: Plot, issued_s: NDArray[np.float64]) -> list[str]:
    """Crosses above the plot, one per failed query (per few pixels where they crowd), with their number.

    A query that never was issued has no place; it is in the number.
    """
    if not len(issued_s):
        return []
    issued = issued_s[np.isfinite(issued_s)]
    places = np.unique((issued / plot.x_range[1] * (plot.right - plot.left) / 3).round()) * 3 + plot.left
    crosses = "".join(f"M{n(x - 3)} 19l6 6m0-6l-6 6" for x in places.tolist())
    label = f"{q.count(len(issued_s))} failed"
    return [f'<path class="cross" d="{crosses}"/>', text(plot.left - 8, 26, label, "mark-text failed", "end")]

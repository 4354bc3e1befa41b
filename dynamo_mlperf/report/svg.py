"""SVG building blocks: escaped text, compact numbers, axes.

Colours are CSS classes, so that a page can be dark or light.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from dynamo_mlperf.report.quantities import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH = 960
"""Width of every picture in SVG units; a page scales it."""


@dataclass(frozen=True)
class Plot:
    """A rectangle in SVG units that data is drawn in, and the data range of each axis."""

    left: float
    right: float
    top: float
    bottom: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        first, last = self.x_range
        return self.left + (value - first) / ((last - first) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Vertical place of a value; larger values lie higher."""
        first, last = self.y_range
        return self.bottom - (value - first) / ((last - first) or 1.0) * (self.bottom - self.top)


def n(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> str:
    """A text element; `content` is untrusted and is escaped."""
    css_part = f' class="{css}"' if css else ""
    anchor_part = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{n(x)}" y="{n(y)}"{css_part}{anchor_part}>{escape(printable(content))}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<path class="{css}" d="M{n(x1)} {n(y1)}L{n(x2)} {n(y2)}"/>'


def rect(x: float, y: float, width: float, height: float, css: str, *, radius: float = 0) -> str:
    """A rectangle."""
    rounded = f' rx="{n(radius)}"' if radius else ""
    return f'<rect class="{css}" x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}"{rounded}/>'


def picture(name: str, height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """A whole SVG element, with the title and description that a screen reader speaks.

    Args:
        name: Unique within a page; letters, digits and hyphens.
        height: In SVG units.
        title: What it is.
        description: What it shows, with the numbers.
        parts: SVG markup.
    """
    return (
        f'<svg viewBox="0 0 {WIDTH} {n(height)}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(printable(title))}</title>'
        f'<desc id="{name}-d">{escape(printable(description))}</desc>{"".join(parts)}</svg>'
    )


def ticks(first: float, last: float, wanted: int = 6) -> list[float]:
    """Round values from `first` to `last`, about `wanted` of them, a step of 1, 2 or 5 times a power of ten apart."""
    span = last - first
    if not math.isfinite(span) or span <= 0:
        return [first]
    rough = span / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    start = math.ceil(first / step - 1e-9)
    return [position * step for position in range(start, math.floor(last / step + 1e-9) + 1)]


def tick_label(value: float) -> str:
    """A tick's text: thousands separators, and decimals only where the value has them."""
    rounded = round(value, 6)
    return f"{rounded:,.0f}" if rounded == round(rounded) else f"{rounded:,.6g}"


def x_axis(plot: Plot, title: str, label: Callable[[float], str] = tick_label) -> list[str]:
    """Base line, ticks and title below a plot."""
    parts = [line(plot.left, plot.bottom, plot.right, plot.bottom, "axis")]
    for value in ticks(*plot.x_range, wanted=8):
        at = plot.x(value)
        parts += [
            line(at, plot.bottom, at, plot.bottom + 4, "axis"),
            text(at, plot.bottom + 17, label(value), "tick", "middle"),
        ]
    parts.append(text((plot.left + plot.right) / 2, plot.bottom + 34, title, "axis-title", "middle"))
    return parts


def y_axis(plot: Plot, title: str, *, grid: bool) -> list[str]:
    """Tick labels left of a plot, its title above them, and grid lines where asked for."""
    parts = []
    for value in ticks(*plot.y_range, wanted=5):
        at = plot.y(value)
        if grid:
            parts.append(line(plot.left, at, plot.right, at, "grid"))
        parts.append(text(plot.left - 8, at + 4, tick_label(value), "tick", "end"))
    parts.append(text(plot.left - 8, plot.top - 10, title, "axis-title", "end"))
    return parts

"""The picture of a plan: nodes as rows, GPUs as cells, workers as colours; and the same as SVG.

Large plans repeat themselves, so nodes that look alike can be drawn as one row with their number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

from dynamo_mlperf.topology.spec import ROLE_LETTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.topology.memory import RoleMemory
    from dynamo_mlperf.topology.numa import Share
    from dynamo_mlperf.topology.plan import Plan, Worker

SHADES = 4
"""Colours of each role: a worker may touch one beside it and two above it, and must look different from each."""
MOST_ROWS = 24
"""Plans of more nodes are drawn with equal nodes as one row."""

Cells = tuple["Worker | None", ...]
"""The worker on each GPU of a node; None where there is none."""


@dataclass(frozen=True)
class Row:
    """Nodes that look alike.

    Attributes:
        nodes: Their positions, ascending; the first one is drawn.
        cells: The first one's GPUs.
    """

    nodes: tuple[int, ...]
    cells: Cells

    @property
    def others(self) -> str:
        """`x 63, nodes 1-63` where the row stands for several nodes; `1 to 125` where there are others between."""
        if len(self.nodes) == 1:
            return ""
        first, last = self.nodes[0], self.nodes[-1]
        span = f"{first}-{last}" if last - first + 1 == len(self.nodes) else f"{first} to {last}"
        return f"x {len(self.nodes)}, nodes {span}"


@dataclass(frozen=True)
class PlanFacts:
    """What is shown beside a plan.

    Attributes:
        memory: GPU memory of each role.
        notes: What a person should know, though nothing is wrong.
        shares: Cores and memory of each worker, by its name and node position; empty without a layout.
    """

    memory: Sequence[RoleMemory] = ()
    notes: Sequence[str] = ()
    shares: Mapping[tuple[str, int], Share] = field(default_factory=dict)


def cells_of(plan: Plan) -> list[Cells]:
    """The GPUs of each node position."""
    cells: list[list[Worker | None]] = [[None] * node.gpus for node in plan.nodes]
    for worker in plan.workers:
        for slot in worker.ranks:
            cells[slot.node][slot.gpu] = worker
    return [tuple(here) for here in cells]


def rows_of(plan: Plan, most_rows: int = MOST_ROWS) -> list[Row]:
    """One row per node; in plans of more than `most_rows` nodes, one per kind of node. The head's node is its own."""
    cells = cells_of(plan)
    if len(cells) <= most_rows:
        return [Row((node,), here) for node, here in enumerate(cells)]
    alike: dict[object, list[int]] = {}
    for node, here in enumerate(cells):
        alike.setdefault((node == plan.head_node, _kind(here)), []).append(node)
    return [Row(tuple(nodes), cells[nodes[0]]) for nodes in alike.values()]


def _kind(cells: Cells) -> tuple[object, ...]:
    """Equal for nodes that hold workers of the same roles at the same places; workers of one role are of one size."""
    numbers: dict[str, int] = {}
    return tuple(worker and (worker.role, numbers.setdefault(worker.name, len(numbers))) for worker in cells)


def shades(rows: Sequence[Row]) -> Mapping[str, int]:
    """A colour number (0 to `SHADES` - 1, within the role's colours) for each worker drawn, by its name.

    Workers of one role that touch, side by side or one above the other, have different ones.
    """
    touching: dict[str, set[str]] = {}
    order: list[str] = []
    for above, row in pairwise([None, *rows]):
        for place, worker in enumerate(row.cells if row else ()):
            if worker is None:
                continue
            if worker.name not in touching:
                order.append(worker.name)
            beside = [row.cells[place - 1] if row and place else None, above.cells[place] if above else None]
            for other in beside:
                if other is not None and other.name != worker.name and other.role == worker.role:
                    touching.setdefault(worker.name, set()).add(other.name)
            touching.setdefault(worker.name, set())
    found: dict[str, int] = {}
    for name in order:
        taken = {found[other] for other in touching[name] if other in found}
        free = [(len(found) + shade) % SHADES for shade in range(SHADES)]
        found[name] = next((shade for shade in free if shade not in taken), free[0])
    return found


def label(worker: Worker) -> str:
    """`P0`."""
    return f"{ROLE_LETTERS[worker.role]}{worker.index}"


# Dark enough for white letters on each.
_PALETTE: Mapping[str, tuple[str, ...]] = {
    "prefill": ("#1d6fb8", "#0b7d91", "#14508a", "#4a63c4"),
    "decode": ("#b8541d", "#b93549", "#8a3a10", "#94632a"),
    "aggregated": ("#1f7a4d", "#587612", "#13573a", "#23837b"),
}
_CELL, _GAP, _LEFT, _TOP = 44, 4, 90, 44
_LETTER_WIDTH = 7
"""Most that a letter of the notes takes on average, in pixels."""
_STYLE = "font:12px system-ui,sans-serif;fill:#222"


def as_svg(plan: Plan, title: str, notes: Sequence[str] = ()) -> str:
    """The picture as one SVG document that needs nothing else.

    Args:
        plan: The plan.
        title: Its first line.
        notes: What stands below the legend; long ones take several lines.
    """
    rows = rows_of(plan)
    colours = shades(rows)
    gpus = plan.nodes[0].gpus
    width = max(_LEFT + gpus * (_CELL + _GAP) + 230, 560)
    parts = [f'<text x="12" y="24" style="font:bold 14px system-ui,sans-serif;fill:#222">{escape(title)}</text>']
    for number, row in enumerate(rows):
        parts += _svg_row(row, _TOP + number * (_CELL // 2 + _GAP), colours, head=plan.head_node in row.nodes)
    below = _TOP + len(rows) * (_CELL // 2 + _GAP) + 22
    parts += _legend(plan, below)
    lines = [line for note in notes for line in _wrapped(note, width)]
    parts += [_text(left, below + 22 + 18 * number, line) for number, (left, line) in enumerate(lines)]
    height = below + 22 + 18 * len(lines) + 8
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect {size} fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _wrapped(note: str, width: int) -> list[tuple[int, str]]:
    """The note's lines that fit the width, each with where it begins; those after the first are set in."""
    lines = wrap(note, max(20, (width - 40) // _LETTER_WIDTH), break_on_hyphens=False) or [""]
    return [(28 if number else 12, line) for number, line in enumerate(lines)]


def _svg_row(row: Row, top: int, colours: Mapping[str, int], *, head: bool) -> list[str]:
    parts = [_text(12, top + 16, f"node {row.nodes[0]}")]
    for place, worker in enumerate(row.cells):
        left = _LEFT + place * (_CELL + _GAP)
        fill = _PALETTE[worker.role][colours[worker.name]] if worker else "#e6e6e6"
        text = label(worker) if worker else ""
        parts.append(f'<rect x="{left}" y="{top}" width="{_CELL}" height="{_CELL // 2}" rx="3" fill="{fill}"/>')
        if text:
            parts.append(
                f'<text x="{left + _CELL // 2}" y="{top + 16}" text-anchor="middle" '
                f'style="font:11px system-ui,sans-serif;fill:#fff">{text}</text>'
            )
    beside = "  ".join(filter(None, ("head" if head else "", row.others)))
    return [*parts, _text(_LEFT + len(row.cells) * (_CELL + _GAP) + 8, top + 16, beside)] if beside else parts


def _legend(plan: Plan, top: int) -> list[str]:
    parts, left = [], 12
    entries = [(_PALETTE[role][0], role) for role in dict.fromkeys(worker.role for worker in plan.workers)]
    for colour, word in [*entries, ("#e6e6e6", "no worker")]:
        parts.append(f'<rect x="{left}" y="{top - 11}" width="14" height="14" rx="3" fill="{colour}"/>')
        parts.append(_text(left + 20, top, word))
        left += 110
    return parts


def _text(left: int, top: int, content: str) -> str:
    return f'<text x="{left}" y="{top}" style="{_STYLE}">{escape(content)}</text>'

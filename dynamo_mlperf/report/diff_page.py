"""A comparison of two runs as one self-contained HTML page; every text from the runs is escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf import __version__
from dynamo_mlperf.report.diff_text import change_text, closing_lines, key_text, lacking_lines, side_text, value_text
from dynamo_mlperf.report.page import environment

if TYPE_CHECKING:
    from dynamo_mlperf.report.diff import Comparison


DIFF_MARK = "<title>What differs between two runs</title>"
"""By this a page of a comparison is known again."""


def render_diff(comparison: Comparison) -> str:
    """The page as HTML text: a table per section that differs, values whole."""
    sections = [
        (
            section,
            [(key_text(section, row), value_text(row.a), value_text(row.b), change_text(row)) for row in section.rows],
        )
        for section in comparison.sections
        if section.rows
    ]
    return (
        environment()
        .get_template("diff.html.j2")
        .render(
            sides=[
                (side_text(name, side), side.run_dir, lacking_lines(side))
                for name, side in (("A", comparison.a), ("B", comparison.b))
            ],
            sections=sections,
            closing=closing_lines(comparison),
            version=__version__,
        )
    )

"""Numbers on the command line: finite ones. `nan` passes every comparison that would refuse it; `inf` never ends."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import Context, Parameter


class FiniteRange(click.FloatRange):
    """A number within bounds, and neither `nan` nor `inf`."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:  # noqa: ANN401 - click's own
        """The number; a usage error where it is none."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


SECONDS = FiniteRange(min=0)
"""A time to wait; 0 does not wait."""

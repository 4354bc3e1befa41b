"""What a topology file says about its engines after the measurement: whether they stay up for further ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from dynamo_mlperf.topology.document import Problem
from dynamo_mlperf.topology.measuring import PositiveFloat
from dynamo_mlperf.topology.strict import StrictModel

if TYPE_CHECKING:
    from dynamo_mlperf.topology.spec import Topology

_MAX_S = 1e7


class Hold(StrictModel):
    """After the measurement the engines stay up, and other runs measure through them."""

    idle_s: PositiveFloat = Field(
        default=3600.0, le=_MAX_S, description="Seconds without a measurement after which the engines are let go"
    )

    def text(self) -> str:
        """For people."""
        return f"the engines stay up after that, until nobody has measured for {self.idle_s:g} s"


def _yes_or_no(block: object) -> object:
    """`hold:` and `hold: yes` hold with every default, `hold: no` does not."""
    if block is None or block is True:
        return {}
    return None if block is False else block


HoldBlock = Annotated[Hold | None, BeforeValidator(_yes_or_no)]
"""As a key of the topology file."""


def hold_problems(topology: Topology) -> list[Problem]:
    """Held engines are all of one plan: nothing may replace or drop workers meanwhile."""
    if topology.hold is None:
        return []
    if topology.sweep is not None:
        text = "a sweep changes its workers from split to split; hold a file with the split of your choice"
        return [Problem(("hold",), text)]
    for name, role in topology.roles.present():
        if role.on_worker_loss != "fail" or role.drop_stragglers:
            key = "on_worker_loss" if role.on_worker_loss != "fail" else "drop_stragglers"
            text = f"held engines stay as planned, and roles.{name}.{key} lets some go; leave one of the two out"
            return [Problem(("hold",), text)]
    return []

"""What a topology file says about a sweep: its splits, how each is measured, and what is left out."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.measuring import PathText, PositiveFloat
from dynamo_mlperf.topology.strict import StrictModel

if TYPE_CHECKING:
    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.topology.spec import Topology

EVERY = "all"
"""In place of a list: every split that uses the whole grant."""
_MAX_QPS = 1e6
_MAX_S = 1e7
_MOST_SPLITS = 1000
_MOST_RATES = 100

Rate = Annotated[PositiveFloat, Field(le=_MAX_QPS)]


def _different(values: list[Any]) -> list[Any]:
    twice = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if twice is not None:
        raise ValueError(f"{twice} is listed twice")
    return values


def _all_defaults(block: object) -> object:
    """`sweep:` without a value is a sweep with every default, not one that is left out."""
    return {} if block is None else block


def _listed(splits: object) -> object:
    """`all` is a list of that one word."""
    return [EVERY] if splits == EVERY else splits


class Sweep(StrictModel):
    """Several splits of the allocation, one after another, instead of one; each is searched for its highest rate."""

    splits: Annotated[
        list[str],
        Field(min_length=1, max_length=_MOST_SPLITS),
        AfterValidator(_different),
        BeforeValidator(_listed),
    ] = Field(
        default=[EVERY],
        description="Splits such as [6P4D, 5P6D, 4P8D], with another TP 4P4x4D2; all: those that fill the grant",
    )
    rates: Annotated[list[Rate], Field(min_length=1, max_length=_MOST_RATES), AfterValidator(_different)] | None = (
        Field(default=None, description="Full-length runs at these target_qps alone, instead of a search")
    )
    time_budget_s: PositiveFloat | None = Field(
        default=None, le=_MAX_S, description="Seconds for the search of one split; left out, its share of what is left"
    )
    prune: bool = Field(default=True, description="Whether splits that cannot win by what was measured are skipped")
    prediction: PathText | None = Field(
        default=None, description="A prediction.json of a rehearsal: gives the order, and each search its first rate"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.rates is not None and self.time_budget_s is not None:
            raise ValueError("rates and time_budget_s are both given; the budget is for searches, leave one out")
        return self


def scaled_sweep(topology: Topology, nodes: int) -> Sweep | None:
    """The file's `sweep:` with the workers of each listed split in proportion to another node count.

    Raises:
        ConfigError: One leaves no whole number of workers; names node counts that work for all.
    """
    from dynamo_mlperf.topology.role_splits import parse_split, times

    block, head = topology.sweep, topology.nodes.count - topology.worker_nodes
    if block is None or block.splits == [EVERY]:
        return block
    ratio = Fraction(nodes - head, topology.worker_nodes)
    found = []
    for text in block.splits:
        split = times(parse_split(text, topology), ratio, topology)
        if split is None:
            near = max(1, int(ratio))
            working = ", ".join(str(head + count * topology.worker_nodes) for count in (near, near + 1))
            raise ConfigError(
                f"sweep.splits: {text} on {topology.nodes.count} nodes does not scale to {nodes} in whole workers",
                f"--nodes {working}, or without --nodes list splits of that node count in a file for it",
            )
        found.append(split.name)
    return block.model_copy(update={"splits": found})


SweepBlock = Annotated[Sweep | None, BeforeValidator(_all_defaults)]
"""As a key of the topology file."""


def splits_of(topology: Topology) -> tuple[RoleSplit, ...]:
    """The splits of a file in the order of its `sweep:` block; without one, its own alone.

    Raises:
        ConfigError: One is no split of its roles, or does not fit, or is listed twice under two names.
    """
    from dynamo_mlperf.topology.role_splits import all_splits, own_split, parse_split, with_split

    if topology.sweep is None:
        return (own_split(topology),)
    if topology.sweep.splits == [EVERY]:
        return all_splits(topology)
    found: dict[str, RoleSplit] = {}
    for text in topology.sweep.splits:
        split = parse_split(text, topology)
        if split.name in found:
            raise ConfigError(f"sweep.splits: {text} is {split.name}, which is listed already", "leave one out")
        with_split(topology, split)
        found[split.name] = split
    return tuple(found.values())

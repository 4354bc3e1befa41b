"""What a topology file says about the search for the highest rate: its range, its cost, and rest between probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from dynamo_mlperf.topology.measuring import PathText, PositiveFloat
from dynamo_mlperf.topology.strict import StrictModel

_MAX_QPS = 1e6
_MAX_S = 1e7

Rate = Annotated[PositiveFloat, Field(le=_MAX_QPS)]


def all_defaults(block: object) -> object:
    """`search:` without a value is a search with every default, not one that is left out."""
    return {} if block is None else block


class Search(StrictModel):
    """The highest rate that holds is looked for, instead of one that is given."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("min", "min_qps", "lower"), "did you mean low?"),
        **dict.fromkeys(("max", "max_qps", "upper"), "did you mean high?"),
    }
    """What people write for keys of this block."""

    low: Rate | None = Field(default=None, description="Lowest target_qps that is of use")
    high: Rate | None = Field(default=None, description="Highest target_qps that is probed")
    start: Rate | None = Field(
        default=None, description="First target_qps, a prediction; left out, measure.target_qps, else by the range"
    )
    prediction: PathText | None = Field(
        default=None, description="A prediction.json of a rehearsal, instead of start: this split's rate is taken"
    )
    tolerance: Annotated[float, Field(ge=0.001, le=0.2)] = Field(
        default=0.01,
        description="How closely rates are placed, as a share; the answer says how far above it the highest may be",
    )
    time_budget_s: PositiveFloat | None = Field(
        default=None, le=_MAX_S, description="Seconds for the whole search; left out, what the job's time limit leaves"
    )
    rest_s: PositiveFloat = Field(
        default=60.0, le=3600, description="Seconds that the engines may take to come to rest between probes"
    )
    restart_workers: bool = Field(
        default=True, description="Whether workers that do not come to rest are restarted; if not, the run fails"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        low, high, start = self.low, self.high, self.start
        if low is not None and high is not None and low >= high:
            raise ValueError(f"low {low:g} is not below high {high:g}: give a lower low or a higher high")
        if start is not None and not (low or 0.0) <= start <= (high or start):
            raise ValueError(f"start {start:g} is outside low and high: give one between them")
        if start is not None and self.prediction is not None:
            raise ValueError("start and prediction are both given; leave one out")
        return self

    def text(self) -> str:
        """For people: `rates from 5 up to 400 queries/s, first 40, placed to 1 %, as long as the job's time lasts`."""
        low = "the lowest that can give a valid run" if self.low is None else f"{self.low:g}"
        high = "the highest that passes" if self.high is None else f"{self.high:g} queries/s"
        start = f", first {self.start:g}" if self.start else ""
        start = f", first what {self.prediction} predicts" if self.prediction else start
        budget = "as long as the job's time lasts"
        budget = budget if self.time_budget_s is None else f"{self.time_budget_s:g} s at most"
        return f"rates from {low} up to {high}{start}, placed to {100 * self.tolerance:g} %, {budget}"


SearchBlock = Annotated[Search | None, BeforeValidator(all_defaults)]
"""As a key of the topology file."""

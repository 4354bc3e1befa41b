"""What a measurement will be, by its file alone: its class and why, and whether it can hold enough queries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.context import class_of
from dynamo_mlperf.job.wanted_settings import decide_settings
from dynamo_mlperf.load.enough import enough_queries
from dynamo_mlperf.record import FULL_RULES

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass
    from dynamo_mlperf.topology.spec import Topology

_FASTEST_QPS = 1e6
"""Where a search has no upper end: the higher the rate, the shorter a full run."""
_ANY_SAMPLES = 10**9
"""In settings that are wanted though the data set is not at hand."""


def expected_settings(topology: Topology, base_dir: Path) -> LoadSettings:
    """LoadGen's settings by the file; the data set need not be there.

    Raises:
        ConfigError: A line of its `user_conf` is of no use.
    """
    return decide_settings(topology, _ANY_SAMPLES, base_dir)


def why_class(topology: Topology) -> str:
    """Why the result will be of its class, for people."""
    if topology.engine == "mocker":
        return "engine: mocker simulates the engines; says nothing about hardware, cannot be submitted"
    if topology.reduced is None:
        return FULL_RULES
    given = topology.reduced.model_dump(exclude_none=True)
    lowered = ", ".join(f"{name} {value:g}" for name, value in given.items())
    return f"the file lowers {lowered}; for tuning and demos, cannot be submitted"


def check_enough(topology: Topology, base_dir: Path) -> str | None:
    """Whether the test can hold as many queries as the early-stopping rule needs; a search finds a rate that does.

    Returns:
        A warning with both numbers; None where there are enough, or where no rate is given yet and a search has the
        time for a full run.

    Raises:
        ConfigError: There are too few, and the result would be official: GPUs would be booked for an INVALID run.
    """
    rates = topology.sweep.rates if topology.sweep is not None else None
    if topology.finds_rate and not rates:
        return _too_little_time(topology, base_dir)
    settings = expected_settings(topology, base_dir)
    settings = replace(settings, target_qps=min(rates)) if rates else settings
    return refuse_too_few(settings, topology.measure.client, class_of(topology))


def _too_little_time(topology: Topology, base_dir: Path) -> str | None:
    """A warning where a search's budget holds no full run at any rate; one that goes on may have made its own."""
    blocks = (topology.search, topology.sweep)
    given = [block.time_budget_s for block in blocks if block is not None and block.time_budget_s is not None]
    if not given or topology.measure.scenario == "Offline":
        return None
    # What these import takes long, and hardly any file gives a budget.
    from dynamo_mlperf.job.rate_search import search_settings
    from dynamo_mlperf.tuning.limits import no_room

    settings = search_settings(topology, expected_settings(topology, base_dir))
    settings = replace(settings, time_budget_s=min(given))
    found = no_room(settings, _FASTEST_QPS)
    return None if found is None else f"no search that begins can end with an answer: {found.reason}; {found.action}"


def refuse_too_few(settings: LoadSettings, client: str, result_class: ResultClass) -> str | None:
    """The same of the settings of a performance test."""
    enough = enough_queries(settings, "endpoints" if client == "endpoints" else "loadgen")
    if not enough.too_few:
        return None
    if result_class == "official":
        raise ConfigError(f"too few queries: {enough.what}", f"give {enough.action}")
    return f"too few queries to be VALID: {enough.what}; give {enough.action}"

"""`hold:` in a topology file: what it may say, and what it does not go with."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dynamo_mlperf.cli.plan_measure import measure_facts, measure_lines
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.topology.topology_texts import simulated

ONE: dict[str, Any] = {"workers": 1}


def parsed(**blocks: object) -> Topology:
    return parse_topology(yaml.safe_dump(simulated(**blocks)))


@pytest.mark.parametrize(("block", "idle_s"), [(None, 3600.0), (True, 3600.0), ({}, 3600.0), ({"idle_s": 5}, 5.0)])
def test_a_block_without_values_has_the_defaults(block: object, idle_s: float) -> None:
    hold = parsed(hold=block).hold
    assert hold is not None
    assert hold.idle_s == idle_s


def test_a_file_without_it_holds_nothing() -> None:
    assert parsed().hold is None
    assert parsed(hold=False).hold is None


def test_the_plan_says_so(tmp_path: Any) -> None:
    held = parsed(hold={"idle_s": 90})
    assert measure_lines(held, tmp_path)[-1] == (
        "hold        the engines stay up after that, until nobody has measured for 90 s"
    )
    assert measure_facts(held, tmp_path)["hold"] == {"idle_s": 90.0}


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ({"hold": {"idle_s": 0}}, "hold.idle_s: wanted more than 0"),
        ({"hold": {"for_s": 5}}, "hold.for_s: no such key"),
        ({"hold": "an hour"}, "hold: wanted keys and values, got 'an hour'"),
        ({"hold": {}, "sweep": {"splits": ["1P1D"]}}, "a sweep changes its workers"),
        ({"hold": {}, "roles": {"aggregated": {**ONE, "on_worker_loss": "drop"}}}, "roles.aggregated.on_worker_loss"),
        ({"hold": {}, "roles": {"aggregated": {**ONE, "drop_stragglers": True}}}, "roles.aggregated.drop_stragglers"),
    ],
)
def test_what_does_not_go_with_it_is_refused(blocks: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace(".", r"\.")):
        parsed(**blocks)

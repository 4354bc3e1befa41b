"""Ports that stagers may try: the site's, free ones, and another place for each node and run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.job.weights import PORTS_TRIED, _ports


def _job(low: int, high: int, run_id: str = "run-1") -> Any:
    return SimpleNamespace(site=SimpleNamespace(port_range=[low, high]), run_id=run_id)


def test_ports_are_the_sites_and_free() -> None:
    busy = dict.fromkeys(range(20000, 20010), 1)
    ports = _ports(_job(20000, 20015), 0, busy)
    assert sorted(ports) == list(range(20010, 20016))


def test_nodes_and_runs_begin_elsewhere() -> None:
    found = [_ports(_job(20000, 32000, run), position, {}) for run in ("run-1", "run-2") for position in range(3)]
    assert len(set(found)) == len(found)
    assert {len(ports) for ports in found} == {PORTS_TRIED}
    assert found[0] == _ports(_job(20000, 32000), 0, {})


def test_a_range_without_a_free_port_is_refused() -> None:
    with pytest.raises(SetupError, match="no free port in 20000-20001 on node 3"):
        _ports(_job(20000, 20001), 3, {20000: 1, 20001: 2})

"""Node lists as Slurm writes them, without Slurm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.slurm.hostlist import expand

CASES = {
    "gb200-[001-003,007],login1": ["gb200-001", "gb200-002", "gb200-003", "gb200-007", "login1"],
    "b04-[09-10]": ["b04-09", "b04-10"],
    "node[01-03,07]-ib": ["node01-ib", "node02-ib", "node03-ib", "node07-ib"],
    "r[1-2]n[01-02]": ["r1n01", "r1n02", "r2n01", "r2n02"],
    "cn-m11-16": ["cn-m11-16"],
    "a,b[001,003],c": ["a", "b001", "b003", "c"],
    "a001,a2": ["a001", "a2"],
    "n2,n1": ["n2", "n1"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[099-101]": ["n099", "n100", "n101"],
}


@pytest.mark.parametrize(("text", "hosts"), CASES.items())
def test_lists(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize("text", ["node[01", "n[]", "n[3-1]", "", "n[1-"])
def test_malformed_lists_are_refused_with_their_text(text: str) -> None:
    with pytest.raises(ConfigError, match="node list"):
        expand(text)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True), st.integers(1, 4))
def test_padding_and_order_are_kept(numbers: list[int], width: int) -> None:
    hosts = [f"gpu-{number:0{width}d}" for number in numbers]
    assert expand(",".join(hosts)) == hosts

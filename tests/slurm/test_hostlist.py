"""Node lists as Slurm writes them, without Slurm."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

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
    "n[8-9,3-4]": ["n8", "n9", "n3", "n4"],
    "r[2,1]n[01-02]-ib": ["r2n01-ib", "r2n02-ib", "r1n01-ib", "r1n02-ib"],
}


@pytest.mark.parametrize(("text", "hosts"), CASES.items())
def test_lists(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        *("node[01", "n[]", "n[3-1]", "n[3-1],n5", "", "n[1-", "n1]", "n[1-2", "n[a-b]", "n[1--2]", "n[[1]]", "a b"),
        *(",n1", "n1,", "n1,,n2", "n[0-99999999]", "n[0-999]x[0-999]"),
    ],
)
def test_malformed_lists_are_refused_with_their_text(text: str) -> None:
    with pytest.raises(ConfigError, match="node list"):
        expand(text)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20, unique=True), st.integers(1, 4))
def test_padding_and_order_are_kept(numbers: list[int], width: int) -> None:
    hosts = [f"gpu-{number:0{width}d}" for number in numbers]
    assert expand(",".join(hosts)) == hosts


def random_list(choice: random.Random) -> str:
    """A node list as Slurm takes it: padded and plain ranges in any order, one or two brackets, single names.

    None with a suffix behind the bracket: Slurm 22.05 refuses it.
    """

    def numbers(width: int) -> str:
        parts = []
        for _ in range(choice.randint(1, 3)):
            first = choice.randint(0, 10**width - 4)
            last = first + choice.randint(0, 3)
            parts.append(f"{first:0{width}d}" + (f"-{last:0{width}d}" if last > first else ""))
        return f"[{','.join(parts)}]"

    def part() -> str:
        stem = choice.choice(["n", "gb200-", "rack1-node", "cn-m11-", "b04-"])
        kind = choice.randint(0, 2)
        width = choice.randint(1, 4)
        if kind == 0:
            return f"{stem}{choice.randint(0, 99):0{width}d}"
        return stem + numbers(width) + ("" if kind == 1 else f"x{numbers(1)}")

    return ",".join(part() for _ in range(choice.randint(1, 4)))


@pytest.mark.slurm
def test_200_random_lists_as_scontrol_expands_them(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=nowhere\nNodeName=n1\n")
    environment = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    choice = random.Random(38)
    texts = [random_list(choice) for _ in range(200)]
    script = 'while read -r list; do scontrol show hostnames "$list" | tr "\\n" " "; echo; done'
    said = subprocess.run(
        ["bash", "-c", script],
        input="\n".join(texts) + "\n",
        text=True,
        capture_output=True,
        check=True,
        env=environment,
    )
    lines = said.stdout.splitlines()
    assert len(lines) == 200
    assert {text: expand(text) for text in texts} == {
        text: line.split() for text, line in zip(texts, lines, strict=True)
    }

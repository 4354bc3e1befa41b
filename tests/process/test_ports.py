"""Blocks of ports: no two runs of a host hold the same, from the moment they choose until they end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process import ports
from dynamo_mlperf.process.ports import PortClaim, claimed

LOW = 1100
"""Below any site's range: these tests claim ports and never listen on one."""

BLOCKS = [range(LOW, LOW + 10), range(LOW + 10, LOW + 20), range(LOW + 20, LOW + 30)]


def test_a_claimed_block_is_not_given_twice_until_it_is_released() -> None:
    one, two, three = PortClaim(), PortClaim(), PortClaim()
    try:
        assert one.take(BLOCKS, ()) == BLOCKS[0]
        assert two.take(BLOCKS, ()) == BLOCKS[1]
        assert (BLOCKS[0], os.getpid()) in set(claimed())
        one.release()
        assert three.take(BLOCKS, ()) == BLOCKS[0]
    finally:
        for claim in (one, two, three):
            claim.release()
    assert not {block for block, _pid in claimed()} & set(BLOCKS)


@pytest.mark.parametrize(("first", "other"), [(LOW + 5, BLOCKS[2]), (LOW + 9, BLOCKS[2]), (LOW + 10, BLOCKS[0])])
def test_blocks_of_another_size_do_not_overlap(first: int, other: range) -> None:
    wide, narrow = PortClaim(), PortClaim()
    try:
        assert wide.take([range(first, first + 10 + (first < LOW + 10))], ()) is not None
        assert narrow.take(BLOCKS, ()) == other
    finally:
        wide.release()
        narrow.release()


def test_a_block_with_a_busy_port_is_passed_over() -> None:
    claim = PortClaim()
    try:
        assert claim.take(BLOCKS, {LOW + 9, LOW + 10}) == BLOCKS[2]
        assert PortClaim().take(BLOCKS, {LOW, LOW + 19}) is None
    finally:
        claim.release()


def test_a_claim_ends_with_its_process() -> None:
    script = f"""import time
from dynamo_mlperf.process.ports import PortClaim
claim = PortClaim()
claim.take([range({LOW}, {LOW + 10})], ())
print("held", flush=True)
time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert PortClaim().take(BLOCKS[:1], ()) is None
        finally:
            other.kill()
    claim = PortClaim()
    assert claim.take(BLOCKS[:1], ()) == BLOCKS[0]
    claim.release()


def test_one_that_never_ends_choosing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "CHOOSING_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as choosing:
        choosing.bind("\0dynamo-mlperf-ports-choosing")
        with pytest.raises(SetupError, match=r"choosing its ports for 0\.05 s"):
            PortClaim().take(BLOCKS, ())

"""Processes that work is spread over end with whoever started them, however early that ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import os, signal
from dynamo_mlperf.process.spread import Spread
spread = Spread(abs, 2)
spread.put(-1)
print(*(child for child in open(f"/proc/self/task/{os.getpid()}/children").read().split()), flush=True)
if WAIT:
    list(spread.rest())
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize("wait", [False, True], ids=["while they start", "while they wait"])
def test_none_outlives_its_parent(wait: bool) -> None:  # noqa: FBT001
    program = PROGRAM.replace("WAIT", str(wait))
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    assert done.returncode == -15
    children = [Path(f"/proc/{number}") for number in done.stdout.decode().split()]
    assert children
    end = time.monotonic() + 60
    while any(_lives(child) for child in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [child for child in children if _lives(child)]


def _lives(process: Path) -> bool:
    try:
        return os.path.exists(process) and process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"  # noqa: PTH110
    except OSError:
        return False

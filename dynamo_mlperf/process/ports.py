"""A block of ports that is this run's own on this host, from the moment it is chosen.

A port is seen to be taken only once somebody listens there, and engines listen a good while after their ports were
chosen. Until then a name speaks for the block: an abstract Unix socket (unix(7)), which every process of the host's
network namespace can see in /proc/net/unix and which goes away with the process that holds it, however that ends.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

CHOOSING_S = 10.0
"""How long another run of this host may take to choose its ports before we stop waiting for it."""
_NAME = "dynamo-mlperf-ports"
_CLAIM = re.compile(rf"@{_NAME}-(\d+)-(\d+)-(\d+)$")
_POLL_S = 0.01


class PortClaim:
    """This run's claim; holds nothing until it has found a block."""

    def __init__(self) -> None:
        self._held: socket.socket | None = None

    def take(self, blocks: Iterable[range], busy: Collection[int]) -> range | None:
        """Claim the first block in which no port is busy or another run's; None when there is none.

        Raises:
            SetupError: Another run of this host has been choosing for CHOOSING_S seconds.
        """
        with _named("choosing", CHOOSING_S):
            taken = list(claimed())
            for block in blocks:
                others = (claim for claim, _pid in taken if claim.start < block.stop and block.start < claim.stop)
                if any(others) or any(port in busy for port in block):
                    continue
                self._held = _named(f"{block.start}-{block.stop}-{os.getpid()}", 0.0)
                return block
        return None

    def release(self) -> None:
        """Let others have the block."""
        if self._held is not None:
            self._held.close()
            self._held = None


def claimed() -> Iterator[tuple[range, int]]:
    """The blocks that runs of this host have claimed, each with the run's process id."""
    for line in Path("/proc/net/unix").read_text().splitlines():
        found = _CLAIM.search(line)
        if found:
            first, end, pid = (int(number) for number in found.groups())
            yield range(first, end), pid


def _named(what: str, wait_s: float) -> socket.socket:
    """Hold the name alone; it is free again once the socket is closed."""
    deadline = time.monotonic() + wait_s
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    while True:
        try:
            held.bind(f"\0{_NAME}-{what}")
        except OSError as problem:
            if time.monotonic() > deadline:
                held.close()
                raise SetupError(
                    f"another run of this host has been choosing its ports for {wait_s:g} s ({problem.strerror})",
                    "look for a dynamo-mlperf process that hangs or is stopped",
                ) from problem
            time.sleep(_POLL_S)
        else:
            return held

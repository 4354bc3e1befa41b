"""Ports for programs that are told where to listen."""

from __future__ import annotations

import secrets

from dynamo_mlperf.process.node_agent import busy_port

_LOW, _HIGH = 10_000, 14_000
"""Below what Linux hands out by itself (32768 and up, ip(7)) and what runs take: nobody comes to have one meanwhile."""


def free_block(count: int) -> range:
    """So many ports in a row on which nobody listens; where it begins differs from call to call."""
    while True:
        start = _LOW + secrets.randbelow(_HIGH - _LOW - count)
        block = range(start, start + count)
        if busy_port(block) is None:
            return block

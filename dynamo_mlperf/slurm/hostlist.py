"""Slurm's node lists, without asking Slurm."""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet, NodeSetParseError

from dynamo_mlperf.errors import ConfigError


def expand(text: str) -> list[str]:
    """The hosts of a Slurm node list such as `gb200-[001-003,007],login1`, in the order of the list.

    Raises:
        ConfigError: The list is not well formed.
    """
    try:
        hosts = [host for part in _split(text) for host in NodeSet(part, autostep=None)]
    except NodeSetParseError as problem:
        raise ConfigError(f"node list {text!r}: {problem}", "give it as Slurm prints it, such as n[01-04]") from problem
    if not hosts:
        raise ConfigError(f"node list {text!r} names no node", "give it as Slurm prints it, such as n[01-04]")
    return hosts


def _split(text: str) -> list[str]:
    """Split at commas outside brackets: folding a whole list would sort it, and positions must keep its order."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]

"""Slurm's node lists, without asking Slurm.

As `scontrol show hostnames` expands them: in the order of the list, which is the order of node positions, several
brackets to a name, numbers as wide as the first of their range. A text behind the last bracket is taken too, which
Slurm 22.05 refuses. Not by a node set library: sets sort what stands in a bracket, and `n[8-9,3-4]` begins at n8.
"""

from __future__ import annotations

import itertools
import re

from dynamo_mlperf.errors import ConfigError

_MOST = 100_000
_ACTION = "give it as Slurm prints it, such as n[01-04]"


def expand(text: str) -> list[str]:
    """The hosts of a Slurm node list such as `gb200-[001-003,007],login1`, in the order of the list.

    Raises:
        ConfigError: The list is not well formed, or names more hosts than any cluster has.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+|[,\[]", text):
        if part == ",":
            continue
        hosts += _hosts(part, text)
        if len(hosts) > _MOST:
            raise ConfigError(f"node list {text!r} names more than {_MOST} nodes", _ACTION)
    if not hosts or text.startswith(",") or text.endswith(",") or ",," in text:
        raise ConfigError(f"node list {text!r} names no node in some place", _ACTION)
    return hosts


def _hosts(part: str, text: str) -> list[str]:
    """The hosts of a name with any number of brackets."""
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if any(re.search(r"[\[\]\s]", name) for name in pieces[::2]):
        raise ConfigError(f"node list {text!r}: {part!r} is no node's name", _ACTION)
    choices = [[piece] if at % 2 == 0 else _numbers(piece, text) for at, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in itertools.islice(itertools.product(*choices), _MOST + 1)]


def _numbers(ranges: str, text: str) -> list[str]:
    """The numbers of what stands in a bracket, each with the zeros that it is written with."""
    found: list[str] = []
    for entry in ranges.split(","):
        ends = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", entry)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if ends is None or last < first or last - first > _MOST:
            raise ConfigError(f"node list {text!r}: {entry!r} is no range of numbers", _ACTION)
        found += [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]
    return found

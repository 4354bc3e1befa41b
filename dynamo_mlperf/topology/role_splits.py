"""Splits with the TP of each role: `4P8D`; with another TP than the file's, `4P2x8D1` or `16A2`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.capacity import capacity_error, fits
from dynamo_mlperf.topology.layout import ground_of
from dynamo_mlperf.topology.spec import ROLE_LETTERS, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from dynamo_mlperf.topology.spec import RoleName, Topology

SPLIT_PATTERN = (
    r"[1-9][0-9]{0,5}P(?:[1-9][0-9]{0,3}x)?[1-9][0-9]{0,5}D(?:[1-9][0-9]{0,3})?"
    r"|[1-9][0-9]{0,5}A(?:[1-9][0-9]{0,3})?"
)
"""Whole names of splits. They hold letters and digits alone, so that a name is a safe name of a directory too."""
_ROLE_OF: Mapping[str, RoleName] = {"P": "prefill", "D": "decode", "A": "aggregated"}


@dataclass(frozen=True)
class RoleCount:
    """The workers of one role of a split.

    Attributes:
        role: prefill, decode or aggregated.
        workers: How many.
        tensor_parallel: GPUs that share each layer of one worker.
    """

    role: RoleName
    workers: int
    tensor_parallel: int


@dataclass(frozen=True)
class RoleSplit:
    """One split.

    Attributes:
        name: `4P8D`; the TP of a role is in it where it is not the file's: `4P4x8D`.
        counts: Its roles, prefill before decode.
    """

    name: str
    counts: tuple[RoleCount, ...]

    def of(self, role: str) -> RoleCount:
        """The workers of a role that it has."""
        return next(count for count in self.counts if count.role == role)


def own_split(topology: Topology) -> RoleSplit:
    """The split that the file's `roles:` give."""
    return _named(topology, [RoleCount(name, one.workers, one.tensor_parallel) for name, one in _roles(topology)])


def parse_split(text: str, topology: Topology) -> RoleSplit:
    """The split of that name; a TP that it does not give is the file's.

    Raises:
        ConfigError: It is no split of this topology's roles.
    """
    if not re.fullmatch(SPLIT_PATTERN, text):
        raise ConfigError(
            f"{text[:40]!r} is no split", "write workers and roles: 4P8D, with another TP 4P2x8D1, or 16A2"
        )
    given = {name: role.tensor_parallel for name, role in _roles(topology)}
    prefill, _, rest = text.rpartition("P")
    if prefill:
        before, _, own = rest.partition("D")
        degree, _, decode = before.rpartition("x")
        counts = [_count("P", prefill, degree, given), _count("D", decode, own, given)]
    else:
        workers, _, own = text.partition("A")
        counts = [_count("A", workers, own, given)]
    if [count.role for count in counts] != list(given):
        letters = "".join(f"n{ROLE_LETTERS[name]}" for name in given)
        raise ConfigError(f"split {text}: the file's roles are {' and '.join(given)}", f"write splits as {letters}")
    return _named(topology, counts)


def times(split: RoleSplit, ratio: Fraction, topology: Topology) -> RoleSplit | None:
    """The split with that many times its workers of each role; None where they are no whole numbers above 0."""
    scaled = [count.workers * ratio for count in split.counts]
    if any(count.denominator != 1 or count < 1 for count in scaled):
        return None
    counts = [replace(one, workers=int(count)) for one, count in zip(split.counts, scaled, strict=True)]
    return _named(topology, counts)


def _roles(topology: Topology) -> Sequence[tuple[RoleName, Role]]:
    return topology.roles.present()


def _count(letter: str, workers: str, degree: str, given: Mapping[RoleName, int]) -> RoleCount:
    role = _ROLE_OF[letter]
    return RoleCount(role, int(workers), int(degree) if degree else given.get(role, 1))


def _named(topology: Topology, counts: Sequence[RoleCount]) -> RoleSplit:
    given = dict(_roles(topology))
    parts = []
    for count in counts:
        own = count.role in given and count.tensor_parallel == given[count.role].tensor_parallel
        degree = "" if own else f"{count.tensor_parallel}{'x' if count.role == 'prefill' else ''}"
        parts.append(f"{count.workers}{ROLE_LETTERS[count.role]}{degree}")
    return RoleSplit("".join(parts), tuple(counts))


def all_splits(topology: Topology) -> tuple[RoleSplit, ...]:
    """Every split at the file's TP that no further worker fits beside, the one with the fewest prefill workers first.

    Raises:
        ConfigError: The file's workers are aggregated (there is one such split).
        CapacityError: Nothing fits.
    """
    if not topology.disaggregated:
        raise ConfigError(
            "aggregated workers have one split at one TP", "list splits with their TP: [16A1, 8A2, 4A4] (sweep.splits)"
        )
    beside = ground_of(topology).frontier.table()
    # Of those with as many decode workers, the one with the most prefill workers: the others leave room.
    best = {int(beside[first]): first for first in range(1, len(beside)) if beside[first] >= 1}
    if not best:
        raise capacity_error(topology)
    degrees = {name: role.tensor_parallel for name, role in _roles(topology)}
    return tuple(
        _named(
            topology,
            [RoleCount("prefill", first, degrees["prefill"]), RoleCount("decode", second, degrees["decode"])],
        )
        for second, first in best.items()
    )


def with_split(topology: Topology, split: RoleSplit) -> Topology:
    """The same deployment with another split.

    Raises:
        ConfigError: A role's other degrees do not go with that TP.
        CapacityError: The split does not fit the nodes.
    """
    roles: dict[str, Role] = {}
    for name, role in _roles(topology):
        count = split.of(name)
        wanted = {"workers": count.workers, "tensor_parallel": count.tensor_parallel}
        try:
            roles[name] = Role.model_validate({**dict(role), **wanted})
        except ValidationError as problem:
            said = problem.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise ConfigError(f"split {split.name}: roles.{name}: {said}", "give another TP") from None
    changed = topology.model_copy(update={"roles": topology.roles.model_copy(update=roles)})
    if not fits(changed):
        raise capacity_error(changed)
    return changed

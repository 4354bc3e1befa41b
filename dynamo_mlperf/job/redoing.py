"""What the answer of a split, or of a search, was looked for with, and how what a resumed one asks for differs.

An old answer is not kept in silence then. Its probes and runs count again all the same; only it is looked for anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_json
from dynamo_mlperf.topology.searching import Search

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology

_OF_SEARCH = ("low", "high", "tolerance", "time_budget_s")
_BUDGETS = frozenset({"search.time_budget_s", "sweep.time_budget_s"})
"""More time changes nothing of an answer that is located."""
_SHOWN = 3
REDO = "resume with --redo: what was probed counts again; or give the settings of then"


def sought(topology: Topology) -> dict[str, Any]:
    """What the answer of a split, or of the file's search, depends on beside what is measured, by the keys' names."""
    sweep, search = topology.sweep, topology.search or Search()
    if sweep is not None and sweep.rates is not None:
        return {"sweep.rates": sorted(sweep.rates)}
    found = {f"search.{key}": getattr(search, key) for key in _OF_SEARCH}
    return found if sweep is None else {**found, "sweep.time_budget_s": sweep.time_budget_s}


def changes(known: object, wanted: Mapping[str, Any], *, located: bool) -> list[str]:
    """How the settings differ that an answer was found with, for people; empty where it can be kept.

    Args:
        known: The recorded `sought`.
        wanted: That of now.
        located: Whether the answer is located.
    """
    if not isinstance(known, dict):
        return ["the settings of then are not recorded"]
    names = [name for name in sorted({*known, *wanted}) if not (located and name in _BUDGETS)]
    return [
        f"{name} {known.get(name)!r:.60} there, {wanted.get(name)!r:.60} now"
        for name in names
        if known.get(name) != wanted.get(name)
    ]


def refuse_changed(found: Mapping[str, list[str]], where: Path) -> None:
    """Refuse to go on where finished splits were found with other settings.

    Args:
        found: `changes` by split.
        where: The sweep.

    Raises:
        ConfigError: Names the splits and what differs.
    """
    changed = {name: differ for name, differ in found.items() if differ}
    if not changed:
        return
    names = ", ".join(list(changed)[:_SHOWN]) + (" ..." if len(changed) > _SHOWN else "")
    told = "; ".join(dict.fromkeys(one for differ in changed.values() for one in differ))
    raise ConfigError(f"{where}: {len(changed)} finished splits ({names}) were found with other settings: {told}", REDO)


def search_changes(settings: Path, topology: Topology) -> list[str]:
    """How the `settings.json` of a search that is located differs from what the file asks for now; see `changes`.

    Args:
        settings: The file; where it cannot be read, anything may differ.
        topology: The file that goes on with the search.
    """
    known: dict[str, Any] | None
    try:
        value = read_json(settings)
        known = {f"search.{key}": value.get(key) for key in _OF_SEARCH}
    except (OSError, ValueError, AttributeError, RecursionError):
        known = None
    return changes(known, sought(topology), located=True)

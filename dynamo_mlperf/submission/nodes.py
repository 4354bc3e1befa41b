"""What runs recorded of their nodes: how many, with how many accelerators, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import RunPaths, open_regular, strict_json
from dynamo_mlperf.submission.records import read_record, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dynamo_mlperf.submission.records import Run

_MOST_LINE_BYTES = 1_000_000


@dataclass(frozen=True)
class NodesSeen:
    """The nodes of one run.

    Attributes:
        run: Whose.
        held: Accelerators of each node by its position, as planned; empty where there is no plan.
        used: Those of them that a worker had.
        facts: What every node recorded of itself alike.
        differing: Names of the facts in which the nodes differ.
    """

    run: str
    held: tuple[int, ...]
    used: tuple[int, ...]
    facts: dict[str, Any]
    differing: tuple[str, ...] = ()

    @property
    def uneven(self) -> bool:
        """Whether one number of accelerators per node does not describe them: some differ, or some sit idle."""
        with_workers = [count for count in self.used if count]
        return len(set(self.held)) > 1 or len(set(with_workers)) > 1

    def total(self) -> str:
        """The accelerators for people, node by node."""
        places = ", ".join(f"{count} on node {position}" for position, count in enumerate(self.used))
        held = f"; the nodes hold {sum(self.held)}" if sum(self.held) != sum(self.used) else ""
        return f"{sum(self.used)} accelerators in use: {places}{held}"


def nodes_of(run: Run) -> NodesSeen:
    """What `run` recorded of its nodes.

    Raises:
        ConfigError: Its records cannot be read.
    """
    try:
        held, used = _accelerators(run.plan)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise unreadable(RunPaths(run.root).plan, error) from error
    facts, differing = _alike(list(_hardware(run)))
    return NodesSeen(run.name, tuple(held), tuple(used), facts, differing)


def _accelerators(plan: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Those of each node by its position, and how many of them a worker has."""
    held = [int(node["gpus"]) for node in plan.get("nodes") or []]
    used = [0] * len(held)
    for worker in plan.get("workers") or []:
        for rank in worker["ranks"]:
            used[int(rank["node"])] += 1
    return held, used


def _hardware(run: Run) -> Iterator[dict[str, Any]]:
    """Each node's own account: the node checks of a local run, the agents' first words in a Slurm job."""
    logs = run.root / "logs"
    accounts = [(path, read_record(path)) for path in sorted(logs.glob("check-*.json"))]
    accounts += [(path, _first_words(path)) for path in sorted(logs.glob("node-*.jsonl"))]
    for path, account in accounts:
        hardware = account.get("hardware") or {}
        if not isinstance(hardware, dict):
            raise unreadable(path, TypeError(f"hardware is {hardware!r:.60}"))
        yield hardware


def _first_words(path: Path) -> dict[str, Any]:
    """The facts that an agent begins with; empty where it began with something else.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        with open_regular(path) as source:
            line = source.readline(_MOST_LINE_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        facts = strict_json(line)["facts"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _alike(accounts: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    names = {name for account in accounts for name in account}
    same = {name for name in names if all(account.get(name) == accounts[0].get(name) for account in accounts)}
    return {name: accounts[0][name] for name in sorted(same)}, tuple(sorted(names - same))

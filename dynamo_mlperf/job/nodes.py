"""Phase `check`: what the nodes say of themselves, held against the plan; addresses and ports are bound here."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import MachineFacts, facts_from_json, run_mark
from dynamo_mlperf.process.ports import claimed
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.slurm.allocation import SlurmAllocation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.allocation import Node

CHECK_S = 60.0
CLAIMS_TRIED = 32
"""Refused claims after which a job gives up: by then the range is full or somebody else's."""


def nodes_by_disk(nodes: Sequence[Node]) -> list[Node]:
    """One node for each local disk: what virtual nodes share is looked at and filled once."""
    return list({node.disk: node for node in reversed(nodes)}.values())[::-1]


def own_program(*words: str) -> tuple[str, ...]:
    """This package's command line, run by the interpreter that runs us (it is on a path that every node sees)."""
    return (sys.executable, "-m", "dynamo_mlperf.cli", *words)


def own_environment(job: Job) -> dict[str, str]:
    """What our own programs get on a node."""
    return {**inherited_environment(), RUN_VARIABLE: run_mark(job.run_id), "PYTHONUNBUFFERED": "1"}


def temporary_of(job: Job, position: int) -> dict[str, str]:
    """TMPDIR of engines on a node: a directory of the run's own for sockets and files, which goes away with it.

    Its path is short, since that of a UNIX socket in it has 107 bytes at the most. Empty where there is none, and for
    containers, which may not see it.
    """
    if job.allocation.shares_memory:
        place = job.scratch / "tmp"
        place.mkdir(exist_ok=True)
        return {"TMPDIR": str(place)}
    found = job.agents.scratch.get(position) if job.site.container is None else None
    return {"TMPDIR": found} if found else {}


def start_agents(job: Job) -> None:
    """Start the run's agents on the nodes of a Slurm job; `check_nodes` hears them.

    Raises:
        SetupError: Fewer nodes than planned.
    """
    planned, granted = len(job.plan.nodes), len(job.allocation.nodes)
    if granted < planned:
        raise SetupError(f"{granted} nodes granted, {planned} planned", f"ask for {planned}: #SBATCH --nodes={planned}")
    if job.allocation.kind == "slurm":
        job.agents.start(job.allocation.nodes, Path(job.site.local_path))


def check_nodes(job: Job) -> dict[int, MachineFacts]:
    """Read each node's facts and hold them against the plan.

    Raises:
        SetupError: Fewer GPUs or addresses than planned.
    """
    if job.allocation.kind == "slurm":
        facts = job.agents.facts(job.progress.say)
        if isinstance(job.allocation, SlurmAllocation):
            job.allocation.refuse_neighbours()
    else:
        words = ("doctor", "--here", "--json", "--local-path", str(job.site.local_path), "--end-leftovers")
        answers = task_on_each_disk(job, DiskTask("check", words, CHECK_S, "the node check", "machines looked at"))
        facts = {position: facts_from_json(answer) for position, answer in answers.items()}
    _check_gpus(job, facts)
    for position, found in facts.items():
        for pid, run in found.leftovers.items():
            job.events.add("leftover_ended", node=position, pid=pid, run=run)
        for path, run in found.abandoned.items():
            job.events.add("leftover_removed", node=position, path=path, run=run)
    return facts


@dataclass(frozen=True)
class DiskTask:
    """One of our own verbs, to be run once for each local disk.

    Attributes:
        name: Names the tasks and their logs, with the node position behind it.
        words: The verb and its arguments; it must print one JSON object.
        timeout_s: Deadline of them all.
        what: For messages: `the node check`.
        progress: For people, behind `3 of 4 `.
        own_words: More arguments by node position.
    """

    name: str
    words: tuple[str, ...]
    timeout_s: float
    what: str
    progress: str
    own_words: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def task_on_each_disk(job: Job, task: DiskTask) -> dict[int, dict[str, Any]]:
    """Run it everywhere, all side by side.

    Returns:
        The answers by node position; nodes that share a disk share an answer.

    Raises:
        SetupError: One ended badly, or was not done in time.
    """
    tasks = {}
    for node in nodes_by_disk(job.allocation.nodes):
        own = f"{task.name}-{node.position}"
        output = job.paths.logs / f"{own}.json"
        command = Command(
            own,
            own_program(*task.words, *task.own_words.get(node.position, ())),
            own_environment(job),
            job.paths.log_of(own),
            node=node.position,
            output=output,
        )
        tasks[node.disk] = (job.supervisor.start(command, Layer.TASK, may_end=True), output)
    job.supervisor.wait_tasks(
        [child for child, _ in tasks.values()],
        task.timeout_s,
        task.what,
        lambda left: job.progress.say(f"{len(tasks) - left} of {len(tasks)} {task.progress}"),
    )
    by_disk: dict[str, dict[str, Any]] = {disk: json.loads(output.read_text()) for disk, (_, output) in tasks.items()}
    return {node.position: by_disk[node.disk] for node in job.allocation.nodes}


def _check_gpus(job: Job, facts: Mapping[int, MachineFacts]) -> None:
    if job.topology.device == "cpu" or job.topology.engine == "mocker":
        return
    used = {slot.node for worker in job.plan.workers for slot in worker.ranks}
    for position in sorted(used):
        seen, wanted = facts[position].gpus, job.plan.nodes[position].gpus
        if seen < wanted:
            raise SetupError(
                f"node {position} ({facts[position].host}) shows {seen} GPUs, {wanted} planned",
                "set device: cpu for a trial without GPUs"
                + (f", or ask for them: #SBATCH --gres=gpu:{wanted}" if job.allocation.kind == "slurm" else ""),
            )


def bind_nodes(job: Job, facts: Mapping[int, MachineFacts]) -> list[Node]:
    """The nodes with the address and interface that their services use.

    Raises:
        SetupError: A node has no address on the site's interface, or none that its hostname stands for.
    """
    if job.allocation.kind == "local":
        return list(job.allocation.nodes)
    return [bind_node(node, facts[node.position], job.site.interface) for node in job.allocation.nodes]


def bind_node(node: Node, found: MachineFacts, wanted: str | None) -> Node:
    """The node with its address on the interface `wanted`, else the one that its hostname stands for.

    Raises:
        SetupError: It has none there.
    """
    if wanted is not None:
        if wanted not in found.addresses:
            raise SetupError(
                f"node {node.position} ({node.host}) has no address on interface {wanted}, "
                f"it has {', '.join(found.addresses)}",
                "set interface in the site file",
            )
        return replace(node, address=found.addresses[wanted], interface=wanted)
    for interface, address in found.addresses.items():
        if address == found.own_address:
            return replace(node, address=address, interface=interface)
    raise SetupError(
        f"node {node.position}: the name {found.host} stands for no address of an interface "
        f"(it resolves to {found.own_address or 'a loopback address'})",
        "set interface in the site file",
    )


def choose_base_port(job: Job, facts: Mapping[int, MachineFacts]) -> int:
    """First port of a block that is free on every node and from now on this job's, from a place of its own on.

    Raises:
        SetupError: No such block; names the ports that are in the way and who holds them.
    """
    low, high = job.site.port_range
    needed = job.plan.ports_needed
    busy: dict[int, tuple[int, int]] = {}
    for position, found in facts.items():
        for port, pid in found.listening.items():
            busy.setdefault(port, (position, pid))
    count = (high - low + 1) // needed
    if count < 1:
        raise SetupError(
            f"{needed} ports needed, {high - low + 1} in the site's range {low}-{high}",
            "widen port_range in the site file",
        )
    first = int.from_bytes(hashlib.sha256(job.run_id.encode()).digest()[:4]) % count
    starts = (low + (first + turn) % count * needed for turn in range(count))
    blocks = (range(start, start + needed) for start in starts)
    held = _claim_everywhere(job, blocks, busy) if job.allocation.kind == "slurm" else job.ports.take(blocks, busy)
    if isinstance(held, range):
        return held.start
    holders = [
        f"{port} (node {position}, pid {pid or 'of another user'})"
        for port, (position, pid) in sorted(busy.items())
        if low <= port <= high
    ] + (held or [f"{ports.start}-{ports.stop - 1} (claimed by the run with pid {pid})" for ports, pid in claimed()])
    raise SetupError(
        f"no {needed} free ports in a row in {low}-{high}; taken: {', '.join(holders[:5])}",
        "widen port_range in the site file, or end those processes",
    )


def _claim_everywhere(job: Job, blocks: Iterable[range], busy: Collection[int]) -> range | list[str]:
    """The first block that every node could claim for this job; else who held what, as far as it was asked."""
    seen: list[str] = []
    for block in blocks:
        if any(port in busy for port in block):
            continue
        refused = job.agents.claim(block, job.allocation.nodes)
        if not refused:
            return block
        seen += [f"{what} on node {position}" for position, what in refused.items()]
        if len(seen) > CLAIMS_TRIED:
            break
    return seen

"""Phase `check`: what the nodes say of themselves, held against the plan; addresses and ports are bound here."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import MachineFacts, facts_from_json, run_mark
from dynamo_mlperf.process.ports import claimed
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.allocation import Node

CHECK_S = 60.0


def nodes_by_disk(nodes: Sequence[Node]) -> list[Node]:
    """One node for each local disk: what virtual nodes share is looked at and filled once."""
    return list({node.disk: node for node in reversed(nodes)}.values())[::-1]


def own_program(*words: str) -> tuple[str, ...]:
    """This package's command line, run by the interpreter that runs us (it is on a path that every node sees)."""
    return (sys.executable, "-m", "dynamo_mlperf.cli", *words)


def own_environment(job: Job) -> dict[str, str]:
    """What our own programs get on a node."""
    return {**inherited_environment(), RUN_VARIABLE: run_mark(job.run_id), "PYTHONUNBUFFERED": "1"}


def check_nodes(job: Job) -> dict[int, MachineFacts]:
    """Read each node's facts and hold them against the plan.

    Raises:
        SetupError: Fewer nodes, GPUs or addresses than planned.
    """
    planned, granted = len(job.plan.nodes), len(job.allocation.nodes)
    if granted < planned:
        raise SetupError(f"{granted} nodes granted, {planned} planned", f"ask for {planned}: #SBATCH --nodes={planned}")
    tasks = {}
    for node in nodes_by_disk(job.allocation.nodes):
        command = Command(
            f"check-{node.position}",
            own_program("doctor", "--here", "--json", "--local-path", str(job.site.local_path), "--end-leftovers"),
            own_environment(job),
            job.paths.log_of(f"check-{node.position}"),
            node=node.position,
            output=job.paths.logs / f"check-{node.position}.json",
        )
        tasks[node.disk] = job.supervisor.start(command, Layer.TASK, may_end=True)
    job.supervisor.wait_tasks(
        list(tasks.values()),
        CHECK_S,
        "the node check",
        lambda left: job.progress.say(f"{len(tasks) - left} of {len(tasks)} nodes looked at"),
    )
    by_disk = {disk: _read_facts(child.command.output) for disk, child in tasks.items()}
    facts = {node.position: by_disk[node.disk] for node in job.allocation.nodes}
    _check_gpus(job, facts)
    for position, found in facts.items():
        for pid, run in found.leftovers.items():
            job.events.add("leftover_ended", node=position, pid=pid, run=run)
        for path, run in found.abandoned.items():
            job.events.add("leftover_removed", node=position, path=path, run=run)
    return facts


def _read_facts(output: object) -> MachineFacts:
    with open(str(output)) as source:  # noqa: PTH123 - the path comes from a Command
        return facts_from_json(json.load(source))


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
    return [_bind(node, facts[node.position], job.site.interface) for node in job.allocation.nodes]


def _bind(node: Node, found: MachineFacts, wanted: str | None) -> Node:
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
    block = job.ports.take((range(start, start + needed) for start in starts), busy)
    if block is not None:
        return block.start
    holders = [
        f"{port} (node {position}, pid {pid or 'of another user'})"
        for port, (position, pid) in sorted(busy.items())
        if low <= port <= high
    ] + [f"{ports.start}-{ports.stop - 1} (claimed by the run with pid {pid})" for ports, pid in claimed()]
    raise SetupError(
        f"no {needed} free ports in a row in {low}-{high}; taken: {', '.join(holders[:5])}",
        "widen port_range in the site file, or end those processes",
    )

"""Phase `stage`: weights from the shared store to each node's local disk, verified; the store is read once."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.job.nodes import DiskTask, bind_nodes, nodes_by_disk, task_on_each_disk
from dynamo_mlperf.staging.checkpoint import verify_checkpoint
from dynamo_mlperf.staging.manifest import load_manifest
from dynamo_mlperf.staging.peers import Peer, Peers, new_token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.staging.manifest import Manifest
    from dynamo_mlperf.staging.peers import Mode
    from dynamo_mlperf.topology.spec import Topology

STAGE_S = 3600.0
ROOM_S = 120.0
PORTS_TRIED = 8
"""Ports that a stager may try; the first that is free on its node is taken, for as long as staging lasts."""
_RECORDED = ("bytes_copied", "bytes_reused", "bytes_from_store", "bytes_from_peers", "seconds", "path")


def read_manifest(topology: Topology, base_dir: Path) -> Manifest | None:
    """The staging manifest that the file names; None where it names weights that are used in place.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    path = topology.resolve(base_dir).manifest
    return None if path is None else load_manifest(path)


def stage_weights(job: Job, facts: Mapping[int, MachineFacts]) -> dict[int, Path]:
    """Make the model directory present and whole on every node.

    Args:
        job: The job.
        facts: What the nodes said of themselves, by position: their free room, addresses and ports.

    Returns:
        The model directory by node position.

    Raises:
        SetupError: The checkpoint is not whole at its source, a node lacks room, or a node's copy failed.
    """
    paths = job.topology.resolve(job.base_dir)
    if paths.weights is not None:
        directory = paths.weights
        _verify(job, directory)
        return {node.position: directory for node in job.allocation.nodes}
    manifest_path, manifest = paths.manifest, read_manifest(job.topology, job.base_dir)
    if manifest_path is None or manifest is None:
        raise SetupError("the topology names no weights", "write model: {weights: {stage: MANIFEST}}")
    _verify(job, job.base_dir / manifest.source)
    words = _words(job, manifest_path)
    _check_room(job, manifest, words, facts)
    results = _copy(job, manifest, words, facts)
    for node in nodes_by_disk(job.allocation.nodes):
        result = results[node.position]
        job.events.add("staged", node=node.position, **{name: result[name] for name in _RECORDED})
        for text in result["notices"]:
            job.events.add("warning", what=f"staging on node {node.position}: {text}")
    return {position: Path(result["path"]) for position, result in results.items()}


def _words(job: Job, manifest_path: Path) -> tuple[str, ...]:
    where = ("--base", str(job.base_dir), "--to", str(job.site.local_path), "--run-dir", str(job.paths.root.absolute()))
    return ("stage", "copy", str(manifest_path), *where, "--evict" if job.site.evict else "--no-evict", "--json")


def _check_room(job: Job, manifest: Manifest, words: tuple[str, ...], facts: Mapping[int, MachineFacts]) -> None:
    """See that every node has room before anything is copied to one; asked only where it may be short.

    Raises:
        SetupError: A node has not; its own words name what is needed and what is free.
    """
    nodes = nodes_by_disk(job.allocation.nodes)
    if any(facts[node.position].disk_free_bytes < manifest.total_bytes for node in nodes):
        task = DiskTask("room", (*words, "--dry-run"), ROOM_S, "the look for room", "disks looked at")
        task_on_each_disk(job, task)


def _copy(
    job: Job, manifest: Manifest, words: tuple[str, ...], facts: Mapping[int, MachineFacts]
) -> dict[int, dict[str, Any]]:
    nodes = nodes_by_disk(bind_nodes(job, facts))
    what = (STAGE_S, f"staging {manifest.name}", f"disks have {manifest.name}")
    if len(nodes) < 2 or job.site.staging == "store":  # noqa: PLR2004 - one node has no peers
        return task_on_each_disk(job, DiskTask("stage", words, *what))
    path = job.paths.root / "stage-peers.json"
    mode: Mode = "peers" if job.site.staging == "peers" else "auto"
    Peers(tuple(_peer(job, node, facts) for node in nodes), new_token(), mode).write(path)
    ranks = {node.position: ("--peers", str(path.absolute()), "--rank", str(rank)) for rank, node in enumerate(nodes)}
    try:
        return task_on_each_disk(job, DiskTask("stage", words, *what, own_words=ranks))
    finally:
        with suppress(OSError):  # it holds a secret, though one that is of no use any more
            path.unlink()


def _peer(job: Job, node: Node, facts: Mapping[int, MachineFacts]) -> Peer:
    return Peer(node.address, _ports(job, node.position, facts[node.position].listening))


def _ports(job: Job, position: int, busy: Mapping[int, int]) -> tuple[int, ...]:
    """Ports of the site's range for one node's stager, from a place that is this job's and this node's own.

    Raises:
        SetupError: All of the range is taken on that node.
    """
    low, high = job.site.port_range
    seed = hashlib.sha256(f"{job.run_id} {position} staging".encode()).digest()
    ports: Sequence[int] = range(low, high + 1)
    first = int.from_bytes(seed[:4]) % len(ports)
    free = [port for port in (*ports[first:], *ports[:first]) if port not in busy]
    if not free:
        raise SetupError(f"no free port in {low}-{high} on node {position}", "widen port_range in the site file")
    return tuple(free[:PORTS_TRIED])


def _verify(job: Job, directory: Path) -> None:
    for warning in verify_checkpoint(directory):
        job.events.add("warning", what=warning)

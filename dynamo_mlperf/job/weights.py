"""Phase `stage`: weights from the shared store to each node's local disk, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.job.nodes import nodes_by_disk, own_environment, own_program
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.staging.checkpoint import verify_checkpoint
from dynamo_mlperf.staging.manifest import load_manifest

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.staging.manifest import Manifest
    from dynamo_mlperf.topology.spec import Topology

STAGE_S = 3600.0


def read_manifest(topology: Topology, base_dir: Path) -> Manifest | None:
    """The staging manifest that the file names; None where it names weights that are used in place.

    Raises:
        ConfigError: It cannot be read, or is none.
    """
    path = topology.resolve(base_dir).manifest
    return None if path is None else load_manifest(path)


def stage_weights(job: Job) -> dict[int, Path]:
    """Make the model directory present and whole on every node.

    Returns:
        The model directory by node position.

    Raises:
        SetupError: The checkpoint is not whole at its source, or a node's copy failed.
    """
    paths = job.topology.resolve(job.base_dir)
    if paths.weights is not None:
        directory = paths.weights
        _verify(job, directory)
        return {node.position: directory for node in job.allocation.nodes}
    manifest_path, manifest = paths.manifest, read_manifest(job.topology, job.base_dir)
    if manifest is None:
        raise SetupError("the topology names no weights", "write model: {weights: {stage: MANIFEST}}")
    _verify(job, job.base_dir / manifest.source)
    tasks = {}
    for node in nodes_by_disk(job.allocation.nodes):
        name = f"stage-{node.position}"
        command = Command(
            name,
            own_program(
                "stage",
                "copy",
                str(manifest_path),
                "--base",
                str(job.base_dir),
                "--to",
                str(job.site.local_path),
                "--json",
            ),
            own_environment(job),
            job.paths.log_of(name),
            node=node.position,
            output=job.paths.logs / f"{name}.json",
        )
        tasks[node.disk] = job.supervisor.start(command, Layer.TASK, may_end=True)
    job.supervisor.wait_tasks(
        list(tasks.values()),
        STAGE_S,
        f"staging {manifest.name}",
        lambda left: job.progress.say(f"{manifest.name}: {len(tasks) - left} of {len(tasks)} disks done"),
    )
    found: dict[str, Path] = {}
    for disk, child in tasks.items():
        result = json.loads(Path(str(child.command.output)).read_text())
        job.events.add(
            "staged",
            node=child.command.node,
            bytes_copied=result["bytes_copied"],
            bytes_reused=result["bytes_reused"],
            seconds=result["seconds"],
            path=result["path"],
        )
        found[disk] = Path(result["path"])
    return {node.position: found[node.disk] for node in job.allocation.nodes}


def _verify(job: Job, directory: Path) -> None:
    for warning in verify_checkpoint(directory):
        job.events.add("warning", what=warning)

"""From one split to the next in a running deployment: only workers whose GPUs change role (or TP) are restarted.

The others keep their GPUs, ports, processes and their place in the frontends' listing. No load runs meanwhile.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import write_json
from dynamo_mlperf.topology.plan import plan_as_json
from dynamo_mlperf.topology.replanning import next_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.serving.endpoints import EngineProcess
    from dynamo_mlperf.topology.plan import Worker
    from dynamo_mlperf.topology.replanning import PortBlocks
    from dynamo_mlperf.topology.spec import Topology


@dataclass(frozen=True)
class Transition:
    """What the way from one split to the next took.

    Attributes:
        stopped: Workers that ended.
        started: Workers that are new.
        kept: Workers that went on.
        seconds: From the first stop until the new deployment has proved itself.
    """

    stopped: tuple[str, ...]
    started: tuple[str, ...]
    kept: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


@dataclass(frozen=True)
class Proof:
    """Requests that a changed deployment proves itself with.

    Attributes:
        canary: Sent to each worker by name.
        warm_up: Sent through the frontends, outside any timed window.
    """

    canary: Sequence[bytes]
    warm_up: Sequence[bytes]


def job_of(
    job: Job, topology: Topology, used: Mapping[str, int], blocks: PortBlocks, lost: Collection[str] = ()
) -> Job:
    """The job with another split's topology, and the plan that keeps as many of its workers as can be.

    Args:
        job: The job as it is.
        topology: With the next split.
        used: By role, the first index that no worker has had.
        blocks: The sweep's ports.
        lost: Names of workers that the job has gone on without; they do not stay.

    Raises:
        CapacityError: The split does not fit.
    """
    running = [worker for worker in job.plan.workers if worker.name not in lost]
    roles = job.topology.roles.present()
    degrees: dict[str, tuple[int, int]] = {name: (role.tensor_parallel, role.gpus) for name, role in roles}
    plan = next_plan(topology, running, degrees, used, blocks)
    return replace(job, topology=topology, plan=plan)


def move(deployment: Deployment, target: Job, proof: Proof, directory: Path) -> Transition:
    """Take the deployment, at rest, to another split of the same job.

    Args:
        deployment: The running deployment.
        target: The job with the next split, see `job_of`.
        proof: What it proves itself with.
        directory: Takes `plan.json` and `evidence.json` (canary and warm-up).

    Raises:
        ServingError: A worker does not end, or a new one does not come up and prove itself.
    """
    began = time.monotonic()
    before, after = deployment.endpoints.plan.workers, target.plan.workers
    kept = set(before) & set(after)
    stopped, started = [one for one in before if one not in kept], [one for one in after if one not in kept]
    target.events.add("split_begin", split=directory.name, stop=_names(stopped), start=_names(started))
    write_json(directory / "plan.json", plan_as_json(target.plan))
    if stopped:
        _tidy(target)
        target.progress.say(f"stopping {len(stopped)} workers, {len(kept)} go on")
        deployment.stop_engines(_processes(deployment, stopped))
        _tidy(target)
    deployment.follow(target)
    deployment.start_engines(_processes(deployment, started))
    canary = deployment.prove(deployment.wait_until_ready(), proof.canary)
    warmed = deployment.warm_up(proof.warm_up)
    write_json(directory / "evidence.json", {"canary": canary, "warmup": warmed})
    done = Transition(
        _names(stopped),
        _names(started),
        _names([one for one in after if one in kept]),
        round(time.monotonic() - began, 3),
    )
    target.events.add("split_ready", split=directory.name, seconds=done.seconds)
    return done


def _names(workers: Sequence[Worker]) -> tuple[str, ...]:
    return tuple(worker.name for worker in workers)


def _processes(deployment: Deployment, workers: Sequence[Worker]) -> list[EngineProcess]:
    return [one for one in deployment.endpoints.processes if one.first in workers]


def _tidy(job: Job) -> None:
    """Note what engines map in /dev/shm, and remove what those that have ended left there: it is memory."""
    removed = {position: paths for position, paths in job.agents.tidy().items() if paths}
    if job.allocation.kind == "local":
        job.shared_memory.look(now=True)
        removed = {0: paths} if (paths := job.shared_memory.remove()) else {}
    for position, paths in removed.items():
        job.events.add("shared_memory_removed", node=position, paths=paths)

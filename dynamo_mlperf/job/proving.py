"""Phases `canary` and `warmup`: requests outside any timed window, by which a deployment proves itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.files import write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload

CANARY_SAMPLES = 2
"""Samples of the data set that the canary sends to each worker."""


def prove_itself(job: Job, deployment: Deployment, workload: Workload, ids: Mapping[str, int]) -> None:
    """The canary for each worker, then the warm-up; both go into the run's `evidence.json`.

    Args:
        job: The job.
        deployment: What serves.
        workload: Its first requests are sent.
        ids: Instance ids by worker name.

    Raises:
        ServingError: A worker does not answer, or a prompt did not come by KV transfer.
    """
    with job.phase("canary"):
        canary = deployment.prove(ids, workload.bodies[:CANARY_SAMPLES])
        write_json(job.paths.evidence, {"canary": canary})
    with job.phase("warmup"):
        warmed = deployment.warm_up(workload.warm_up_bodies(job.topology.timeouts.warmup_requests))
        write_json(job.paths.evidence, {"canary": canary, "warmup": warmed})

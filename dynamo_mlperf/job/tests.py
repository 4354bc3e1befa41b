"""What a job does with a deployment that has proved itself: its tests, one after another, and their verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.job.endpoints_test import endpoints_test
from dynamo_mlperf.job.judged import judged
from dynamo_mlperf.job.measurement import LoadTest, measure
from dynamo_mlperf.job.rate_search import searched_test
from dynamo_mlperf.job.side_phase import run_side_tests
from dynamo_mlperf.job.sweep import run_sweep

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.record import Verdict


def run_tests(job: Job, deployment: Deployment, workload: Workload) -> Verdict:
    """Run what the file asks for and judge it; the verdict is that of the performance test.

    Raises:
        MeasureError: A test could not measure; says why.
        ServingError: Something of the deployment died meanwhile.
    """
    if job.topology.sweep is not None:
        verdict = run_sweep(job, deployment, workload)
        return run_side_tests(deployment.job, deployment, workload, verdict)
    if job.topology.search is not None:
        verdict, at_rate = searched_test(job, deployment, workload)
        return run_side_tests(job, deployment, at_rate, verdict)
    if job.topology.measure.client == "endpoints":  # its accuracy phase is part of its run
        return endpoints_test(job, deployment, workload.settings)
    return run_side_tests(job, deployment, workload, performance_test(job, deployment, workload))


def performance_test(job: Job, deployment: Deployment, workload: Workload) -> Verdict:
    """One LoadGen test at the file's rate, judged."""
    with job.phase("measure"):
        transfer = measure(job, deployment, LoadTest.of_run(job, workload.settings))
    with job.phase("judge"):
        return judged(job, deployment, job.paths.root, workload.settings, transfer)

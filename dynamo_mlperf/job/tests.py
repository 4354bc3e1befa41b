"""What a job does with a deployment that has proved itself: its tests, one after another, and their verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.job.losses import told
from dynamo_mlperf.job.measurement import LoadTest, measure
from dynamo_mlperf.load.verdict import judge

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
    return performance_test(job, deployment, workload)


def performance_test(job: Job, deployment: Deployment, workload: Workload) -> Verdict:
    """One LoadGen test at the file's rate, judged."""
    with job.phase("measure"):
        transfer = measure(job, deployment, LoadTest.of_run(job, workload.settings))
    with job.phase("judge"):
        verdict = judge(job.paths.load, workload.settings, transfer, job.result_class, str(job.paths.root))
        slow = json.loads(job.paths.evidence.read_text())["stragglers"]
        named = replace(verdict, model=job.topology.model.name)
        return told(named, deployment.losses.found, slow)

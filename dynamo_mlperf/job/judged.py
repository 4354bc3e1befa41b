"""The verdict of one load test of a job, with what the job alone knows: its model, lost and slow workers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.job.losses import told
from dynamo_mlperf.load.endpoints_run import RECORD, REPORT_DIR, judge_run, read_record
from dynamo_mlperf.load.verdict import judge

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import TransferEvidence, Verdict


def judged(
    job: Job,
    deployment: Deployment,
    directory: Path,
    settings: LoadSettings,
    transfer: TransferEvidence | None,
    *,
    since_t: float = 0.0,
) -> Verdict:
    """The verdict of the test in `directory` (its `loadgen/` or `endpoints/`, its `evidence.json`).

    Args:
        job: The job.
        deployment: What served.
        directory: The run directory, or a probe's.
        settings: What LoadGen was told.
        transfer: What the engines' counters prove.
        since_t: Workers that were lost before this time (seconds since the epoch) are not this test's.
    """
    paths = RunPaths(directory)
    if (directory / RECORD).exists():
        record = read_record(directory / RECORD)
        verdict = judge_run(directory / REPORT_DIR, record, transfer, job.result_class, str(directory))
    else:
        verdict = judge(paths.load, settings, transfer, job.result_class, str(directory))
    slow = json.loads(paths.evidence.read_text())["stragglers"]
    lost = [loss for loss in deployment.losses.found if loss.t >= since_t]
    return told(replace(verdict, model=job.topology.model.name), lost, slow)

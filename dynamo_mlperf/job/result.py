"""The confirming probe of a search as the run's result: its files where a run has them, judged there once more."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import RunPaths, write_json
from dynamo_mlperf.job.judged import judged
from dynamo_mlperf.job.resuming import link_file, link_tree
from dynamo_mlperf.load.endpoints_run import RECORD, REPORT_DIR, REQUEST
from dynamo_mlperf.record import TransferEvidence

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import Verdict


def judge_probe(job: Job, deployment: Deployment, folder: Path, settings: LoadSettings) -> Verdict:
    """The verdict of a probe that ran to its end, from its folder; workers lost since are not its own.

    Args:
        job: The job.
        deployment: What serves.
        folder: The probe's.
        settings: LoadGen's, with the probe's rate.
    """
    return judged(job, deployment, folder, settings, _transfer(_evidence(folder)), since_t=float("inf"))


def link_result(job: Job, deployment: Deployment, folder: Path, settings: LoadSettings) -> Verdict:
    """Make a probe the run's result: `loadgen/`, `metrics/`, `measure.json`, and its evidence beside the canary's.

    What another result has left there is removed first.
    """
    paths, source = job.paths, RunPaths(folder)
    for left in (paths.load, paths.metrics, paths.root / REPORT_DIR):
        shutil.rmtree(left, ignore_errors=True)
    link_tree(source.metrics, paths.metrics)
    if (folder / RECORD).exists():
        link_tree(folder / REPORT_DIR, paths.root / REPORT_DIR)
        for name in (RECORD, REQUEST):
            link_file(folder / name, paths.root / name)
    else:
        link_tree(source.load, paths.load)
        link_file(folder / "measure.json", paths.root / "measure.json")
    evidence = _evidence(folder)
    write_json(paths.evidence, {**_evidence(paths.root), **evidence})
    verdict = judged(job, deployment, paths.root, settings, _transfer(evidence), since_t=float("inf"))
    return replace(verdict, run_dir=str(paths.root))


def _evidence(directory: Path) -> dict[str, Any]:
    path = RunPaths(directory).evidence
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return value


def _transfer(evidence: dict[str, Any]) -> TransferEvidence | None:
    found = evidence.get("transfer")
    return TransferEvidence(**found) if found else None

"""The engines' own counters around a load test: read before and after, kept as pages, told as what they prove."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from dynamo_mlperf.files import RunPaths, write_json
from dynamo_mlperf.job.losses import stragglers
from dynamo_mlperf.serving.canary import differences, per_role, read_all_counters, settled_counters
from dynamo_mlperf.serving.counters import transfer_evidence

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.record import TransferEvidence
    from dynamo_mlperf.serving.counters import Counts


class CountedWindow:
    """From its making to `close`, what the engines counted belongs to one load test.

    Args:
        job: The job.
        deployment: What serves.
        directory: The test's: takes `metrics/before`, `metrics/after` and `evidence.json`.
    """

    def __init__(self, job: Job, deployment: Deployment, directory: Path) -> None:
        self._job, self._deployment = job, deployment
        self._paths = RunPaths(directory)
        self._before = read_all_counters(deployment.gate)
        self._began_t = time.time()
        self._keep("before", self._before)
        deployment.tolerate_losses()

    def close(self, requests: int) -> TransferEvidence:
        """Read the counters once they hold `requests` more, and write what they prove.

        Raises:
            ServingError: A worker does not tell its counters.
        """
        gate, losses = self._deployment.gate, self._deployment.losses
        fallen = losses.since(self._began_t)
        before = {name: page for name, page in self._before.items() if name not in fallen}
        # What a lost worker had counted is gone with it: there is no sum to wait for.
        summed = not fallen and self._deployment.endpoints.plan.frontends
        after = settled_counters(gate, before, requests if summed else 0)
        self._keep("after", after)
        moved = differences(before, after)
        evidence = transfer_evidence(self._job.topology.engine, per_role(gate, moved))
        path = self._paths.evidence
        known = json.loads(path.read_text()) if path.exists() else {}
        write_json(
            path,
            {
                **known,
                "transfer": asdict(evidence),
                "workers": {name: dict(counts) for name, counts in moved.items()},
                "losses": losses.as_json(),
                "stragglers": stragglers(moved),
            },
        )
        return evidence

    def _keep(self, when: str, pages: dict[str, tuple[str, Counts]]) -> None:
        directory = self._paths.metrics / when
        directory.mkdir(parents=True, exist_ok=True)
        for name, (text, _) in pages.items():
            (directory / f"{name}.prom").write_text(text)

"""Phase `measure`: requests prepared, LoadGen in a process of its own, the engines' counters around it."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import write_json
from dynamo_mlperf.job.in_flight import client_processes, engine_seats, with_offline_bound
from dynamo_mlperf.job.losses import stragglers
from dynamo_mlperf.job.workload import REQUESTS_FILE
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.canary import differences, per_role, read_all_counters, settled_counters
from dynamo_mlperf.serving.counters import transfer_evidence
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.record import TransferEvidence
    from dynamo_mlperf.serving.counters import Counts

SILENT_S = 180.0
"""Longest time without progress of the load client; it may need 120 s of it to start its processes."""


def measure(job: Job, deployment: Deployment, workload: Workload) -> TransferEvidence:
    """Run LoadGen once and read the engines' counters before and after.

    Raises:
        MeasureError: LoadGen could not measure; says why.
        ServingError: Something died meanwhile.
    """
    gate = deployment.gate
    before = read_all_counters(gate)
    _keep_metrics(job, "before", before)
    began = time.time()
    deployment.tolerate_losses()
    _run_loadgen(job, _write_spec(job, deployment, workload))
    requests = int(json.loads((job.paths.load / "client.json").read_text())["requests"])
    fallen = deployment.losses.since(began)
    before = {name: page for name, page in before.items() if name not in fallen}
    # What a lost worker had counted is gone with it: there is no sum to wait for.
    after = settled_counters(gate, before, 0 if fallen or not deployment.endpoints.plan.frontends else requests)
    _keep_metrics(job, "after", after)
    moved = differences(before, after)
    evidence = transfer_evidence(job.topology.engine, per_role(gate, moved))
    known = json.loads(job.paths.evidence.read_text()) if job.paths.evidence.exists() else {}
    write_json(
        job.paths.evidence,
        {
            **known,
            "transfer": asdict(evidence),
            "workers": {name: dict(counts) for name, counts in moved.items()},
            "losses": deployment.losses.as_json(),
            "stragglers": stragglers(moved),
        },
    )
    return evidence


def _keep_metrics(job: Job, when: str, pages: dict[str, tuple[str, Counts]]) -> None:
    directory = job.paths.metrics / when
    directory.mkdir(parents=True, exist_ok=True)
    for name, (text, _) in pages.items():
        (directory / f"{name}.prom").write_text(text)


def _write_spec(job: Job, deployment: Deployment, workload: Workload) -> Path:
    seats = engine_seats(job.topology)
    clients = client_processes(workload.settings, seats)
    spec = MeasureSpec(
        settings=with_offline_bound(workload.settings, seats, clients),
        requests=job.paths.root / REQUESTS_FILE,
        out_dir=job.paths.load,
        frontends=deployment.endpoints.entrances,
        client_workers=clients,
        request_timeout_s=job.topology.timeouts.request_s,
    )
    path = job.paths.root / "measure.json"
    write_json(path, spec.to_json())
    return path


def _run_loadgen(job: Job, spec: Path) -> None:
    job.paths.load.mkdir(exist_ok=True)
    environment = {**inherited_environment(), RUN_VARIABLE: run_mark(job.run_id), "PYTHONUNBUFFERED": "1"}
    command = Command(
        "loadgen",
        (sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(spec)),
        environment,
        job.paths.log_of("loadgen"),
        node=job.plan.head_node,
        cwd=job.paths.load,
    )
    child = job.supervisor.start(command, Layer.LOAD, may_end=True)
    pulse = Pulse(SILENT_S)
    status = job.supervisor.wait_for(lambda: _look(job, child, pulse), float("inf"), lambda: "LoadGen never ends")
    if status != 0:
        raise MeasureError(job.supervisor.obituary(child), f"read {command.log}")


def _look(job: Job, child: Child, pulse: Pulse) -> int | None:
    path = job.paths.load / "progress.json"
    seen = json.loads(path.read_text()) if path.exists() else None
    if seen is not None:
        job.progress.say(progress_line(seen))
    status = child.poll()
    if status is None:
        pulse.feel(seen, job.paths.log_of("loadgen"))
    return status


class Pulse:
    """Notices a load client that is alive but does nothing: its progress file changes every second while it works."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._last: dict[str, Any] | None = None
        self._since = time.monotonic()

    def feel(self, seen: dict[str, Any] | None, log: Path) -> None:
        """Take in what the progress file says now.

        Raises:
            MeasureError: It has said the same for too long.
        """
        now = time.monotonic()
        if seen != self._last:
            self._last, self._since = seen, now
        elif now - self._since > self._silent_s:
            raise MeasureError(
                f"loadgen runs but has shown no progress for {self._silent_s:g} s",
                f"look for a process that is stopped or a disk that hangs; read {log}",
            )


def progress_line(seen: dict[str, Any]) -> str:
    """One line for people from LoadGen's progress file."""
    parts = [f"{seen['completed']} of {seen.get('expected_queries') or '?'} queries", f"{seen['in_flight']} in flight"]
    if "ttft" in seen.get("judged", ()) and seen.get("ttft_p99_ms") is not None:
        parts.append(f"TTFT p50 {seen['ttft_p50_ms']:.0f} ms, p99 {seen['ttft_p99_ms']:.0f} ms")
        parts.append(f"TPOT p50 {seen['tpot_p50_ms']:.1f} ms, p99 {seen['tpot_p99_ms']:.1f} ms")
    elif seen.get("p99_ms") is not None:
        parts.append(f"p50 {seen['p50_ms']:.0f} ms, p99 {seen['p99_ms']:.0f} ms")
    if seen.get("over_limit_allowed") is not None:
        parts.append(f"{seen['over_limit']} over the limit of {max(0, seen['over_limit_allowed'])} allowed so far")
    if seen.get("failed"):
        parts.append(f"{seen['failed']} failed")
    if seen.get("left_s"):
        parts.append(f"about {seen['left_s']:.0f} s left")
    return ", ".join(parts)

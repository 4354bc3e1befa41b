"""One LoadGen test against the deployment: a process of its own, the engines' counters around it."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import write_json
from dynamo_mlperf.job.counted import CountedWindow
from dynamo_mlperf.job.in_flight import client_processes, engine_seats, with_offline_bound
from dynamo_mlperf.job.workload import REQUESTS_FILE
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.job.context import Job, Progress
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.record import TransferEvidence
    from dynamo_mlperf.serving.supervisor import Supervisor

    Watch = Callable[[dict[str, Any]], bool]

END_S = 10.0
"""How long a test that is stopped may take to close its connections."""
_ENOUGH_SEEN = 1_000_000
"""In place of an exit status: the test goes on, and nobody needs the rest of it."""
SILENT_S = 180.0
"""Longest time without progress of the load client; it may need 120 s of it to start its processes."""


@dataclass(frozen=True)
class LoadTest:
    """One LoadGen test of a job.

    Attributes:
        name: Of its process and log: `loadgen` for the job's result.
        directory: Takes `measure.json`, `metrics/` and `evidence.json`.
        load_dir: Takes LoadGen's logs and our client's account; its working directory.
        settings: What LoadGen is told.
        requests: The request bodies, one per sample.
        keep_text: Whether answers go into the accuracy log, as text.
        keep_token_ids: Whether they go there as token ids.
        audit_config: Whether LoadGen is to find an `audit.config` in `load_dir`.
        told: What its progress begins with, for people.
        max_tokens: Longest answer that any of its requests asks for; None = unknown.
    """

    name: str
    directory: Path
    load_dir: Path
    settings: LoadSettings
    requests: Path
    keep_text: bool = False
    keep_token_ids: bool = False
    audit_config: bool = False
    told: str = ""
    max_tokens: int | None = None

    @staticmethod
    def of_run(job: Job, settings: LoadSettings) -> LoadTest:
        """The performance test whose result is the job's."""
        return LoadTest("loadgen", job.paths.root, job.paths.load, settings, job.paths.root / REQUESTS_FILE)


def measure(job: Job, deployment: Deployment, test: LoadTest) -> TransferEvidence:
    """Run LoadGen once and read the engines' counters before and after.

    Raises:
        MeasureError: LoadGen could not measure; says why.
        ServingError: Something died meanwhile.
    """
    window = CountedWindow(job, deployment, test.directory)
    run_loadgen(LoadPlace.of_job(job), test, _write_spec(job, deployment, test))
    return window.close(int(json.loads((test.load_dir / "client.json").read_text())["requests"]))


def measure_watched(job: Job, deployment: Deployment, test: LoadTest, watch: Watch) -> TransferEvidence | None:
    """The same, where `watch` may end the test early.

    Returns:
        None where it did: requests in flight were cancelled, and nobody waited for the engines to notice.

    Raises:
        MeasureError: LoadGen could not measure; says why.
        ServingError: Something died meanwhile.
    """
    window = CountedWindow(job, deployment, test.directory)
    if not run_loadgen(LoadPlace.of_job(job), test, _write_spec(job, deployment, test), watch):
        return None
    return window.close(int(json.loads((test.load_dir / "client.json").read_text())["requests"]))


def _write_spec(job: Job, deployment: Deployment, test: LoadTest) -> Path:
    seats = engine_seats(job.topology)
    clients = client_processes(test.settings, seats)
    spec = MeasureSpec(
        settings=with_offline_bound(test.settings, seats, clients),
        requests=test.requests,
        out_dir=test.load_dir,
        frontends=deployment.endpoints.entrances,
        client_workers=clients,
        request_timeout_s=job.topology.timeouts.request_s,
        keep_text=test.keep_text,
        keep_token_ids=test.keep_token_ids,
        audit_config=test.audit_config,
        max_tokens=test.max_tokens,
    )
    path = test.directory / "measure.json"
    write_json(path, spec.to_json())
    return path


@dataclass(frozen=True)
class LoadPlace:
    """Where LoadGen's process runs, and who watches it.

    Attributes:
        supervisor: Starts it.
        paths: The run directory.
        progress: For people.
        run_id: Marks it as a process of the run.
        node: Node position.
    """

    supervisor: Supervisor
    paths: RunPaths
    progress: Progress
    run_id: str
    node: int = 0

    @staticmethod
    def of_job(job: Job) -> LoadPlace:
        """The first node of the job."""
        return LoadPlace(job.supervisor, job.paths, job.progress, job.run_id, job.plan.head_node)


def run_loadgen(place: LoadPlace, test: LoadTest, spec: Path, watch: Watch | None = None) -> bool:
    """Run one LoadGen test to its end.

    Returns:
        False where `watch` had it stopped before its end.

    Raises:
        MeasureError: It could not measure, or hangs.
        Stopped: A signal came.
    """
    test.load_dir.mkdir(exist_ok=True)
    environment = {**inherited_environment(), RUN_VARIABLE: run_mark(place.run_id), "PYTHONUNBUFFERED": "1"}
    command = Command(
        test.name,
        (sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(spec)),
        environment,
        place.paths.log_of(test.name),
        node=place.node,
        cwd=test.load_dir,
    )
    child = place.supervisor.start(command, Layer.LOAD, may_end=True)
    pulse = Pulse(SILENT_S + place.supervisor.start_s)
    status = place.supervisor.wait_for(
        lambda: _look(place, test, child, pulse, watch), float("inf"), lambda: "LoadGen never ends"
    )
    if status == _ENOUGH_SEEN:
        place.supervisor.terminate(child, END_S)
        return False
    if status != 0:
        raise place.supervisor.cause_of(child, MeasureError)
    return True


def _look(place: LoadPlace, test: LoadTest, child: Child, pulse: Pulse, watch: Watch | None) -> int | None:
    path = test.load_dir / "progress.json"
    seen = json.loads(path.read_text()) if path.exists() else None
    if seen is not None:
        place.progress.say(test.told + progress_line(seen))
    status = child.poll()
    if status is None and seen is not None and watch is not None and watch(seen):
        return _ENOUGH_SEEN
    if status is None:
        pulse.feel(seen, child.command.log)
    return status


class Pulse:
    """Notices a load client that is alive but does nothing: its progress file changes every second while it works.

    Its clock alone is no sign of life once every query has ended: LoadGen has nothing to wait for any more.
    """

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
        if seen is not None and seen.get("completed") == seen.get("generated_queries"):
            seen = {**seen, "t_s": None}
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
        parts.append(_over_limit(seen))
    if seen.get("failed"):
        parts.append(f"{seen['failed']} failed")
    if seen.get("left_s"):
        parts.append(f"about {seen['left_s']:.0f} s left")
    elif seen["in_flight"] and seen.get("issued", 0) >= (seen.get("expected_queries") or math.inf):
        parts.append(f"waiting for {seen['in_flight']} {'answer' if seen['in_flight'] == 1 else 'answers'}")
    return ", ".join(parts)


def _over_limit(seen: dict[str, Any]) -> str:
    """Queries over the limit that is worst off; those in flight count once no end of theirs can change it."""
    allowed, early = seen["over_limit_allowed"], seen.get("over_in_flight") or {}
    over = max((number + early.get(name, 0) for name, number in (seen.get("over") or {}).items()), default=0)
    # What is allowed is certain once LoadGen has said how many queries it generated; endpoints is told how many.
    if over > allowed >= 0 and seen.get("generated_queries", seen["expected_queries"]) is not None:
        return f"cannot be VALID any more: {over} over, {allowed} allowed"
    return f"{seen['over_limit']} over the limit of {max(0, allowed)} allowed so far"

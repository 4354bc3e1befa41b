"""The readiness gate: every expected worker listed by every frontend, and each has served a request of its own.

A worker that answers its health check may still be unknown to the router, and a router may know workers that are not
ours; so instances are matched by id, and one request is sent to each worker by name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.counters import Counts, parse_counters, worker_id
from dynamo_mlperf.serving.http import Request, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dynamo_mlperf.record import EventLog
    from dynamo_mlperf.serving.endpoints import Endpoints
    from dynamo_mlperf.serving.supervisor import Supervisor
    from dynamo_mlperf.topology.plan import Worker

HEALTH_EVERY_S = 0.5
LISTING_EVERY_S = 3.0
COUNTERS_SETTLE_S = 15.0
SHOWN_NAMES = 4
DECODE_HEADER = "x-dynamo-worker-instance-id"
PREFILL_HEADER = "x-dynamo-prefill-instance-id"
"""Directed routing of Dynamo 1.6.1; a disaggregated deployment takes both headers together or answers 400."""


@dataclass(frozen=True)
class Gate:
    """What the gate needs.

    Attributes:
        supervisor: Watches for deaths while we wait.
        endpoints: Addresses.
        events: Gets `process_ready` for each worker.
        engine: The topology's engine.
        say: Shows people what is waited for.
        ready_s: Deadline for all workers, in seconds from the gate's start.
        request_s: Deadline of one request.
    """

    supervisor: Supervisor
    endpoints: Endpoints
    events: EventLog
    engine: str
    say: Callable[[str], None]
    ready_s: float
    request_s: float

    @property
    def workers(self) -> Sequence[Worker]:
        """The expected workers."""
        return self.endpoints.plan.workers

    def log_of(self, name: str) -> str:
        """Where the named process logs, for messages."""
        return f"logs/{name}.log"

    def fetch(
        self,
        address: tuple[str, int],
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """One request, the supervisor watching meanwhile."""
        timeout_s = self.request_s if body is not None else 10.0
        request = Request(address, path, body=body, headers=headers, timeout_s=timeout_s)
        return self.supervisor.wait_for(
            request.poll, timeout_s + 5, lambda: f"{path} at {address[0]}:{address[1]} hangs"
        )

    def counters(self, worker: Worker) -> tuple[str, Counts]:
        """A worker's metrics page and the counters on it.

        Raises:
            ServingError: It does not answer.
        """
        response = self.fetch(self.endpoints.system(worker), "/metrics")
        if not response.ok:
            raise ServingError(
                f"{worker.name}: /metrics {response.problem or response.status}", f"read {self.log_of(worker.name)}"
            )
        text = response.body.decode()
        return text, parse_counters(text)


def shortened(names: Sequence[str]) -> str:
    """The first few names, for a line that changes often."""
    return ", ".join(names[:SHOWN_NAMES]) + (" ..." if len(names) > SHOWN_NAMES else "")


def wait_until_healthy(gate: Gate) -> None:
    """Until every worker's own health check says ready.

    Raises:
        ServingError: The deadline went by; names the workers that are missing and their logs.
    """
    started = time.monotonic()
    missing: dict[str, Worker] = {worker.name: worker for worker in gate.workers}
    pending: dict[str, Request] = {}
    next_look = dict.fromkeys(missing, 0.0)

    def look() -> bool | None:
        now = time.monotonic()
        for name, worker in list(missing.items()):
            if name not in pending and now >= next_look[name]:
                pending[name] = Request(gate.endpoints.system(worker), "/health", timeout_s=5.0)
            response = pending[name].poll() if name in pending else None
            if response is None:
                continue
            del pending[name]
            next_look[name] = now + HEALTH_EVERY_S
            if serves_requests(response):
                del missing[name]
                gate.events.add("process_ready", process=name, seconds=round(now - started, 3))
        gate.say(
            f"{len(gate.workers) - len(missing)} of {len(gate.workers)} workers loaded"
            + (f", waiting for {shortened(list(missing))}" if missing else "")
        )
        return None if missing else True

    def late() -> str:
        named = "; ".join(f"{name} on node {worker.node} (log {gate.log_of(name)})" for name, worker in missing.items())
        return f"{len(missing)} of {len(gate.workers)} workers not ready after {gate.ready_s:g} s: {named}"

    gate.supervisor.wait_for(look, gate.ready_s, late)


def serves_requests(response: Response) -> bool:
    """Whether a worker's /health says that its `generate` endpoint is up.

    The overall status does not do: a mocker's stays `notready` (HTTP 503) while it serves (Dynamo 1.6.1).
    """
    if response.status == 0:
        return False
    try:
        endpoints = response.json().get("endpoints", {})
    except (ValueError, AttributeError):
        return False
    return bool(endpoints.get("generate") == "ready")


def instance_ids(gate: Gate) -> dict[str, int]:
    """Dynamo's instance id of each worker, by worker name."""
    found: dict[str, int] = {}
    for worker in gate.workers:
        text, _ = gate.counters(worker)
        number = worker_id(text)
        if number is None:
            raise ServingError(f"{worker.name} serves metrics without a worker_id", f"read {gate.log_of(worker.name)}")
        found[worker.name] = number
    return found


def listed_ids(response: Response) -> set[int]:
    """The instances that a frontend's /health lists with a `generate` endpoint."""
    if not response.ok:
        return set()
    listing = response.json()
    return {int(entry["instance_id"]) for entry in listing.get("instances", []) if entry.get("endpoint") == "generate"}


def wait_until_listed(gate: Gate, ids: Mapping[str, int]) -> None:
    """Until every frontend lists exactly our workers and offers our model.

    Raises:
        ServingError: Workers are missing from a frontend at the deadline, or it lists ones that are not ours.
    """
    expected = set(ids.values())
    for frontend in gate.endpoints.plan.frontends:
        address = gate.endpoints.frontend(frontend)
        name = f"frontend-{frontend.index}"
        seen: set[int] = set()

        def look(address: tuple[str, int] = address, name: str = name, seen: set[int] = seen) -> bool | None:
            found = listed_ids(gate.fetch(address, "/health"))
            seen.clear()
            seen.update(found)
            gate.say(f"{name} lists {len(found & expected)} of {len(expected)} workers")
            if found - expected:
                raise ServingError(
                    f"{name} lists {len(found - expected)} workers that are not of this job",
                    "give the job a discovery of its own (frontends: {discovery: etcd})",
                )
            if found != expected:
                return None
            models = gate.fetch(address, "/v1/models")
            return True if models.ok and gate.endpoints.model.encode() in models.body else None

        def late(name: str = name, seen: set[int] = seen) -> str:
            absent = [worker for worker, number in ids.items() if number not in seen]
            counted = f"{name} lists {len(seen)} of {len(expected)} workers"
            return f"{counted} after {gate.ready_s:g} s, without {', '.join(absent)}"

        gate.supervisor.wait_for(look, gate.ready_s, late)


def directed_headers(ids: Mapping[str, int], prefill: str | None, decode: str) -> dict[str, str]:
    """Headers that send a request to one named worker (and to one named prefill worker)."""
    headers = {DECODE_HEADER: str(ids[decode])}
    return {**headers, PREFILL_HEADER: str(ids[prefill])} if prefill else headers


def worker_pairs(workers: Sequence[Worker]) -> list[tuple[str | None, str]]:
    """Pairs (prefill, decode) that between them name every worker at least once; (None, worker) when aggregated."""
    prefill = [worker.name for worker in workers if worker.role == "prefill"]
    rest = [worker.name for worker in workers if worker.role != "prefill"]
    if not prefill:
        return [(None, name) for name in rest]
    return [(prefill[i % len(prefill)], rest[i % len(rest)]) for i in range(max(len(prefill), len(rest)))]


class ListingWatch:
    """While the load runs: a worker that is alive but no longer listed ends the job.

    A starved process can lose its discovery entry and never registers again; requests would then fail or pile up on
    the others.
    """

    def __init__(self, endpoints: Endpoints, ids: Mapping[str, int]) -> None:
        self._endpoints = endpoints
        self._ids = ids
        self._next = time.monotonic() + LISTING_EVERY_S
        self._pending: Request | None = None

    def look(self) -> None:
        """One look; costs nothing between two of them.

        Raises:
            ServingError: Names the workers that are gone from the listing.
        """
        if self._pending is None:
            if time.monotonic() < self._next:
                return
            self._pending = Request(
                self._endpoints.frontend(self._endpoints.plan.frontends[0]), "/health", timeout_s=20.0
            )
        response = self._pending.poll()
        if response is None:
            return
        self._pending = None
        self._next = time.monotonic() + LISTING_EVERY_S
        if not response.ok:  # a busy frontend is judged by the load, a dead one by the supervisor
            return
        found = listed_ids(response)
        gone = [name for name, number in self._ids.items() if number not in found]
        if gone:
            raise ServingError(
                f"{', '.join(gone)} runs but is no longer listed by the frontend",
                f"read logs/{gone[0]}.log; a starved process loses its lease",
            )

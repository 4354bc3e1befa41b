"""The readiness gate: every expected worker listed by every frontend, and each has served a request of its own.

A worker that answers its health check may still be unknown to the router, and a router may know workers that are not
ours; so instances are matched by id, and one request is sent to each worker by name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.counters import worker_id
from dynamo_mlperf.serving.http import Request, Response
from dynamo_mlperf.serving.loading import Loading, shortened
from dynamo_mlperf.serving.sign_of_life import lost_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from dynamo_mlperf.record import EventLog
    from dynamo_mlperf.serving.endpoints import Endpoints
    from dynamo_mlperf.serving.supervisor import Supervisor
    from dynamo_mlperf.topology.plan import Frontend, Worker

HEALTH_EVERY_S = 0.2
LISTING_EVERY_S = 3.0
LISTING_SETTLES_S = 0.2
"""How often a frontend is asked for its listing while workers register: with hundreds of them it is a long text."""
AT_ONCE = 32
"""Requests of the controller that are under way at once: its one thread, and the servers, keep up with that."""
COUNTERS_SETTLE_S = 15.0
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
        lost: Names of workers that the job goes on without.
    """

    supervisor: Supervisor
    endpoints: Endpoints
    events: EventLog
    engine: str
    say: Callable[[str], None]
    ready_s: float
    request_s: float
    lost: Collection[str] = ()

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that count: those that are lost are left out."""
        return [worker for worker in self.endpoints.plan.workers if worker.name not in self.lost]

    def log_of(self, name: str) -> str:
        """Where the named worker logs, in the run directory, for messages."""
        return f"logs/{self.supervisor.log_of(self.endpoints.process_of(name)).name}"

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

    def fetch_each(self, places: Mapping[str, tuple[str, int]], path: str, what: str) -> dict[str, Response]:
        """The same page of many places, AT_ONCE at a time, the supervisor watching meanwhile."""
        waiting = dict(places)
        running: dict[str, Request] = {}
        found: dict[str, Response] = {}

        def turn() -> bool | None:
            for name, request in list(running.items()):
                response = request.poll()
                if response is not None:
                    found[name] = response
                    del running[name]
            while waiting and len(running) < AT_ONCE:
                name = next(iter(waiting))
                running[name] = Request(waiting.pop(name), path, timeout_s=10.0)
            return None if running or waiting else True

        self.supervisor.wait_for(turn, 10.0 * (1 + len(places) / AT_ONCE) + 5, lambda: f"{what}: {path} hangs")
        return {name: found[name] for name in places}

    def metrics(self) -> dict[str, str]:
        """The metrics page of each worker, by its name.

        Raises:
            ServingError: One does not answer.
        """
        places = {worker.name: self.endpoints.system(worker) for worker in self.workers}
        pages = self.fetch_each(places, "/metrics", "engine counters")
        for name, response in pages.items():
            if not response.ok:
                what = f"{name}: /metrics {response.problem or response.status}"
                raise lost_nodes(self.endpoints, [name], what) or ServingError(what, f"read {self.log_of(name)}")
        return {name: response.body.decode() for name, response in pages.items()}


def wait_until_healthy(gate: Gate, known: Collection[str] = ()) -> None:
    """Until every worker's own health check says ready.

    Args:
        gate: The readiness gate.
        known: Workers that were ready before and have served on: that they still are is no event.

    Raises:
        ServingError: The deadline went by; names the workers that are missing and their logs.
    """
    started = time.monotonic()
    missing = {worker.name: worker for worker in gate.workers}
    total = len(missing)
    pending: dict[str, Request] = {}
    next_look = dict.fromkeys(missing, 0.0)
    loading = Loading(gate)

    def look() -> bool | None:
        now = time.monotonic()
        for name, worker in list(missing.items()):
            if name not in pending and now >= next_look[name] and len(pending) < AT_ONCE:
                pending[name] = Request(gate.endpoints.system(worker), "/health", timeout_s=5.0)
            response = pending[name].poll() if name in pending else None
            if response is None:
                continue
            del pending[name]
            next_look[name] = now + HEALTH_EVERY_S
            if serves_requests(response):
                del missing[name]
                if name not in known:
                    gate.events.add("process_ready", process=name, seconds=round(now - started, 3))
        gate.say(f"{total - len(missing)} of {total} workers loaded{loading.hint(list(missing), now)}")
        return None if missing else True

    def late() -> str:
        named = "; ".join(f"{name} on node {one.node} (log {gate.log_of(name)})" for name, one in missing.items())
        return f"{len(missing)} of {total} workers not ready after {gate.ready_s:g} s: {named}"

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


def listed_ids(response: Response) -> dict[int, str]:
    """The instances that a frontend's /health lists with a `generate` endpoint, each with its process's `host:port`.

    Source: Dynamo 1.6.1 gives the request plane's address as `HOST:PORT/...`; all instances of a process share it.
    """
    if not response.ok:
        return {}
    entries = response.json().get("instances", [])
    return {
        int(entry["instance_id"]): str((entry.get("transport") or {}).get("tcp", "")).partition("/")[0]
        for entry in entries
        if entry.get("endpoint") == "generate"
    }


def wait_until_listed(gate: Gate) -> dict[str, int]:
    """Until every frontend lists exactly our workers and offers our model.

    Returns:
        Dynamo's instance id of each worker, by worker name.

    Raises:
        ServingError: Workers are missing from a frontend at the deadline, it lists ones that are not ours, or a worker
            advertises an address that is not the one that it was given.
    """
    ids = _instance_ids(gate)
    for frontend in gate.endpoints.plan.frontends:
        _wait_for_listing(gate, frontend, ids)
    return ids


def _instance_ids(gate: Gate) -> dict[str, int]:
    """Dynamo's instance id of each worker, by worker name, from its own metrics."""
    found: dict[str, int] = {}
    for name, text in gate.metrics().items():
        number = worker_id(text)
        if number is None:
            raise ServingError(f"{name} serves metrics without a worker_id", f"read {gate.log_of(name)}")
        found[name] = number
    return found


def _wait_for_listing(gate: Gate, frontend: Frontend, ids: Mapping[str, int]) -> None:
    address = gate.endpoints.frontend(frontend)
    name = f"frontend-{frontend.index}"
    seen: dict[int, str] = {}
    next_look = 0.0

    def look() -> bool | None:
        nonlocal next_look, seen
        if time.monotonic() < next_look:
            return None
        seen = listed_ids(gate.fetch(address, "/health"))
        next_look = time.monotonic() + LISTING_SETTLES_S
        check_addresses(gate, ids, seen)
        expected = set(ids.values())
        gate.say(f"{name} lists {len(expected & seen.keys())} of {len(expected)} workers")
        if seen.keys() - expected:
            raise ServingError(
                f"{name} lists {len(seen.keys() - expected)} workers that are not of this job",
                "give the job a discovery of its own (frontends: {discovery: etcd})",
            )
        if seen.keys() != expected:
            return None
        models = gate.fetch(address, "/v1/models")
        return True if models.ok and gate.endpoints.model.encode() in models.body else None

    def late() -> str:
        absent = [worker for worker, number in ids.items() if number not in seen]
        counted = f"{name} lists {len(seen)} of {len(ids)} workers"
        return f"{counted} after {gate.ready_s:g} s, without {', '.join(absent)}"

    gate.supervisor.wait_for(look, gate.ready_s, late)


def wait_until_unlisted(gate: Gate, ids: Mapping[str, int]) -> None:
    """Until no frontend lists these workers, which have ended.

    Args:
        gate: The gate.
        ids: Their instance ids by name.

    Raises:
        ServingError: A frontend still lists one at the deadline.
    """
    for frontend in gate.endpoints.plan.frontends:
        _wait_until_unlisted(gate, frontend, ids)


def _wait_until_unlisted(gate: Gate, frontend: Frontend, ids: Mapping[str, int]) -> None:
    address, name = gate.endpoints.frontend(frontend), f"frontend-{frontend.index}"
    left = list(ids)
    next_look = 0.0

    def look() -> bool | None:
        nonlocal next_look, left
        if time.monotonic() < next_look:
            return None
        response = gate.fetch(address, "/health")
        next_look = time.monotonic() + LISTING_SETTLES_S
        if not response.ok:
            return None
        seen = listed_ids(response)
        left = [worker for worker, number in ids.items() if number in seen]
        gate.say(f"{name} still lists {shortened(left)}" if left else f"{name} lists none of the stopped workers")
        return None if left else True

    gate.supervisor.wait_for(
        look, gate.ready_s, lambda: f"{name} still lists {shortened(left)}, stopped {gate.ready_s:g} s ago"
    )


def check_addresses(gate: Gate, ids: Mapping[str, int], listing: Mapping[int, str]) -> None:
    """Hold what the workers advertise against the addresses that they were given.

    Raises:
        ServingError: A worker advertises another address than its node's.
    """
    for worker in gate.workers:
        place, address = listing.get(ids[worker.name], ""), gate.endpoints.node_of(worker).address
        if place and place.rpartition(":")[0] != address:
            raise ServingError(
                f"{worker.name} advertises {place}, its node's address is {address}",
                "set interface in the site file, and take DYN_TCP_RPC_HOST out of its environment",
            )


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

    Attributes:
        endpoints: Addresses; a sweep puts those of its next split in their place.
    """

    def __init__(self, endpoints: Endpoints, ids: Mapping[str, int]) -> None:
        """Watch the workers of `ids` (instance id by name); what the caller takes out of it is watched no more."""
        self.endpoints = endpoints
        self._ids = ids
        self._next = time.monotonic() + LISTING_EVERY_S
        self._pending: Request | None = None
        self._asked: dict[str, int] = {}

    def look(self) -> None:
        """One look; costs nothing between two of them.

        Raises:
            ServingError: Names the workers that are gone from the listing.
        """
        if self._pending is None:
            if time.monotonic() < self._next:
                return
            self._asked = dict(self._ids)
            self._pending = Request(
                self.endpoints.frontend(self.endpoints.plan.frontends[0]), "/health", timeout_s=20.0
            )
        response = self._pending.poll()
        if response is None:
            return
        self._pending = None
        self._next = time.monotonic() + LISTING_EVERY_S
        if not response.ok:  # a busy frontend is judged by the load, a dead one by the supervisor
            return
        found = listed_ids(response)
        # One that came or went since the question is none of this answer's business.
        asked = {name: number for name, number in self._ids.items() if self._asked.get(name) == number}
        gone = [name for name, number in asked.items() if number not in found]
        if gone:
            lost = lost_nodes(self.endpoints, gone, f"{shortened(gone)} is no longer listed by the frontend")
            raise lost or ServingError(
                f"{shortened(gone)} runs but is no longer listed by the frontend",
                f"read logs/{gone[0]}.log; a starved process loses its lease",
            )

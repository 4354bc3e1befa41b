"""Replicas that die while the job goes on without them: who, when, and whether they came back.

Only where the topology file allows it (`on_worker_loss`). The verdict is told: an official run with a loss is INVALID.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.record import Reason, Verdict
from dynamo_mlperf.serving.counters import worker_id
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.readiness import HEALTH_EVERY_S, listed_ids, serves_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.serving.counters import Counts
    from dynamo_mlperf.serving.endpoints import Endpoints, EngineProcess
    from dynamo_mlperf.topology.spec import Topology

RESTARTS = 3
"""How often one replica is started anew; one that dies more often is broken, not unlucky."""
SLOW = 1.5
"""A straggler's requests take this many times as long as the median worker's of its role."""
LEAST_REQUESTS = 5
"""Requests of a worker from which on its mean says something."""


@dataclass
class Loss:
    """One death of a replica.

    Attributes:
        process: The engine process.
        node: Its node position.
        host: Its node.
        t: When it was noticed, in seconds since the epoch.
        how: How it ended, without its log.
        became: `dropped`, `restarting` or `restarted`.
        back_s: Seconds from its death until it served again; None while or when it does not.
    """

    process: str
    node: int
    host: str
    t: float
    how: str
    became: str
    back_s: float | None = None

    def text(self) -> str:
        """For people."""
        back = f", served again after {self.back_s:.1f} s" if self.back_s is not None else ""
        return f"{self.process} on node {self.node} ({self.host}) {self.how}: {self.became}{back}"


def tolerated(topology: Topology) -> bool:
    """Whether the file lets the job go on after some loss."""
    return any(role.on_worker_loss != "fail" for _name, role in topology.roles.present())


class Losses:
    """Takes the deaths of replicas, and brings them back where the file says `restart`."""

    def __init__(
        self,
        job: Job,
        endpoints: Endpoints,
        ids: dict[str, int],
        start: Callable[[EngineProcess], Sequence[Child]],
    ) -> None:
        """Watch the replicas.

        Args:
            job: The job.
            endpoints: Its addresses.
            ids: Instance ids by worker name; workers are taken out and put back as they die and return.
            start: Starts an engine process.
        """
        self._job = job
        self._endpoints = endpoints
        self._ids = ids
        self._start = start
        self._children: dict[str, Sequence[Child]] = {}
        self._returns: dict[str, _Return] = {}
        self.found: list[Loss] = []
        self.lost: set[str] = set()
        self.open = False

    def started(self, process: EngineProcess, children: Sequence[Child]) -> None:
        """Note the children of an engine process."""
        self._children[process.name] = children

    def follow(self, job: Job, endpoints: Endpoints) -> None:
        """The job goes on with other workers."""
        self._job, self._endpoints = job, endpoints

    def let_go(self, process: EngineProcess) -> Sequence[Child]:
        """The children of an engine process that is to be stopped; its end is no loss, and it is not brought back."""
        self._returns.pop(process.name, None)
        self.lost.difference_update(worker.name for worker in process.workers)
        return self._children.pop(process.name, ())

    def fell(self, process: EngineProcess, child: Child) -> None:
        """An engine process ended: the job goes on without it, for good or until it is back.

        Raises:
            ServingError: No worker is left, or the deployment has not stood yet.
        """
        if not self.open:
            raise self._job.supervisor.cause_of(child)
        if child not in self._children[process.name]:
            return  # another child of a replica that was given up already
        job, policy = self._job, dict(self._job.topology.roles.present())[process.first.role].on_worker_loss
        obituary = job.supervisor.obituary(child)
        times = sum(1 for loss in self.found if loss.process == process.name)
        again = policy == "restart" and times < RESTARTS
        host = self._endpoints.nodes[process.node].host
        how = obituary.partition(") ")[2].partition(";")[0]
        loss = Loss(process.name, process.node, host, time.time(), how, "restarting" if again else "dropped")
        self.found.append(loss)
        job.events.add("worker_lost", process=process.name, node=process.node, how=how, became=loss.became)
        for worker in process.workers:
            self.lost.add(worker.name)
            self._ids.pop(worker.name, None)
        job.supervisor.end([other for other in self._children[process.name] if other is not child])
        self._children[process.name] = ()
        self._returns.pop(process.name, None)
        if again:
            self.started(process, self._start(process))
            self._returns[process.name] = _Return(process, loss, time.monotonic())
        elif len(self.lost) == len(self._endpoints.plan.workers) and not self._returns:
            raise ServingError(f"no worker is left; the last: {obituary}", job.supervisor.advice(child))

    def dropped(self, process: EngineProcess, factor: float) -> None:
        """A straggler was stopped before the measurement: the job goes on without it, as without one that died."""
        host = self._endpoints.nodes[process.node].host
        how = f"took {factor:g} times as long as the median worker in the warm-up"
        self.found.append(Loss(process.name, process.node, host, time.time(), how, "dropped"))
        self._job.events.add("worker_lost", process=process.name, node=process.node, how=how, became="dropped")
        self.lost.update(worker.name for worker in process.workers)

    def look(self) -> None:
        """One look at those that are to return.

        Raises:
            ServingError: One did not, and no worker is left.
        """
        for name, back in list(self._returns.items()):
            if back.look(self._endpoints):
                del self._returns[name]
                back.loss.became, back.loss.back_s = "restarted", round(time.monotonic() - back.since, 3)
                self._ids.update(back.ids)
                self.lost.difference_update(back.ids)
                self._job.events.add("worker_back", process=name, seconds=back.loss.back_s)
            elif time.monotonic() - back.since > self._job.topology.timeouts.ready_s:
                self._give_up(name, back)

    def _give_up(self, name: str, back: _Return) -> None:
        del self._returns[name]
        back.loss.became = "dropped"
        self._job.events.add("worker_dropped", process=name)
        self._job.supervisor.end(self._children[name])
        self._children[name] = ()
        if len(self.lost) == len(self._endpoints.plan.workers) and not self._returns:
            raise ServingError("no worker is left, none came back in time", f"read logs/{name}.log")

    def since(self, t: float) -> set[str]:
        """Names of workers that have died since then: their counters began anew, or are gone."""
        fallen = {loss.process for loss in self.found if loss.t >= t}
        return {
            worker.name for process in self._endpoints.processes if process.name in fallen for worker in process.workers
        }

    def as_json(self) -> list[dict[str, Any]]:
        """For the record."""
        return [asdict(loss) for loss in self.found]


class _Return:
    """A replica that was started anew, on its way back: healthy, known by its id, listed by the first frontend."""

    def __init__(self, process: EngineProcess, loss: Loss, since: float) -> None:
        self._waiting = list(process.workers)
        self._next = since
        self._pending: tuple[str, Request] | None = None
        self._healthy = False
        self.loss = loss
        self.since = since
        self.ids: dict[str, int] = {}

    def look(self, endpoints: Endpoints) -> bool:
        """Whether it is back; asks one question at a time and never waits for the answer."""
        if self._pending is None:
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + HEALTH_EVERY_S
                self._pending = self._question(endpoints)
            return False
        what, request = self._pending
        response = request.poll()
        if response is None:
            return False
        self._pending = None
        if what == "listing":
            return set(self.ids.values()) <= listed_ids(response).keys()
        if what == "health":
            self._healthy = serves_requests(response)
        elif response.ok:
            number = worker_id(response.body.decode())
            if number is not None:
                self.ids[self._waiting.pop(0).name] = number
                self._healthy = False
        self._next = 0.0 if self._healthy else self._next
        return False

    def _question(self, endpoints: Endpoints) -> tuple[str, Request]:
        if not self._waiting:
            return "listing", Request(endpoints.frontend(endpoints.plan.frontends[0]), "/health", timeout_s=20.0)
        place = endpoints.system(self._waiting[0])
        path = "metrics" if self._healthy else "health"
        return path, Request(place, f"/{path}", timeout_s=5.0)


def stragglers(moved: Mapping[str, Counts]) -> dict[str, float]:
    """Workers whose requests took SLOW times as long as the median worker's of their role, with that factor.

    Args:
        moved: What each worker counted in the measured window, by name (`decode-3`).
    """
    means: dict[str, dict[str, float]] = {}
    for name, counts in moved.items():
        if counts["served"] >= LEAST_REQUESTS:
            means.setdefault(name.rpartition("-")[0], {})[name] = counts["served_ms"] / counts["served"]
    found: dict[str, float] = {}
    for of_role in means.values():
        usual = median(of_role.values())
        found |= {name: round(mean / usual, 2) for name, mean in of_role.items() if usual and mean > SLOW * usual}
    return found


def told(verdict: Verdict, losses: Sequence[Loss], slow: Mapping[str, float]) -> Verdict:
    """The verdict with what happened to the workers: notes, and INVALID where an official run lost one."""
    notes = [f"lost: {loss.text()}" for loss in losses]
    notes += [f"straggler: {name}'s requests took {factor:g} times the median" for name, factor in slow.items()]
    changed = replace(verdict, notes=(*verdict.notes, *notes))
    if not losses or verdict.result_class != "official" or verdict.verdict == "FAILED":
        return changed
    reason = Reason(
        "workers lost",
        "none in an official run",
        losses[0].text() + (f" and {len(losses) - 1} more" if len(losses) > 1 else ""),
        "run again on nodes that hold; on_worker_loss is for tuning",
    )
    return replace(changed, verdict="INVALID", reasons=(*verdict.reasons, reason))

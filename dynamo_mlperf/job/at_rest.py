"""Between two probes the engines come to rest: what runs, waits and fills KV cache is back to where it was before.

A probe that was stopped leaves requests that the engines still have to notice as gone, and KV blocks that wait for a
partner; a next probe would pay for them. Engines that do not come to rest in time are restarted, and that is recorded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.gauges import Gauges, above, parse_gauges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.topology.searching import Search

LOOK_S = 0.2
KV_ROOM = 0.002
"""Share of KV cache by which a worker may differ from its baseline: a block or two of requests that went well."""
NUDGE_AFTER = 0.25
"""Share of the deadline after which each worker gets requests: an engine that idles may not tell its gauges anew."""
SHOWN = 3


class Rest:
    """Knows the engines at rest, and brings them back there.

    Args:
        job: The job.
        deployment: What serves.
        settings: Deadline, and whether workers are restarted.
        bodies: Requests for a nudge, with short answers.
    """

    def __init__(self, job: Job, deployment: Deployment, settings: Search, bodies: Sequence[bytes]) -> None:
        self._job, self._deployment, self._settings, self._bodies = job, deployment, settings, bodies
        self._baseline: Mapping[str, Gauges] = {}

    def reach(self) -> dict[str, Any]:
        """Wait for rest; the first time, take it as the baseline.

        Returns:
            For the record: `seconds` that it took, whether workers were `restarted`, what was `above` the baseline at
            first, and the `baseline` (worker -> gauge -> value).

        Raises:
            ServingError: The workers do not come to rest, or not up again after a restart.
        """
        began = time.monotonic()
        first = self._busy()
        restarted = not self._wait(began)
        if restarted:
            self._restart(self._busy())
        if restarted or not self._baseline:
            self._baseline = self._read()
        seconds = round(time.monotonic() - began, 3)
        if first:
            self._job.events.add("at_rest", seconds=seconds, restarted=restarted, above=first)
        return {"seconds": seconds, "restarted": restarted, "above": first, "baseline": dict(self._baseline)}

    def _read(self) -> dict[str, Gauges]:
        return {name: parse_gauges(page) for name, page in self._deployment.gate.metrics().items()}

    def _busy(self) -> dict[str, dict[str, float]]:
        """What is above the baseline, by worker. Before there is one, KV cache is not looked at."""
        found = {}
        for name, gauges in self._read().items():
            before = self._baseline.get(name)
            over = above(gauges, before or {}, KV_ROOM if before is not None else float("inf"))
            if over:
                found[name] = over
        return found

    def _wait(self, began: float) -> bool:
        """Whether the engines came to rest by themselves, or after a nudge."""
        nudged = False
        while busy := self._busy():
            past_s = time.monotonic() - began
            if past_s > self._settings.rest_s:
                return False
            self._job.progress.say(f"coming to rest: {_shown(busy)}")
            if past_s > NUDGE_AFTER * self._settings.rest_s and not nudged:
                nudged = True
                self._nudge()
            self._job.supervisor.pause(LOOK_S)
        return True

    def _nudge(self) -> None:
        count = 2 * len(self._deployment.gate.workers)
        self._deployment.warm_up([self._bodies[turn % len(self._bodies)] for turn in range(count)])

    def _restart(self, busy: Mapping[str, Mapping[str, float]]) -> None:
        what = f"{len(busy)} workers did not come to rest within {self._settings.rest_s:g} s: {_shown(busy)}"
        if not self._settings.restart_workers:
            raise ServingError(what, "raise search.rest_s, or let the search restart them (restart_workers: true)")
        names = [worker.name for worker in self._deployment.gate.workers]
        self._job.events.add("warning", what=f"{what}; they are restarted")
        self._job.events.add("workers_restarted", workers=names, above=busy)
        self._job.progress.say(f"restarting {len(names)} workers: {_shown(busy)}")
        try:
            self._deployment.restart(names)
            self._deployment.warm_up(self._bodies)
        except ServingError as problem:
            raise ServingError(f"{what}; restarted, not all came up again: {problem.what}", problem.action) from problem


def _shown(busy: Mapping[str, Mapping[str, float]]) -> str:
    """The first few workers and what each still holds, for people."""
    told = [
        f"{name} {', '.join(f'{gauge} {value:g}' for gauge, value in gauges.items())}"
        for name, gauges in list(busy.items())[:SHOWN]
    ]
    return "; ".join(told) + (" ..." if len(busy) > SHOWN else "")

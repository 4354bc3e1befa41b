"""Workers that are far slower than their peers, found before anything is measured: a bad GPU, a hot or a busy node."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from dynamo_mlperf.job.losses import LEAST_REQUESTS, SLOW
from dynamo_mlperf.serving.canary import serve_each
from dynamo_mlperf.serving.readiness import worker_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.serving.readiness import Gate
    from dynamo_mlperf.topology.spec import Topology

FEWEST_WORKERS = 3
"""Workers of a role from which on one can be told from its peers."""


def looked_for(topology: Topology) -> bool:
    """Whether the file has stragglers dropped, and there are peers to compare with."""
    return any(role.drop_stragglers and role.workers >= FEWEST_WORKERS for _name, role in topology.roles.present())


def slow_workers(gate: Gate, ids: Mapping[str, int], bodies: Sequence[bytes]) -> dict[str, float]:
    """Aggregated workers whose requests take SLOW times as long as the median worker's, with that factor.

    Each worker gets LEAST_REQUESTS requests of its own by name through every frontend, one after another, all workers
    side by side. What counts is its median request, so one that waited for a compilation does not decide; and it is
    timed here, as a process that is stopped or starved does not count the time that it does not see.

    Args:
        gate: The readiness gate.
        ids: Instance ids by worker name.
        bodies: Warm-up requests, at least one.

    Raises:
        ServingError: A worker did not serve.
    """
    asked = [bodies[number % len(bodies)] for number in range(LEAST_REQUESTS)]
    seconds = iter(serve_each(gate, ids, asked)["seconds"])
    took: dict[str, list[float]] = {}
    for _frontend in gate.endpoints.plan.frontends:
        for _prefill, name in worker_pairs(gate.workers):
            took.setdefault(name, []).extend(next(seconds) for _body in asked)
    usual = median(map(median, took.values()))
    return {name: round(median(own) / usual, 2) for name, own in took.items() if usual and median(own) > SLOW * usual}

"""Every state that Slurm gives a job, and what it means for a run.

Names from squeue(1) and sacct(1), "JOB STATE CODES", of Slurm 22.05; EXPEDITING is of 25.11. A name that is not in the
table counts as UNKNOWN: neither running nor ended well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETED = "COMPLETED"
PENDING = "PENDING"
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class State:
    """A job state.

    Attributes:
        stage: `waiting` for nodes, `running` on them, `ended`, or `unknown`.
        meaning: For people.
    """

    stage: str
    meaning: str


_WAITING = {
    PENDING: "waits for nodes",
    "CONFIGURING": "its nodes are being made ready",
    "POWER_UP_NODE": "its nodes are being powered up",
    "REQUEUED": "put back into the queue; it would run from the top",
    "REQUEUE_FED": "put back into the queue by a federation",
    "REQUEUE_HOLD": "put back into the queue and held",
    "SPECIAL_EXIT": "put back into the queue and held, in a special state",
    "RESV_DEL_HOLD": "held, as its reservation was deleted",
    "STAGE_OUT": "files are being staged out",
    "EXPEDITING": "put back into the queue ahead of others",
}
_RUNNING = {
    "RUNNING": "runs",
    "COMPLETING": "ends; some of its processes still run",
    "RESIZING": "changes its size",
    "SIGNALING": "is being signalled",
    "STOPPED": "holds its nodes, but its processes are stopped",
    "SUSPENDED": "suspended: its nodes are lent to other jobs",
}
_ENDED = {
    COMPLETED: "ended with exit code 0",
    "CANCELLED": "was cancelled",
    "FAILED": "ended with an exit code that is not 0",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted by another job",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "reached its deadline",
    "LAUNCH_FAILED": "could not be launched",
    "RECONFIG_FAIL": "its nodes could not be reconfigured",
    "REVOKED": "went to another cluster of the federation",
}
STATES: Mapping[str, State] = {
    **{name: State("waiting", meaning) for name, meaning in _WAITING.items()},
    **{name: State("running", meaning) for name, meaning in _RUNNING.items()},
    **{name: State("ended", meaning) for name, meaning in _ENDED.items()},
    UNKNOWN: State("unknown", "Slurm does not know it any more, or does not answer"),
}


def state_name(written: str) -> str:
    """The state in what sacct or scontrol writes: `CANCELLED by 1000`, `CANCELLED+`, `RUNNING`."""
    name = written.strip().split(" ")[0].split(",")[0].rstrip("+").upper()
    return name if name in STATES else UNKNOWN

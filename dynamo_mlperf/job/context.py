"""What one job is made of, and where its progress is shown."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dynamo_mlperf.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.job.agents import NodeAgents
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.process.ports import PortClaim
    from dynamo_mlperf.process.shared_memory import SharedMemoryNotes
    from dynamo_mlperf.record import EventLog, ResultClass
    from dynamo_mlperf.serving.supervisor import Supervisor
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology


class Progress(Protocol):
    """Shows people where the job is."""

    def phase(self, name: str) -> None:
        """A phase begins."""
        ...

    def say(self, text: str) -> None:
        """What is being waited for right now."""
        ...

    def note(self, text: str) -> None:
        """Something that has happened, on a line that stays."""
        ...

    def cut_short(self, how: str) -> None:
        """The phase that runs ends before its end: `stopped` or `failed`."""
        ...


@contextlib.contextmanager
def phase(progress: Progress, events: EventLog, name: str) -> Iterator[None]:
    """A phase, shown and on record; one that is cut short is told apart from one that ended."""
    progress.phase(name)
    events.add("phase_begin", phase=name)
    try:
        yield
    except BaseException as problem:
        progress.cut_short("stopped" if isinstance(problem, Stopped) else "failed")
        raise
    finally:
        events.add("phase_end", phase=name)


@dataclass(frozen=True)
class Job:
    """One job: decided values, and the means to act on them.

    Attributes:
        topology: The topology file's content.
        plan: The plan, by node position.
        site: The site's settings.
        base_dir: Relative paths of the topology file resolve against it.
        run_id: Names the run directory and marks every process.
        nonce: Makes namespace and model name this job's own.
        paths: The run directory.
        allocation: Nodes and how to start on them.
        supervisor: Owns the processes.
        events: The event log.
        ports: The claim to this job's ports on this host.
        scratch: Directory on tmpfs of the node that the controller runs on; removed when everything has stopped.
        shared_memory: Notes of what our processes on this machine map.
        agents: The run's agents on the nodes of a Slurm job.
        resume: The run directory whose search or sweep goes on here; None = begun anew.
        origin: The topology with the file's own split, where a sweep has put another one in its place.
        progress: For people.
    """

    topology: Topology
    plan: Plan
    site: Site
    base_dir: Path
    run_id: str
    nonce: str
    paths: RunPaths
    allocation: Allocation
    supervisor: Supervisor
    events: EventLog
    progress: Progress
    ports: PortClaim
    scratch: Path
    shared_memory: SharedMemoryNotes
    agents: NodeAgents
    resume: Path | None = None
    origin: Topology | None = None

    @property
    def scoped_name(self) -> str:
        """The topology's name with the nonce."""
        return f"{self.topology.name}-{self.nonce}"

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase of the job; see `phase`."""
        return phase(self.progress, self.events, name)

    @property
    def result_class(self) -> ResultClass:
        """What the result may be called."""
        return class_of(self.topology)


def class_of(topology: Topology) -> ResultClass:
    """What the result of a job with this file may be called."""
    if topology.engine == "mocker":
        return "rehearsal"
    return "reduced" if topology.reduced is not None else "official"


def new_nonce() -> str:
    """Six hex digits that no other job is likely to have."""
    return secrets.token_hex(3)


def local_run_id(name: str, nonce: str) -> str:
    """The id of a run on this machine."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{nonce}"

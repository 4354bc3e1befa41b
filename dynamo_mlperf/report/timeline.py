"""What happened when: phases and processes out of the events of a run. All times are seconds after the first event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.report.quantities import number_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOP_PHASE = "stop"
"""The phase in which processes are asked to exit; an exit before it was not asked for."""
_RECORD_PHASE = "record"
"""The phase in which a run writes its page."""


@dataclass(frozen=True)
class Phase:
    """One phase of the job; `end_s` is None where it did not end."""

    name: str
    begin_s: float
    end_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took; None where it did not end."""
        return None if self.end_s is None else self.end_s - self.begin_s


@dataclass(frozen=True)
class Process:
    """The life of one process.

    Attributes:
        name: The process as the job names it, `decode-0` for one.
        node: Node position (or whatever the event gives) as text.
        started_s: When it was started.
        ready_s: When it was ready; None where that was never seen.
        ready_after_s: Seconds from its start to ready, as the job measured them.
        exited_s: When it exited; None where no exit is on record.
        status: Its exit status as recorded.
        died: Whether it ended on its own when it should have kept running: before the stop phase, and either with
            a status other than 0 or after it had been ready to serve.
    """

    name: str
    node: str
    started_s: float
    ready_s: float | None = None
    ready_after_s: float | None = None
    exited_s: float | None = None
    status: str = ""
    died: bool = False


@dataclass(frozen=True)
class Timeline:
    """A run's events in order.

    Attributes:
        began_at: Epoch seconds of the first event; None without events.
        length_s: Seconds from the first event to the last.
        phases: Phases in the order in which they began.
        processes: Processes in the order in which they were started.
        errors: Texts of the `error` events.
        warnings: Texts of the `warning` events.
        staged: The `staged` events.
    """

    began_at: float | None
    length_s: float
    phases: tuple[Phase, ...]
    processes: tuple[Process, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    staged: tuple[Mapping[str, Any], ...]

    @property
    def deaths(self) -> tuple[Process, ...]:
        """Processes that died, the first death first: it is the cause, later ones are consequences."""
        return tuple(sorted((p for p in self.processes if p.died), key=lambda p: p.exited_s or 0.0))


def build_timeline(events: Sequence[Mapping[str, Any]]) -> Timeline:
    """The timeline of `events`; an event without a usable time is left out."""
    timed = sorted(
        ((at, event) for event in events if (at := number_or_none(event.get("t"))) is not None),
        key=lambda pair: pair[0],
    )
    if not timed:
        return Timeline(None, 0.0, (), (), (), (), ())
    began_at = timed[0][0]
    since = [(at - began_at, event) for at, event in timed]
    phases = _phases(since)
    if phases and phases[-1].name == _RECORD_PHASE and since[-1][1].get("event") == "phase_begin":
        phases = phases[:-1]  # the page is being written in it: it will end, but not before the page is there
    stop_s = next((phase.begin_s for phase in phases if phase.name == STOP_PHASE), None)
    return Timeline(
        began_at=began_at,
        length_s=since[-1][0],
        phases=phases,
        processes=_processes(since, stop_s),
        errors=_texts(since, "error"),
        warnings=_texts(since, "warning"),
        staged=tuple(event for _, event in since if event.get("event") == "staged"),
    )


def _texts(events: Sequence[tuple[float, Mapping[str, Any]]], kind: str) -> tuple[str, ...]:
    return tuple(str(event.get("what", "")) for _, event in events if event.get("event") == kind)


def _phases(events: Sequence[tuple[float, Mapping[str, Any]]]) -> tuple[Phase, ...]:
    phases: list[Phase] = []
    for at_s, event in events:
        name = str(event.get("phase", ""))
        if event.get("event") == "phase_begin":
            phases.append(Phase(name, at_s))
        elif event.get("event") == "phase_end":
            for position in reversed(range(len(phases))):
                if phases[position].name == name and phases[position].end_s is None:
                    phases[position] = replace(phases[position], end_s=at_s)
                    break
    return tuple(phases)


def _processes(events: Sequence[tuple[float, Mapping[str, Any]]], stop_s: float | None) -> tuple[Process, ...]:
    """One entry per start; a process that is started twice has two lives."""
    lives: list[Process] = []
    current: dict[str, int] = {}
    asked: set[int] = set()
    for at_s, event in events:
        name, kind = str(event.get("process", "")), event.get("event")
        if kind == "process_started":
            current[name] = len(lives)
            lives.append(Process(name, str(event.get("node", "")), at_s))
        elif kind == "process_ready" and name in current:
            after_s = number_or_none(event.get("seconds"))
            lives[current[name]] = replace(lives[current[name]], ready_s=at_s, ready_after_s=after_s)
        elif kind == "process_stopped":
            asked.add(current.get(name, -1))
        elif kind == "process_exited" and current.get(name) in asked:
            lives[current[name]] = replace(lives[current[name]], exited_s=at_s, status=str(event.get("status", "")))
        elif kind == "process_exited" and name in current:
            lives[current[name]] = _ended(lives[current[name]], at_s, str(event.get("status", "")), stop_s)
    return tuple(lives)


def _ended(life: Process, at_s: float, status: str, stop_s: float | None) -> Process:
    unasked = stop_s is None or at_s < stop_s
    return replace(life, exited_s=at_s, status=status, died=unasked and (status != "0" or life.ready_s is not None))

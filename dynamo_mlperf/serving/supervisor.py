"""One thread, one poll loop: starts processes in layers, notices the first death, stops in reverse order."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from dynamo_mlperf.errors import DynamoMlperfError, ServingError, SetupError
from dynamo_mlperf.files import append_json_line
from dynamo_mlperf.process.command import AGAIN
from dynamo_mlperf.serving.engine_flags import refusal_in_log
from dynamo_mlperf.serving.log_tail import TAIL_LINES, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.process.allocation import Allocation
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.process.command import Command
    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.record import EventLog

T = TypeVar("T")

POLL_S = 0.02
INTERRUPT_S = {"load": 2.0, "frontend": 2.0, "worker": 2.5, "store": 1.0}
"""How long a layer may take after SIGINT before SIGTERM."""
TERMINATE_S = {"load": 1.0, "frontend": 2.0, "worker": 3.0, "store": 1.0}
"""How long it may take after SIGTERM before SIGKILL."""
HANG_UP_S = 6.0
"""How long what reads from us may take to end once we say no more: it cleans its node first."""
KILL_S = 3.0
"""How long the kernel (or Slurm) may take to deliver SIGKILL before we say that something is left."""
SIGNAL_RACE_S = 0.5
"""How much later than its processes the controller may learn of a stop that was meant for all of them."""
HASTE_S = 0.3
"""How long each rung takes at most once a second stop request came."""
REFUSAL_LINES = 2000
"""An engine that refuses a flag first tells all that it has, one or two lines for each."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_WHO_KILLS = (
    "find who sent the SIGKILL: the kernel, where memory ran out (on {host}: dmesg | grep -i 'killed process'; "
    "oom_kill in memory.events of the job's cgroup), and then give the job more memory; else Slurm or a person"
)


class Layer(IntEnum):
    """Start order; stopping goes the other way. A death in a lower layer explains those above it."""

    AGENT = -1
    STORE = 0
    WORKER = 1
    FRONTEND = 2
    LOAD = 3
    TASK = 4


@dataclass
class _Service:
    child: Child
    layer: Layer
    may_end: bool
    events: EventLog
    on_loss: Callable[[Child], None] | None = None
    ended: int | None = None
    heard: bool = False


class Supervisor:
    """Owns every process of a run."""

    def __init__(self, allocation: Allocation, paths: RunPaths, events: EventLog, stop: StopFlag) -> None:
        self._allocation = allocation
        self._paths = paths
        self._events = events
        self._stop = stop
        self._services: list[_Service] = []
        self._watches: list[Callable[[], None]] = []

    def start(
        self,
        command: Command,
        layer: Layer,
        *,
        may_end: bool = False,
        on_loss: Callable[[Child], None] | None = None,
    ) -> Child:
        """Start a command and put it on record; unless it `may_end`, its end before the stop is a failure.

        With `on_loss` its end is no failure of the job: that is called instead, once.

        Raises:
            SetupError: It cannot be started.
        """
        host = self._allocation.nodes[command.node].host
        append_json_line(self._paths.commands, {"t": time.time(), "host": host, **command.as_record()})
        child = self._allocation.start(command)
        self._services.append(_Service(child, layer, may_end, self._events, on_loss))
        self._events.add("process_started", process=command.name, node=command.node, pid=child.pid)
        return child

    @property
    def start_s(self) -> float:
        """What a deadline for the answer of something just started adds for its start."""
        return self._allocation.start_s

    @contextlib.contextmanager
    def recording(self, paths: RunPaths, events: EventLog) -> Iterator[None]:
        """Put what starts meanwhile, and its end, on record there: another run measures through our services."""
        before = self._paths, self._events
        self._paths, self._events = paths, events
        try:
            yield
        finally:
            self._paths, self._events = before

    def log_of(self, process: str) -> Path:
        """Where a process logs; one that was started anew has another log than the first time."""
        commands = (service.child.command for service in reversed(self._services))
        own = (command.log for command in commands if command.name.partition(AGAIN)[0] == process)
        return next(own, self._paths.log_of(process))

    def watch(self, look: Callable[[], None]) -> None:
        """Have `look` called on every turn of the loop; it raises when what it watches has failed."""
        self._watches.append(look)

    def tick(self) -> None:
        """One turn: a stop request or the first death ends the job.

        Raises:
            Stopped: A signal asked for it.
            ServingError: A service ended, exit 0 included; names it, its node, how it ended and its last log lines.
            SetupError: Anything that was started ended because the place did not start it; says why.
            ConfigError: It ended because it does not know a flag of the file; names the flag and the nearest it knows.
        """
        self._stop.check()
        ended = [service for service in self._services if self._note_end(service)]
        fallen = [service for service in ended if not service.may_end]
        if fallen:
            self.await_signal()
            self._judge_deaths(fallen)
        for service in ended:
            if not service.heard:
                service.heard = True
                self._refuse_unstarted(service.child)
        for look in self._watches:
            look()

    def _judge_deaths(self, fallen: list[_Service]) -> None:
        """Deaths found in one turn: the lowest layer is the cause, the others are its consequences."""
        # An engine that does not know a flag will not know it the next time either.
        for command in (service.child.command for service in fallen):
            refused = refusal_in_log(command.name, tail(command.log, REFUSAL_LINES)) if command.engine else None
            if refused is not None:
                raise refused
        unforgiven = [service for service in fallen if service.on_loss is None]
        if unforgiven:
            first = min(unforgiven, key=lambda service: service.layer)
            raise self.cause_of(first.child)
        for service in fallen:
            service.may_end = service.heard = True
            if service.on_loss is not None:
                service.on_loss(service.child)

    def _refuse_unstarted(self, child: Child) -> None:
        refusal = self._allocation.refusal(child)
        if refusal is not None:
            self.await_signal()
            raise refusal

    def cause_of(self, child: Child, kind: type[DynamoMlperfError] = ServingError) -> DynamoMlperfError:
        """What to raise where one has ended before its time: why it was not started, else, as `kind`, its obituary."""
        return self._allocation.refusal(child) or kind(self.obituary(child), self.advice(child))

    def end(self, children: Sequence[Child]) -> None:
        """Kill processes whose end is then no failure: what is left of a replica that is lost."""
        for service in self._services:
            if service.child in children:
                service.may_end = True
        self._allocation.send(children, signal.SIGKILL)

    def terminate(self, child: Child, patience_s: float) -> None:
        """Ask one process to end, and kill it when it does not within so long; its end is then no failure.

        Raises:
            Stopped: A signal asked for it.
            ServingError: Another service ended.
        """
        for service in self._services:
            if service.child is child:
                service.may_end = True
                service.events.add("process_stopped", process=child.command.name)
        self._allocation.send([child], signal.SIGTERM)
        until = time.monotonic() + patience_s
        while child.poll() is None and time.monotonic() < until:
            self.tick()
            time.sleep(POLL_S)
        self._allocation.send([child], signal.SIGKILL)

    def retire(self, children: Sequence[Child], layer: Layer) -> None:
        """Stop processes whose part is done, by the ladder of their layer; their end is then no failure.

        Raises:
            Stopped: A signal asks for the end meanwhile.
        """
        for service in self._services:
            if service.child in children:
                service.may_end = True
                service.events.add("process_stopped", process=service.child.command.name)
        self._stop_layer(list(children), layer)
        self._stop.check()

    def retire_above(self, layer: Layer) -> None:
        """Stop what still runs in higher layers, as `retire` does.

        Raises:
            Stopped: A signal asks for the end meanwhile.
        """
        for higher in sorted({service.layer for service in self._services if service.layer > layer}, reverse=True):
            running = [s.child for s in self._services if s.layer is higher and s.child.poll() is None]
            if running:
                self.retire(running, higher)

    def await_signal(self) -> None:
        """Give a stop request a moment to arrive: scancel ends the steps and the controller at once, in any order."""
        until = time.monotonic() + SIGNAL_RACE_S
        while time.monotonic() < until:
            self._stop.check()
            time.sleep(POLL_S)

    def wait_for(
        self, probe: Callable[[], T | None], timeout_s: float, late: Callable[[], str | DynamoMlperfError]
    ) -> T:
        """Turn until `probe` gives something.

        Raises:
            ServingError: `timeout_s` went by; `late` says what was missing, or gives another error to raise.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.tick()
            found = probe()
            if found is not None:
                return found
            if time.monotonic() > deadline:
                said = late()
                if isinstance(said, str):
                    raise ServingError(said, "raise timeouts in the topology file if it only needs longer")
                raise said
            time.sleep(POLL_S)

    def pause(self, seconds: float) -> None:
        """Turn for so long.

        Raises:
            Stopped: A signal asked for it.
            ServingError: A service ended.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.tick()
            time.sleep(POLL_S)

    def wait_tasks(self, tasks: Sequence[Child], timeout_s: float, what: str, progress: Callable[[int], None]) -> None:
        """Turn until all tasks have ended well.

        Raises:
            SetupError: One was not started, ended badly (its log says why) or was not done in time.
        """
        patience_s = timeout_s + self.start_s
        deadline = time.monotonic() + patience_s
        while True:
            self.tick()
            states = {task.command.name: task.poll() for task in tasks}
            for task in tasks:
                if task.poll() not in (None, 0):
                    self._refuse_unstarted(task)
                    problem = tail(task.command.log, TAIL_LINES) or f"ended with status {task.poll()}"
                    raise SetupError(f"{what} failed on {self._place_of(task.command)}:\n{problem}")
            running = [task.command for task in tasks if states[task.command.name] is None]
            progress(len(running))
            if not running:
                return
            if time.monotonic() > deadline:
                named = ", ".join(f"{command.name} on {self._place_of(command)}" for command in running)
                raise SetupError(f"{what} not done after {patience_s:g} s: {named}", f"read {running[0].log}")
            time.sleep(POLL_S)

    def stop_all(self) -> list[str]:
        """Stop layer by layer, the highest first; then sweep. Returns what had to be swept."""
        for layer in sorted({service.layer for service in self._services}, reverse=True):
            self._stop_layer([service.child for service in self._services if service.layer is layer], layer)
        swept = self._allocation.sweep()
        for service in self._services:
            self._note_end(service)
        if swept:
            self._events.add("swept", processes=swept)
        return swept

    def _stop_layer(self, children: list[Child], layer: Layer) -> None:
        name = layer.name.lower()
        listening = [child for child in children if child.listens]
        if listening:
            for child in listening:
                child.hang_up()
            self._wait_for_ends(listening, HANG_UP_S)
        ladder = (
            (signal.SIGINT, INTERRUPT_S.get(name, 1.0)),
            (signal.SIGTERM, TERMINATE_S.get(name, 1.0)),
            (signal.SIGKILL, KILL_S),
        )
        for number, patience_s in ladder:
            alive = [child for child in children if child.poll() is None]
            if not alive:
                break
            self._allocation.send(alive, number)
            self._wait_for_ends(alive, patience_s, hasty=number is not signal.SIGKILL)
        # Engines leave children behind when they are killed, and sometimes when they are not.
        self._allocation.send(children, signal.SIGKILL)

    def _wait_for_ends(self, children: list[Child], patience_s: float, *, hasty: bool = True) -> None:
        """Until all have ended, at most so long; shorter once a second stop request came, where haste is allowed."""
        began = time.monotonic()
        while self._any_alive(children):
            hurried = self._stop.times > 1 and hasty
            if time.monotonic() - began > (HASTE_S if hurried else patience_s):
                break
            time.sleep(POLL_S)

    def _any_alive(self, children: list[Child]) -> bool:
        """Whether one of them still runs; ends are put on record as they come."""
        for service in self._services:
            self._note_end(service)
        return any(child.poll() is None for child in children)

    def _note_end(self, service: _Service) -> bool:
        status = service.child.poll()
        if status is None:
            return False
        if service.ended is None:
            service.ended = status
            service.events.add("process_exited", process=service.child.command.name, status=status)
        return True

    def obituary(self, child: Child) -> str:
        """How a process ended, for people: its name, node, status or signal, and its last log lines."""
        command = child.command
        last = tail(command.log, TAIL_LINES)
        told = f"; its last lines:\n{last}" if last else "; it wrote no log"
        return f"{command.name} on {self._place_of(command)} {_ending(child.poll())}{told}"

    def advice(self, child: Child) -> str:
        """What to do about the end of a process: read its log; where a SIGKILL from outside ended it, look there."""
        log, host = child.command.log, self._allocation.nodes[child.command.node].host
        read = f"read {log}" if tail(log, 1) else ""
        if child.poll() not in _KILLED:
            return read or f"run it by hand: its command line is in {self._paths.commands}"
        return "; ".join(filter(None, (_WHO_KILLS.format(host=host), read)))

    def _place_of(self, command: Command) -> str:
        return f"node {command.node} ({self._allocation.nodes[command.node].host})"


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if status is not None and status > 128:  # noqa: PLR2004 - how srun and shells report a signal
        return (
            f"was killed by {signal.Signals(status - 128).name}"
            if status - 128 in set(signal.Signals)
            else f"ended with status {status}"
        )
    return f"ended with status {status}"

"""Endpoints while it runs: started, followed by the event log that it writes on tmpfs, put down when it has to be."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.job.measurement import END_S, progress_line
from dynamo_mlperf.load.endpoints_config import CLIENT_START_S, sample_count
from dynamo_mlperf.load.endpoints_events import EVENTS, EventBook, EventFollower
from dynamo_mlperf.load.endpoints_program import MODULE
from dynamo_mlperf.process.command import RUN_VARIABLE, Command
from dynamo_mlperf.serving.supervisor import INTERRUPT_S, POLL_S, TERMINATE_S, Layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.job.endpoints_data import ClientPlace
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.process.child import Child

    Watch = Callable[[dict[str, Any]], bool]

LOAD_S = 3600.0
"""Longest time from its start to its first request: it reads and formats the whole data set first."""
FINISH_S = 3600.0
"""Longest time from its last event to its end: it counts the tokens of every answer then."""
SILENT_S = 180.0
"""Longest time without an event while it measures; at low rates longer, as it writes them in hundreds."""
_EVENTS_A_WRITE = 100
_LOOK_S = 0.25
_FIND_S = 1.0
_LOGGER = "inference_endpoint.async_utils.services.event_logger"
_NAMES_ON_TMPFS = ("benchmark_cli_benchmark_", "zmq_")
"""How the names of its directories there begin."""


class EndpointsProcess:
    """One process of endpoints.

    Args:
        place: Where it runs.
        name: Of the process and its log.
        settings: The rules in force.
        request: The configuration.
        mode: What it runs: `perf`, or `both` with the accuracy phase.
        watch: Takes what was seen so far, with the keys of our own client's progress; True ends it early. It is not
            asked where TPOT is judged: such a run goes to its end.
        heading: Begins what people are told.
    """

    def __init__(
        self,
        place: ClientPlace,
        name: str,
        settings: LoadSettings,
        request: Path,
        *,
        mode: str,
        watch: Watch | None = None,
        heading: str = "",
    ) -> None:
        self._place, self._settings, self._heading = place, settings, heading
        # Events tell nothing of TPOT: half a run would look as if nothing were over that limit.
        self._watch = watch if settings.tpot_ms is None else None
        self._book = EventBook(settings.limits_ms)
        self._command = Command(
            name,
            (place.python, "-m", MODULE, "benchmark", "from-config", "--config", str(request), "--mode", mode),
            place.environment(),
            place.paths.log_of(name),
            node=place.node,
            cwd=place.paths.root,
        )
        self._live: _Live | None = None
        self._events: EventFollower | None = None
        self._enough = False
        self._looked = self._sought = 0.0
        self._heard = time.monotonic()

    def follow(self) -> bool:
        """Start it and follow it to its end; False where it was ended early because the watch said so.

        Raises:
            MeasureError: It failed, or has shown no progress for too long.
        """
        child = self._place.supervisor.start(self._command, Layer.LOAD, may_end=True)
        try:
            status = self._place.supervisor.wait_for(
                lambda: self._turn(child), float("inf"), lambda: "endpoints never ends"
            )
        except BaseException:
            self._put_down(child)
            raise
        finally:
            self._forget_live()
        if status != 0 and not self._enough:
            raise self._place.supervisor.cause_of(child, MeasureError)
        return not self._enough

    def _turn(self, child: Child) -> int | None:
        status = child.poll()
        now = time.monotonic()
        if status is None and now - self._looked < _LOOK_S:
            return None
        self._looked = now
        if self._look(now):
            self._heard = now
            self._place.progress.say(self._heading + self._told())
            if status is None and self._watch is not None and self._book.issued and self._watch(self._seen()):
                self._enough = True
                self._place.supervisor.terminate(child, END_S)
                return 0
        if status is None:
            self._check_silence(now)
        return status

    def _look(self, now: float) -> bool:
        if self._events is None:
            if now - self._sought < _FIND_S:
                return False
            self._sought = now
            self._live = _find_live(self._place.paths.root, self._command.env[RUN_VARIABLE])
            if self._live is None:
                return False
            self._events = EventFollower(self._live.events, self._book)
        return self._events.look()

    def _check_silence(self, now: float) -> None:
        silent_s = now - self._heard
        settings, phase = self._settings, self._book.phase
        if self._book.sent == 0:
            most_s, what = LOAD_S, "has sent no request"
        elif phase == "ended":
            most_s, what = FINISH_S, "has not ended after its last request"
        else:
            slow_s = _EVENTS_A_WRITE / settings.target_qps if settings.loadgen_scenario != "Offline" else 0.0
            most_s = max(SILENT_S, settings.request_timeout_s) + slow_s + CLIENT_START_S
            what = "has shown no progress"
        if silent_s > most_s:
            raise MeasureError(
                f"endpoints runs but {what} for {most_s:g} s",
                f"look for a process that is stopped or a disk that hangs; read {self._command.log}",
            )

    def _told(self) -> str:
        """One line for people."""
        book, settings = self._book, self._settings
        if book.phase == "warmup":
            return f"endpoints warms up: {book.sent} requests sent"
        if book.phase == "accuracy":
            return f"accuracy phase: {book.after} of {settings.accuracy_sample_count} answers"
        if book.phase == "ended":
            return "endpoints counts tokens and writes its report"
        return progress_line(self._seen())

    def _seen(self) -> dict[str, Any]:
        """Counts and times so far, with the keys of our own client's progress."""
        book, settings = self._book, self._settings
        planned = sample_count(settings)
        judged, early = next(iter(book.over), None), book.early()
        return {
            "t_s": round(book.seconds, 3),
            "issued": book.issued,
            "completed": book.completed,
            "over": dict(book.over),
            "over_in_flight": early.over,
            "known_in_flight": early.known,
            "expected_queries": planned,
            "in_flight": book.issued - book.completed,
            "failed": len(book.errors),
            "failed_late": 0,
            "first_failure": next(iter(book.errors.values()), None),
            "p50_ms": book.percentile_ms(0.5) or 0.0,
            "p99_ms": book.percentile_ms(0.99),
            "over_limit": book.over[judged] if judged else None,
            "over_limit_allowed": allowed_over_limit(planned, settings.percentile) - 1 if judged else None,
            "left_s": self._left_s(planned),
        }

    def _left_s(self, planned: int) -> float:
        book, settings = self._book, self._settings
        if settings.loadgen_scenario != "Offline":
            return max(0.0, (planned - book.issued) / settings.target_qps)
        return math.ceil((planned - book.completed) * book.seconds / book.completed) if book.completed else 0.0

    def _put_down(self, child: Child) -> None:
        """Interrupt it, so that it keeps what it has; then terminate it, then kill it and what it started."""
        for number, patience_s in ((signal.SIGINT, INTERRUPT_S["load"]), (signal.SIGTERM, TERMINATE_S["load"])):
            self._place.allocation.send([child], number)
            until = time.monotonic() + patience_s
            while child.poll() is None and time.monotonic() < until:
                time.sleep(POLL_S)
        self._place.supervisor.end([child])

    def _forget_live(self) -> None:
        """Remove its directories on tmpfs, which it leaves when it is killed, and which hold memory until then."""
        if self._events is not None:
            self._events.close()
        for directory in self._live.directories if self._live is not None else ():
            shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class _Live:
    """What endpoints has on tmpfs while it runs, under names that it makes up.

    Attributes:
        events: The event log.
        directories: Its directories there: of the event log, and of its sockets.
    """

    events: Path
    directories: tuple[Path, ...]


def _find_live(cwd: Path, mark: str) -> _Live | None:
    """Told by the arguments of its newest event logger that carries our run's mark; None while there is none."""
    newest: tuple[float, _Live] | None = None
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError, IndexError):
            words = process.cmdline()
            if (
                _LOGGER not in words
                or process.environ().get(RUN_VARIABLE) != mark
                or os.path.realpath(process.cwd()) != os.path.realpath(cwd)
            ):
                continue
            logs, sockets = (Path(words[words.index(flag) + 1]) for flag in ("--log-dir", "--socket-dir"))
            own = tuple(path for path in (logs.parent, sockets) if path.name.startswith(_NAMES_ON_TMPFS))
            if newest is None or process.create_time() > newest[0]:
                newest = (process.create_time(), _Live(logs / EVENTS, own))
    return newest[1] if newest else None

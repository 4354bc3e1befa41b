"""Phase `hold`: after its own measurement a run keeps engines and frontends up, and measures for others who ask.

It ends after so long without a measurement, by a stop request, before the job's time is over, or with the first death
in the deployment. Its own verdict stands whichever it is; how the hold ended is in `events.jsonl`.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, ExitCode, SetupError
from dynamo_mlperf.job.held import called, is_gone, open_spool, spooled
from dynamo_mlperf.job.held_measurement import HeldMeasurement, Served
from dynamo_mlperf.job.rate_search import allocation_left_s
from dynamo_mlperf.topology.holding import Hold

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.held import Spooled

    _Owed = tuple[Spooled, ExitCode, DynamoMlperfError | None]

LOOK_S = 0.25
"""How often the directory for requests is looked into."""
SAY_S = 60.0
"""How often people are told that nothing happens."""


class Holder:
    """Holds what serves, and measures for who asks.

    Args:
        served: What serves.
    """

    def __init__(self, served: Served) -> None:
        self._served, self._job = served, served.holder
        self._name = called(served.holder.paths.root)
        self._spool = open_spool(self._job.paths.root)
        self._current: HeldMeasurement | None = None
        self._next_look_s = 0.0
        self._measured = 1
        self._answered: set[str] = set()
        self._owed: list[_Owed] = []

    def until_end(self) -> str:
        """Hold to the end; returns how it came, for people."""
        job, block = self._job, self._job.topology.hold or Hold()
        job.events.add("hold_begin", idle_s=block.idle_s)
        job.progress.note(f"engines are held; measure again: dynamo-mlperf run FILE --attach {self._name}")
        job.supervisor.watch(self._look)
        how = "a bug"
        try:
            how = self._serve(block.idle_s)
        except DynamoMlperfError as problem:
            how = problem.what.partition("\n")[0].partition(";")[0]  # without its last lines
        finally:
            gone = SetupError(f"run {self._name} holds its engines no more: {how}", "start them anew: without --attach")
            for asked in self._open():
                self._answer(asked, gone.exit_code, gone)
            self._pay()
            job.events.add("hold_end", what=how, measurements=self._measured)
        job.progress.note(f"engines are let go: {how}; measurements through them: {self._measured}")
        return how

    def _serve(self, idle_s: float) -> str:
        idle_since_s, until_s, next_say_s = time.monotonic(), _until_s(self._job), 0.0
        while True:
            self._job.supervisor.pause(LOOK_S)
            self._pay()
            for asked in self._open()[:1]:
                next_say_s = 0.0
                if self._measure(asked):
                    idle_since_s = time.monotonic()
            if not self._served.deployment.whole:
                return "workers that had to be restarted did not come up again"
            if is_gone(self._spool):
                return f"{self._spool} is gone, and nobody can ask any more"
            now_s = time.monotonic()
            if now_s > until_s:
                return "the job's time is nearly over"
            if now_s - idle_since_s > idle_s:
                return f"nobody has measured for {idle_s:g} s"
            if now_s > next_say_s:
                next_say_s = now_s + SAY_S
                until_s = _until_s(self._job)  # an administrator may have changed it
                left_s = idle_s - (now_s - idle_since_s)
                self._job.progress.say(f"measurements so far: {self._measured}; {left_s:.0f} s left to ask for another")

    def _measure(self, asked: Spooled) -> bool:
        """Make one measurement and answer; what is wrong with it alone does not end the hold.

        Returns:
            Whether one was made: what is refused keeps no engines up.
        """
        job, code = self._job, ExitCode.BUG
        refused: DynamoMlperfError | None = None
        unwritten: DynamoMlperfError | None = None
        try:
            self._current = HeldMeasurement(self._served, asked, self._measured + 1)
            self._measured += 1
            run_id, run_dir = self._current.request.run_id, self._current.request.run_dir
            job.events.add("held_measurement", run=run_id, run_dir=run_dir)
            job.progress.note(f"measurement {self._measured}: {run_dir}")
            code = self._current.run()
            unwritten = self._current.unwritten
        except (ConfigError, SetupError) as problem:
            refused = problem
        except OSError as problem:
            what = f"{problem.filename or asked.root}: {problem.strerror}"
            refused = SetupError(what, f"let {job.allocation.describe()} read it, and ask again")
        except DynamoMlperfError:
            raise
        except Exception as problem:  # noqa: BLE001 - a bug that one request meets does not cost the engines
            refused = _bug(asked, problem)
        finally:
            if refused is not None:
                code = refused.exit_code
                job.events.add("held_refused", run=asked.root.name, what=refused.what)
            if self._current is not None:
                job.events.add("held_measurement_end", run=asked.root.name, exit_code=int(code))
            self._current = None
            self._answer(asked, code, refused or unwritten)
        return refused is None

    def _look(self) -> None:
        """On every turn: who asks while another is measured for is refused, and who wants to stop is stopped.

        Raises:
            Stopped: The measurement that runs is to end.
        """
        current = self._current
        if current is None or time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + LOOK_S
        for asked in self._open():
            if asked.root.name != current.request.run_id:
                what = f"run {self._name} measures for {current.request.run_id} right now"
                busy = SetupError(what, "ask again when that has ended")
                self._answer(asked, busy.exit_code, busy)
        current.look()

    def _open(self) -> list[Spooled]:
        return [asked for asked in spooled(self._spool) if asked.root.name not in self._answered]

    def _answer(self, asked: Spooled, code: ExitCode, refused: DynamoMlperfError | None) -> None:
        self._answered.add(asked.root.name)
        self._owed.append((asked, code, refused))
        self._pay()

    def _pay(self) -> None:
        """Give the answers that are owed; what a full disk does not take is tried again on the next turn."""
        owed, self._owed = self._owed, []
        for asked, code, refused in owed:
            try:
                asked.answer(code, refused)
            except FileNotFoundError:
                continue  # its directory is gone, and nobody looks for an answer there
            except OSError:
                self._owed.append((asked, code, refused))


def _until_s(job: Job) -> float:
    """When the hold has to end for the job's time, on the monotonic clock."""
    left_s = allocation_left_s(job)
    return float("inf") if left_s is None else time.monotonic() + left_s


def _bug(asked: Spooled, problem: Exception) -> DynamoMlperfError:
    """What is told of an exception that nobody expected; its traceback lies beside the request."""
    path = asked.root / "traceback.txt"
    with contextlib.suppress(OSError):
        path.write_text(traceback.format_exc())
    return DynamoMlperfError(f"a bug: {type(problem).__name__}: {problem}", f"please report {path}")

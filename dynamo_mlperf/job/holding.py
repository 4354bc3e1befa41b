"""Phase `hold`: after its own measurement a run keeps engines and frontends up, and measures for others who ask.

It ends after so long without a measurement, by a stop request, before the job's time is over, or with the first death
in the deployment. Its own verdict stands whichever it is; how the hold ended is in `events.jsonl`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, ExitCode, SetupError
from dynamo_mlperf.job.held import called, open_spool, spooled
from dynamo_mlperf.job.held_measurement import HeldMeasurement, Served
from dynamo_mlperf.job.rate_search import allocation_left_s
from dynamo_mlperf.topology.holding import Hold

if TYPE_CHECKING:
    from dynamo_mlperf.job.held import Spooled

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

    def until_end(self) -> str:
        """Hold to the end; returns how it came, for people."""
        job, block = self._job, self._job.topology.hold or Hold()
        left_s = allocation_left_s(job)
        until_s = float("inf") if left_s is None else time.monotonic() + left_s
        job.events.add("hold_begin", idle_s=block.idle_s)
        job.progress.note(f"engines are held; measure again: dynamo-mlperf run FILE --attach {self._name}")
        job.supervisor.watch(self._look)
        how = "a bug"
        try:
            how = self._serve(block.idle_s, until_s)
        except DynamoMlperfError as problem:
            how = problem.what.partition("\n")[0].partition(";")[0]  # without its last lines
        finally:
            gone = SetupError(f"run {self._name} holds its engines no more: {how}", "start them anew: without --attach")
            for asked in self._open():
                self._answer(asked, gone.exit_code, gone)
            job.events.add("hold_end", what=how, measurements=self._measured)
        job.progress.note(f"engines are let go: {how}; measurements through them: {self._measured}")
        return how

    def _serve(self, idle_s: float, until_s: float) -> str:
        idle_since_s, next_say_s = time.monotonic(), 0.0
        while True:
            self._job.supervisor.pause(LOOK_S)
            for asked in self._open()[:1]:
                next_say_s = 0.0
                if self._measure(asked):
                    idle_since_s = time.monotonic()
            now_s = time.monotonic()
            if now_s > until_s:
                return "the job's time is nearly over"
            if now_s - idle_since_s > idle_s:
                return f"nobody has measured for {idle_s:g} s"
            if now_s > next_say_s:
                next_say_s = now_s + SAY_S
                left_s = idle_s - (now_s - idle_since_s)
                self._job.progress.say(f"measurements so far: {self._measured}; {left_s:.0f} s left to ask for another")

    def _measure(self, asked: Spooled) -> bool:
        """Make one measurement and answer; what is wrong with it alone does not end the hold.

        Returns:
            Whether one was made: what is refused keeps no engines up.
        """
        job, code = self._job, ExitCode.BUG
        refused: DynamoMlperfError | None = None
        try:
            self._current = HeldMeasurement(self._served, asked, self._measured + 1)
            self._measured += 1
            run_id, run_dir = self._current.request.run_id, self._current.request.run_dir
            job.events.add("held_measurement", run=run_id, run_dir=run_dir)
            job.progress.note(f"measurement {self._measured}: {run_dir}")
            code = self._current.run()
        except (ConfigError, SetupError, OSError) as problem:
            refused = SetupError(str(problem), "mend that") if isinstance(problem, OSError) else problem
            code = refused.exit_code
            job.events.add("held_refused", run=asked.root.name, what=refused.what)
        finally:
            if self._current is not None:
                job.events.add("held_measurement_end", run=asked.root.name, exit_code=int(code))
            self._current = None
            self._answer(asked, code, refused)
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
        try:
            asked.answer(code, refused)
        except OSError as problem:
            self._job.events.add("warning", what=f"{asked.root.name} was not answered: {problem.strerror}")

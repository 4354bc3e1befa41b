"""Probes made by an external program: started, read line by line, stopped when the search has seen enough.

The program is called with `--target-qps X --duration-s S`. It prints JSON lines to stdout, each with `t_s`, `issued`,
`completed` and `over_limit` (constraint -> count) since its begin, and at its end one with `done`, `valid`, `n`,
`over_limit`, `percentiles` and `seconds`. SIGTERM asks it to stop.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import MeasureError, SetupError
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.process.command import RUN_VARIABLE, Command
from dynamo_mlperf.process.line_pipe import LinePipe
from dynamo_mlperf.process.machine import end_processes, marked, run_mark
from dynamo_mlperf.tuning.probes import Final, Probe, ProbeRecord, Sample
from dynamo_mlperf.tuning.stream import ProbeFault, check_final, check_kept, check_order, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.tuning.progress import Verdict

    Look = Callable[[ProbeRecord], Verdict]

STREAM, LOG = "stream.jsonl", "probe.log"
GRACE_S = 10.0
"""Time in seconds between SIGTERM and SIGKILL."""
FAULT_GRACE_S = 3.0
"""The same for a probe that is at fault."""
_POLL_S = 0.01
_PACE_S = 1.0
"""Time of the run in seconds by which it is plain whether a program keeps to real time or simulates."""
_LINE_BY_LINE = {"PYTHONUNBUFFERED": "1"}
"""A Python program that does not flush its lines says them as it prints them all the same."""
_MOST_LINES = 5000
"""Lines that count of a run of the planned length."""
_ENDED, _NEAR_END = 0.98, 0.9
"""Shares of the planned length: of a whole run, and of the last line but one in it."""
_LAST_WORDS = 300
_LAST_BYTES = 1 << 20
"""What is read of a program that was told to stop."""


def stall_limit_s(planned_s: float) -> float:
    """Seconds without a new line after which a probe counts as hung: a quarter of its length, from 45 to 150."""
    return min(max(planned_s / 4.0, 45.0), 150.0)


def long_enough(final: Final, planned_s: float) -> bool:
    """Whether a run lasted as planned, but for the luck of the last arrival."""
    return final.seconds >= planned_s * (1.0 - max(0.02, 4.0 / math.sqrt(max(final.n, 1))))


def _left_out(seen: Sample, final: Final) -> bool:
    """Whether queries that a last line leaves out, of a warm-up for example, explain what is no longer over a limit."""
    most = max((seen.over_of(name) - final.over.get(name, 0) for name in seen.over), default=0)
    return final.n < seen.completed or most <= seen.issued - final.n


@dataclass(frozen=True)
class ProbeCommand:
    """An external program as the probe.

    Attributes:
        argv: Program and first arguments.
        stop: Asked between lines; a probe that is interrupted by it gives what it has seen.
        stall_s: Longest time without a new line; None = by the planned length.
        offline: Whether a run lasts as long as its queries take, so that an early end tells of a low rate.
    """

    argv: tuple[str, ...]
    stop: StopFlag
    stall_s: float | None = None
    offline: bool = False

    def _argv(self, probe: Probe) -> tuple[str, ...]:
        return (*self.argv, "--target-qps", f"{probe.rate:.10g}", "--duration-s", f"{probe.planned_s:g}")

    def line(self, probe: Probe) -> str:
        """The command of a probe as a person would type it."""
        return f"run it by itself: {shlex.join(self._argv(probe))}"

    def run(self, probe: Probe, folder: Path, begin_s: float, look: Look) -> ProbeRecord:
        """Make one probe.

        Args:
            probe: What to probe.
            folder: Takes the stream and the program's stderr.
            begin_s: Engine seconds of the search before it.
            look: Judges the probe with each line.

        Raises:
            ProbeFault: The probe did not measure.
            MeasureError: The program cannot be started.
        """
        argv = self._argv(probe)
        mark = run_mark(f"{folder.name}-{secrets.token_hex(4)}")
        command = Command("probe", argv, {**os.environ, **_LINE_BY_LINE, RUN_VARIABLE: mark}, folder / LOG)
        with LinePipe(folder / STREAM) as pipe:
            try:
                child = Child(command, argv, dict(command.env), stdout=pipe.write_fd)
            except SetupError as problem:
                raise MeasureError(
                    f"the probe cannot be started: {argv[0]}: {problem.__cause__}",
                    "name its interpreter first, as in --probe-command 'python3 probe.py'",
                ) from problem
            pipe.hand_over()
            run = _Run(child, pipe, probe, begin_s, self)
            try:
                record = run.follow(look, self.stop)
            finally:
                run.end()
                end_processes(marked(mark))  # what left the probe's session
        run.check_end()
        return record


class _Run:
    """One probe in progress."""

    def __init__(self, child: Child, pipe: LinePipe, probe: Probe, begin_s: float, program: ProbeCommand) -> None:
        self._child, self._pipe, self._probe = child, pipe, probe
        self._stall_s = program.stall_s or stall_limit_s(probe.planned_s)
        self._least_s = 0.0 if program.offline else probe.planned_s
        self._record = ProbeRecord(probe.rate, probe.planned_s, (), "running", None, begin_s, purpose=probe.purpose)
        self._samples: list[Sample] = []
        self._final: Final | None = None
        self._lines, self._rest = 0, b""
        self._asked = False
        self._last_t_s = 0.0
        self._seen: Sample | None = None
        self._paced: bool | None = None

    def follow(self, look: Look, stop: StopFlag) -> ProbeRecord:
        """Read until the program ends or is stopped."""
        heard = time.monotonic()
        while True:
            ended = self._child.poll() is not None  # asked before the read: what it wrote before its end is read
            chunk = self._pipe.rest() if ended else self._pipe.read(_POLL_S)
            heard = time.monotonic() if chunk else heard
            for value in self._parse(chunk, last=ended):
                verdict = self._take(value, look)
                if verdict is not None:
                    return self._stopped(verdict)
            if self._final is not None:
                return self._complete()
            if ended:
                raise ProbeFault(f"it ended with {self._status()} without the line that says done{self._said()}")
            if stop.first is not None:
                return self._stopped(self._ended("interrupted"))
            self._check_time(heard)

    def _parse(self, chunk: bytes, *, last: bool) -> list[Sample | Final]:
        """Whole lines of what has come; with the end of the program also a last one without its newline."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if last and self._rest.strip():
            lines, self._rest = [*lines, self._rest], b""
        values = []
        for line in lines:
            self._lines += 1
            value = parse_line(line.decode(errors="replace"), self._lines)
            if value is not None:
                values.append(value)
        return values

    def _take(self, value: Sample | Final, look: Look) -> ProbeRecord | None:
        """Take one line in; the record as it ends if the probe is to be stopped."""
        if isinstance(value, Final):
            self._final = value
            return None
        check_order(self._seen, value)
        if self._seen is not None:
            over = {name: value.over_of(name) for name in value.over}
            check_kept(self._seen, over, f"at {value.t_s:g} s it says")
        self._seen, self._last_t_s = value, value.t_s
        self._keep_pace()
        if self._samples and value.t_s - self._samples[-1].t_s < self._probe.planned_s / _MOST_LINES:
            return None  # each line is judged with all before it: too many take longer to judge than to measure
        self._samples.append(value)
        verdict = look(replace(self._record, samples=tuple(self._samples)))
        return self._ended(verdict.stop) if verdict.stop else None

    def _keep_pace(self) -> None:
        """Once it is plain that a program keeps to real time, it never has to wait for us."""
        if self._paced is None and self._last_t_s >= _PACE_S:
            self._paced = self._last_t_s <= time.monotonic() - self._child.started_s
            if self._paced:
                self._pipe.widen()

    def _ended(self, how: str) -> ProbeRecord:
        return replace(self._record, samples=tuple(self._samples), ended=how, cost_s=self._cost_s())  # type: ignore[arg-type]

    def _cost_s(self) -> float:
        return round(max(self._last_t_s, time.monotonic() - self._child.started_s), 3)

    def _complete(self) -> ProbeRecord:
        """The record of a probe that ran to its end."""
        final = self._final
        if final is None or not long_enough(final, self._least_s):
            seconds = final.seconds if final else 0.0
            raise ProbeFault(f"it said done after {seconds:g} s; it was asked to run for {self._probe.planned_s:g} s")
        check_final(final, self._probe.rate, self._probe.planned_s)
        if self._seen is not None and not self._asked and not _left_out(self._seen, final):
            check_kept(self._seen, final.over, "its last line says")
        self._last_t_s = max(self._last_t_s, final.seconds)
        return replace(self._ended("complete"), final=final)

    def _stopped(self, record: ProbeRecord) -> ProbeRecord:
        """Stop the program; what it still wrote tells what it cost, and a full last line counts."""
        try:
            for value in self._parse(self._terminate(), last=True):
                if isinstance(value, Sample):
                    self._last_t_s = max(self._last_t_s, value.t_s)
                elif self._sums_up(value):
                    self._final = value
        except ProbeFault:
            pass  # it was told to stop: a line cut in the middle is no fault
        if self._final is not None:
            return replace(self._complete(), samples=record.samples)
        return replace(record, cost_s=self._cost_s())

    def _sums_up(self, final: Final) -> bool:
        """Whether a last line after SIGTERM is of the whole run: some sum up what there was, as if it were all."""
        planned_s = self._probe.planned_s
        return final.seconds >= _ENDED * planned_s and self._last_t_s >= _NEAR_END * planned_s

    def _terminate(self, grace_s: float = GRACE_S) -> bytes:
        """SIGTERM, then SIGKILL to all that is left; what it still wrote."""
        self._asked = True
        self._child.send(signal.SIGTERM)
        said = self._wait(grace_s)
        self._child.kill_session()
        return said

    def _wait(self, seconds: float) -> bytes:
        """Wait for its end, so long at most; what it wrote meanwhile, which it might else wait to be rid of."""
        until, said = time.monotonic() + seconds, b""
        while self._child.poll() is None and time.monotonic() < until:
            if len(said) < _LAST_BYTES:
                said += self._pipe.read(_POLL_S)
            else:  # it goes on as if nobody had told it to stop
                time.sleep(_POLL_S)
        return said + self._pipe.rest()

    def end(self) -> None:
        """Nothing of the probe is left running; a program that has said all gets its time to end."""
        if self._final is not None:
            self._wait(GRACE_S)
        if self._child.poll() is None:
            self._terminate(FAULT_GRACE_S)
        self._child.kill_session()
        while self._child.poll() is None:
            time.sleep(_POLL_S)

    def check_end(self) -> None:
        """A probe that said all and then failed has not measured.

        Raises:
            ProbeFault: It ended by itself with another status than 0, and not to say that its run is not valid.
        """
        status = self._child.poll() or 0
        refused = self._final is not None and not self._final.valid and status > 0
        if not self._asked and status != 0 and not refused:
            raise ProbeFault(f"it ended with {self._status()} after the line that says done{self._said()}")

    def _check_time(self, heard: float) -> None:
        now = time.monotonic()
        if now - heard > self._stall_s:
            raise ProbeFault(f"it hangs: no line for {self._stall_s:.0f} s after {self._last_t_s:g} s of the run")
        longest_s = 3.0 * self._probe.planned_s + self._stall_s
        if max(now - self._child.started_s, self._last_t_s) > longest_s:
            raise ProbeFault(f"it goes on after {longest_s:.0f} s; it was asked for {self._probe.planned_s:g} s")

    def _status(self) -> str:
        status = self._child.poll() or 0
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def _said(self) -> str:
        """The end of what it said on stderr."""
        text = self._child.command.log.read_text(errors="replace").strip()
        return f"; its stderr ends: {text[-_LAST_WORDS:]}" if text else ""

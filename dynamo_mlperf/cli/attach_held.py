"""`--attach RUN`: measure through the engines that another run holds, without starting any."""

from __future__ import annotations

import re
import time
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

from dynamo_mlperf.cli.attach import began
from dynamo_mlperf.cli.launch import answer, prepare, resumable
from dynamo_mlperf.cli.progress import TerminalProgress
from dynamo_mlperf.errors import ConfigError, ExitCode, ServingError, SetupError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.job.context import class_of, local_run_id, new_nonce
from dynamo_mlperf.job.ending import unusable
from dynamo_mlperf.job.held import HeldRequest, called, post
from dynamo_mlperf.process.machine import controller_of
from dynamo_mlperf.process.signals import StopFlag, stopped_by
from dynamo_mlperf.record import (
    EventLog,
    failed_verdict,
    new_run_directory,
    read_verdict,
    verdict_from_json,
    write_verdict,
)
from dynamo_mlperf.slurm.runs import find_run, list_runs, read_run
from dynamo_mlperf.slurm.standing import standings

if TYPE_CHECKING:
    from dynamo_mlperf.cli.call import Call
    from dynamo_mlperf.job.held import Answer, Spooled
    from dynamo_mlperf.record import Verdict
    from dynamo_mlperf.slurm.runs import Run
    from dynamo_mlperf.topology.spec import Topology

ALIVE_S = {False: 1.0, True: 10.0}
"""How often is looked whether the holder lives: on this machine, and by asking Slurm."""
_POLL_S = 0.2
_SETTLE_S = 2.0
"""How long an answer may take to be seen after its author has ended."""
_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
_OPEN = {"RUNNING", "UNKNOWN"}
_KINDS = {"phase", "say", "note", "cut_short"}
"""Of lines of progress, as `ToldProgress` writes them: methods of `Progress`."""


def held_run(word: str) -> Run | None:
    """The run whose engines `--attach WORD` means; None where WORD is the id of a job in which no run holds any.

    Raises:
        ConfigError: It is no run, one that holds no engines, or a job with several that do.
    """
    place = Path.cwd() / "runs"
    if _JOB.fullmatch(word):
        found = [run for run in list_runs(place) if run.job_id == word and _holds(run)]
        if len(found) > 1:
            names = ", ".join(run.name for run in found)
            raise ConfigError(f"{len(found)} runs in job {word} hold engines: {names}", f"name one: {found[0].name}")
        return found[0] if found else None
    run = find_run(word, place)
    if not _holds(run):
        raise ConfigError(f"run {run.name} holds no engines: {_why_not(run)}", _how_to_hold(run))
    return run


def _word(run: Run) -> str:
    return standings([run])[0][0].outcome.word


def _holds(run: Run) -> bool:
    """Whether it does right now; its controller may be gone without a word."""
    return run.hold is not None and not run.hold.ended and _word(run) in _OPEN


def _why_not(run: Run) -> str:
    word = _word(run)
    if run.hold is not None:
        return f"it did, until {run.hold.ended}" if run.hold.ended else f"it did, and is {word} now"
    return f"it is in phase {run.phase}" if word in _OPEN and run.phase else f"it is {word}"


def _how_to_hold(run: Run) -> str:
    if run.hold is None and run.finished is None:
        return (
            "wait for its phase hold (`dynamo-mlperf status`), to which a run with --hold, or hold: in its file, comes"
        )
    return "start engines that stay: `dynamo-mlperf run FILE --hold`"


def run_on_held(holder: Run, call: Call) -> int:
    """Have the holder measure what the file asks for, and wait; Ctrl-C ends the measurement, not the engines.

    Returns:
        The exit code of the measurement.

    Raises:
        ConfigError: The file is refused, or asks for another deployment.
        SetupError: The holder is busy or gone, and no run began.
    """
    file, site, blocks = call.file, call.site, call.blocks or {}
    if "hold" in blocks:
        raise ConfigError(f"run {holder.name} holds the engines already", "leave --hold and --hold-for out")
    base_dir = Path.cwd()
    topology, _plan, _site = prepare(file, site, base_dir, call.nodes, from_afar=bool(holder.job_id), blocks=blocks)
    if topology.sweep is not None:
        raise ConfigError("a sweep changes its workers, and those that are held stay", "sweep without --attach RUN")
    old = None if call.resume is None else str(resumable(call.resume, topology, base_dir, redo=call.redo))
    run_id = local_run_id(topology.name, new_nonce())
    place = new_run_directory(call.run_dir or Path("runs") / run_id)
    request = HeldRequest(
        run_id=run_id,
        file=str(file.absolute()),
        base_dir=str(base_dir),
        run_dir=str(place),
        site=site,
        nodes=call.nodes,
        resume=old,
        blocks={name: dict(keys) for name, keys in blocks.items()},
    )
    stop = StopFlag()
    stop.install()
    waiting = _Waiting(holder, post(holder.root, request, file), stop)
    said = waiting.until_answered()
    if said is None:
        return int(_gone(holder.root, topology, place, as_json=call.as_json))
    if (refusal := said.refusal()) is not None:
        raise refusal
    verdict = _verdict_in(place) if began(place) else None
    if verdict is None:
        raise ServingError(f"run {waiting.name} left no verdict in {place}", f"read {holder.root / 'events.jsonl'}")
    answer(verdict, place, as_json=call.as_json)
    return int(said.exit_code)


def _verdict_in(place: Path) -> Verdict | None:
    """The verdict that the holder has written there; None before that.

    Raises:
        ServingError: What stands in its place is none.
    """
    path = RunPaths(place).verdict
    try:
        value = read_verdict(RunPaths(place))
        return None if value is None else verdict_from_json(value)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise ServingError(f"{path} is no verdict: {problem!r:.80}", f"`dynamo-mlperf judge {place}`") from None


class _Waiting:
    """Shows the progress of a measurement that another process makes, until it has answered or is gone."""

    def __init__(self, holder: Run, asked: Spooled, stop: StopFlag) -> None:
        self.name = called(holder.root)
        self._holder, self._asked, self._stop = holder, asked, stop
        self._progress = TerminalProgress()
        self._seen = 0
        self._stopping = False
        self._vanished = False

    def until_answered(self) -> Answer | None:
        """What the holder answers; None where it is gone.

        Raises:
            Stopped: A second stop request: nobody waits for the end of the measurement.
        """
        self._progress.note(f"engines held by run {self.name}")
        every_s = ALIVE_S[bool(self._holder.job_id)]
        look_s = time.monotonic() + every_s
        try:
            while (said := self._asked.answered()) is None:
                self._show()
                self._hand_on_stop()
                if time.monotonic() > look_s:
                    look_s = time.monotonic() + every_s
                    now = read_run(self._holder.root)
                    if not _holds(now if now.present else self._holder):  # it may live on without its directory
                        return self._last_word()
                    self._tell_vanished()
                time.sleep(_POLL_S)
            self._show()
            return said
        finally:
            self._progress.close()

    def _tell_vanished(self) -> None:
        """Once, that the holder's directory is gone, and how to end what then no file can stop."""
        if self._vanished or self._holder.root.is_dir():
            return
        self._vanished = True
        pid, job_id = controller_of(self._holder.run_id), "" if self._holder.step else self._holder.job_id
        end = f"kill {pid}" if pid else f"scancel {job_id}" if job_id else ""
        self._progress.note(
            f"{self._holder.root} is gone: what run {self.name} measures goes on to its verdict, its progress is not "
            f"seen, and Ctrl-C does not reach it{f'; `{end}` ends it with the engines' if end else ''}"
        )

    def _last_word(self) -> Answer | None:
        until_s = time.monotonic() + _SETTLE_S
        while (said := self._asked.answered()) is None and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return said

    def _show(self) -> None:
        for line in self._asked.told(self._seen):
            self._seen += 1
            for kind, text in line.items():
                if kind in _KINDS:  # another version's are not shown
                    getattr(self._progress, kind)(text)

    def _hand_on_stop(self) -> None:
        if self._stop.first is not None and not self._stopping:
            self._stopping = True
            try:
                self._asked.stop(SIGINT if self._stop.first is SIGINT else SIGTERM)
            except OSError as problem:
                self._progress.note(f"run {self.name} cannot be asked to end the measurement: {problem.strerror}")
            else:
                self._progress.note(f"run {self.name} is asked to end the measurement; its engines stay")
        if self._stop.times > 1:
            raise stopped_by(self._stop.first or SIGTERM)


def _gone(holder: Path, topology: Topology, place: Path, *, as_json: bool) -> ExitCode:
    """The end of a measurement whose holder died: FAILED on record, unless it had its verdict."""
    name, there = called(holder), holder.is_dir()
    what = f"run {name}, which held the engines, is gone" + ("" if there else f", and so is its directory {holder}")
    says = f"; its events.jsonl says how run {name} ended" if there else ""
    action = f"start engines anew: `dynamo-mlperf run FILE --hold`{says}"
    if not began(place):
        raise SetupError(f"{what}, and no measurement began", action)
    paths, measured = RunPaths(place), topology.measure
    events, verdict = EventLog(paths), _verdict_in(place)
    if verdict is None:
        verdict = failed_verdict(
            (class_of(topology), measured.benchmark, measured.scenario),
            place,
            ServingError(what, action),
            target_qps=measured.target_qps,
            model=topology.model.name,
        )
        events.add("error", what=what)
        try:
            write_verdict(paths, verdict)
        except OSError as problem:
            raise unusable(place, problem) from problem
    if read_run(place).finished is None:  # whoever had it from the holder is the last that can say how it ended
        events.add("job_end", exit_code=int(verdict.exit_code))
    answer(verdict, place, as_json=as_json)
    return verdict.exit_code

"""Conduct a search: ask for the next step, make the probe, record it, until there is an end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ExitCode, MeasureError
from dynamo_mlperf.tuning.fit import within_limits
from dynamo_mlperf.tuning.offline import judge_offline, measured_qps, next_offline_step
from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe
from dynamo_mlperf.tuning.progress import Judge, Verdict
from dynamo_mlperf.tuning.search import next_step
from dynamo_mlperf.tuning.stream import ProbeFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.tuning.probe_command import ProbeCommand
    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings, Step
    from dynamo_mlperf.tuning.records import RecordDirectory


@dataclass(frozen=True)
class Conduct:
    """All that a search needs besides its history.

    Attributes:
        settings: What is searched.
        offline: Whether it is the Offline scenario.
        command: What makes the probes.
        records: Where they are recorded.
        stop: Asked between the lines of a stream.
        tell: Takes progress, one line at a time.
    """

    settings: SearchSettings
    offline: bool
    command: ProbeCommand
    records: RecordDirectory
    stop: StopFlag
    tell: Callable[[str], None]

    def search(self) -> tuple[Answer | NoAnswer, History]:
        """Search to the end.

        Raises:
            MeasureError: A probe did not measure, and its repeat did not either.
            Stopped: A signal asked to stop; everything so far is recorded.
        """
        history = self.records.history()
        if history:
            self.tell(f"resumed: {len(history)} probes, {_spent(history):.0f} s of engine time")
        while isinstance(step := self._next(history), Probe):
            self.stop.check()
            record = self._probe(step, history)
            history += (record,)
            self.stop.check()
        return step, history

    def _next(self, history: History) -> Step:
        return next_offline_step(history, self.settings) if self.offline else next_step(history, self.settings)

    def _probe(self, probe: Probe, history: History) -> ProbeRecord:
        """Make a probe; one that does not measure is repeated once."""
        fault = ""
        for _ in range(2):
            folder = self.records.new_folder(probe)
            self.tell(f"{folder.name}: {probe.rate:.5g} QPS, {probe.purpose}")
            try:
                return self._make(probe, folder, history)
            except ProbeFault as found:
                self.stop.check()
                fault = str(found)
                self.records.keep_fault(folder, fault)
                self.tell(f"{folder.name}: did not measure: {fault}")
        raise MeasureError(
            f"the probe at {probe.rate:.5g} QPS did not measure, twice: {fault}",
            f"run it by itself: {self.command.line(probe)}",
        )

    def _make(self, probe: Probe, folder: Path, history: History) -> ProbeRecord:
        judge = Judge(history, self.settings, probe)
        said = Verdict(None)

        def look(record: ProbeRecord) -> Verdict:
            nonlocal said
            said = judge_offline(record, self.settings) if self.offline else judge.look(record)
            return said

        record = self.command.run(probe, folder, _spent(history), look, self.stop)
        if record.samples or record.final:
            self.records.keep(folder, record)
        else:
            self.records.keep_fault(folder, "stopped before its first line")
        self.tell(f"{folder.name}: {_outcome(record, self.settings)}{f' ({said.text})' if said.text else ''}")
        return record


def _spent(history: History) -> float:
    return sum(record.cost_s for record in history)


def _outcome(record: ProbeRecord, settings: SearchSettings) -> str:
    """How a probe ended, for people."""
    if record.final is not None:
        over = ", ".join(f"{count} over {name}" for name, count in sorted(record.final.over.items()))
        verdict = "VALID" if record.final.valid and within_limits(record, settings) else "INVALID"
        return f"{verdict} after {record.final.seconds:.0f} s: {record.final.n} queries, {over}"
    return f"{record.ended}, stopped after {record.seconds:.0f} s"


def answer_json(
    step: Answer | NoAnswer, history: History, settings: SearchSettings, *, offline: bool
) -> dict[str, Any]:
    """The end of a search as JSON."""
    found = isinstance(step, Answer)
    run = history[step.probe] if isinstance(step, Answer) else None
    rate = None if run is None else measured_qps(run) if offline else run.rate
    return {
        "answer_qps": rate,
        "target_qps": run.rate if run else None,
        "confirmed": found,
        "valid": found,
        "located": isinstance(step, Answer) and step.located,
        "binding_constraint": step.binding,
        "pass_probability": round(step.pass_probability, 3) if isinstance(step, Answer) else None,
        "kind": "answer" if isinstance(step, Answer) else step.kind,
        "reason": step.reason,
        "action": None if isinstance(step, Answer) else step.action,
        "result": asdict(run.final) if run and run.final else None,
        "confirmed_by": step.probe if isinstance(step, Answer) else None,
        "engine_seconds": round(_spent(history), 3),
        "full_run_s": settings.duration_s,
        "tolerance": settings.tolerance,
        "probes": [_probe_json(record) for record in history],
    }


def _probe_json(record: ProbeRecord) -> dict[str, Any]:
    last = record.samples[-1] if record.samples else None
    final = record.final
    return {
        "target_qps": record.rate,
        "ended": record.ended,
        "seconds": record.seconds,
        "planned_s": record.planned_s,
        "engine_seconds": record.cost_s,
        "n": final.n if final else last.completed if last else 0,
        "over_limit": final.over if final else last.over if last else {},
        "valid": final.valid if final else None,
        "purpose": record.purpose,
    }


def exit_code(step: Answer | NoAnswer) -> ExitCode:
    """0 with an answer, 5 without."""
    return ExitCode.DONE if isinstance(step, Answer) else ExitCode.INVALID

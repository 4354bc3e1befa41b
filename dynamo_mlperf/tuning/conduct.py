"""Conduct a search: ask for the next step, make the probe, record it, until there is an end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from dynamo_mlperf.errors import ExitCode, MeasureError, ServingError, SetupError
from dynamo_mlperf.tuning.fit import within_limits
from dynamo_mlperf.tuning.offline import judge_offline, measured_qps, next_offline_step
from dynamo_mlperf.tuning.probes import Answer, NoAnswer, Probe
from dynamo_mlperf.tuning.progress import Judge, Verdict
from dynamo_mlperf.tuning.search import next_step
from dynamo_mlperf.tuning.stream import ProbeFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.tuning.probes import History, ProbeRecord, SearchSettings, Step
    from dynamo_mlperf.tuning.records import RecordDirectory

    Look = Callable[[ProbeRecord], Verdict]


class Prober(Protocol):
    """What makes the probes."""

    def run(self, probe: Probe, folder: Path, begin_s: float, look: Look) -> ProbeRecord:
        """Make one probe; `look` judges it as it goes on.

        Raises:
            ProbeFault: It did not measure.
        """
        ...

    def line(self, probe: Probe) -> str:
        """What a person could do to look into a probe that does not measure."""
        ...


@dataclass(frozen=True)
class Conduct:
    """All that a search needs besides its history.

    Attributes:
        settings: What is searched.
        offline: Whether it is the Offline scenario.
        prober: What makes the probes.
        records: Where they are recorded.
        check: Raises `Stopped` when a signal asked to stop.
        tell: Takes progress, one line at a time.
        left_s: Seconds that are left for probes by the clock of the place, asked before each; None = no end in sight.
    """

    settings: SearchSettings
    offline: bool
    prober: Prober
    records: RecordDirectory
    check: Callable[[], None]
    tell: Callable[[str], None]
    left_s: Callable[[], float | None] = lambda: None

    def search(self) -> tuple[Answer | NoAnswer, History]:
        """Search to the end.

        Raises:
            MeasureError: A probe did not measure, and its repeat did not either.
            ServingError, SetupError: What serves died; what that may have spoilt counts for nothing.
            Stopped: A signal asked to stop; everything so far is recorded.
        """
        history = self.records.history()
        if history:
            self.tell(f"resumed: {len(history)} probes, {_spent(history):.0f} s of engine time")
        while isinstance(step := self._next(history), Probe):
            self.check()
            record = self._probe(step, history)
            if record.samples or record.final:
                history += (record,)
            self.check()
        return step, history

    def _next(self, history: History) -> Step:
        settings = self._bounded(history)
        return next_offline_step(history, settings) if self.offline else next_step(history, settings)

    def _bounded(self, history: History) -> SearchSettings:
        """The settings with the budget that the place leaves."""
        left_s = self.left_s()
        if left_s is None:
            return self.settings
        until_s = max(0.0, _spent(history) + left_s)
        given_s = self.settings.time_budget_s
        return replace(self.settings, time_budget_s=until_s if given_s is None else min(given_s, until_s))

    def _probe(self, probe: Probe, history: History) -> ProbeRecord:
        """Make a probe; one that does not measure is repeated once."""
        fault = ""
        for _ in range(2):
            folder = self.records.new_folder(probe)
            self.tell(f"{folder.name}: {probe.rate:.5g} QPS, {probe.purpose}")
            try:
                return self._make(probe, folder, history)
            except ProbeFault as found:
                self.check()
                fault = str(found)
                self.records.keep_fault(folder, fault)
                self.tell(f"{folder.name}: did not measure: {fault}")
            except (ServingError, SetupError) as problem:
                self.records.distrust(folder, problem.what.partition("\n")[0])
                raise
        raise MeasureError(
            f"the probe at {probe.rate:.5g} QPS did not measure, twice: {fault}",
            self.prober.line(probe),
        )

    def _make(self, probe: Probe, folder: Path, history: History) -> ProbeRecord:
        judge, bounded = Judge(history, self.settings, probe), self._bounded(history) if self.offline else self.settings
        said = Verdict(None)

        def look(record: ProbeRecord) -> Verdict:
            nonlocal said
            said = judge_offline(record, bounded) if self.offline else judge.look(record)
            return said

        record = self.prober.run(probe, folder, _spent(history), look)
        if record.samples or record.final:
            self.records.keep(folder, record)
        else:
            self.records.keep_fault(folder, "stopped before its first line")
        why = f" ({said.text})" if record.ended == said.stop else ""  # not where it came to its end before the stop
        self.tell(f"{folder.name}: {_outcome(record, self.settings)}{why}")
        return record


def _spent(history: History) -> float:
    return sum(record.cost_s for record in history)


def _outcome(record: ProbeRecord, settings: SearchSettings) -> str:
    """How a probe ended, for people."""
    if record.final is not None:
        over = ", ".join(f"{count} over {name}" for name, count in sorted(record.final.over.items()))
        verdict = "VALID" if record.final.valid and within_limits(record, settings) else "INVALID"
        counted = ", ".join([f"{record.final.n} queries", *([over] if over else [])])
        why = f" ({record.final.reasons[0]})" if verdict == "INVALID" and record.final.reasons else ""
        return f"{verdict} after {record.final.seconds:.0f} s: {counted}{why}"
    why = f": {record.refused}" if record.refused else ""
    return f"{record.ended}, stopped after {record.seconds:.0f} s{why}"


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
        "located_within": step.within if isinstance(step, Answer) else None,
        "binding_constraint": step.binding,
        "pass_probability": round(step.pass_probability, 3) if isinstance(step, Answer) else None,
        "kind": "answer" if isinstance(step, Answer) else step.kind,
        "reason": step.reason,
        "action": None if isinstance(step, Answer) else step.action,
        "result": asdict(run.final) if run and run.final else None,
        "confirmed_by": step.probe if isinstance(step, Answer) else None,
        "engine_seconds": round(_spent(history), 3),
        "full_run_s": round(settings.run_s(run.rate), 3) if run else settings.duration_s,
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
        "reasons": list(final.reasons) if final else [record.refused] if record.refused else [],
    }


def exit_code(step: Answer | NoAnswer) -> ExitCode:
    """0 with an answer, 5 without."""
    return ExitCode.DONE if isinstance(step, Answer) else ExitCode.INVALID

"""Run records: what a run leaves behind, and the verdict that every reader of it relies on.

Evidence is written before the verdict, so a run directory without `verdict.json` is one that did not end.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from dynamo_mlperf.errors import ConfigError, ExitCode, Stopped
from dynamo_mlperf.files import RunPaths, append_json_line, read_json, read_json_lines, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.errors import DynamoMlperfError

VerdictName = Literal["VALID", "INVALID", "FAILED"]
ResultClass = Literal["official", "reduced", "rehearsal"]
TransferProof = Literal["kv-counters", "routing only", "none"]
FULL_RULES = "held to the benchmark's full rules, as a submission must be"
"""What the class `official` means, for people; no promise that the result can be submitted."""
EXIT_CODES = {"VALID": ExitCode.DONE, "INVALID": ExitCode.INVALID, "FAILED": ExitCode.FAILED}
"""What a program ends with, by the verdict of what it ran."""

PHASES = ("check", "stage", "start", "ready", "canary", "warmup", "measure", "judge", "stop", "record")
"""The phases of a job in order; `events.jsonl` carries `phase_begin` and `phase_end` for each that ran."""

HELD_NOTE = "engines held by run"
"""How the note begins of a verdict whose engines another run had started, and held."""

_MOST_COUNT = 2**63
"""No engine counts further."""

SIDE_PHASES = ("accuracy", "compliance")
"""Between judge and stop, in a job that was asked for those tests."""


@dataclass(frozen=True)
class Reason:
    """Why a run is not VALID (or what a reader should know): what was wanted, what was seen, what to do."""

    check: str
    wanted: str
    got: str
    action: str

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Reason:
        """One reason of a `verdict.json`.

        Raises:
            KeyError: It is none of ours.
        """
        return Reason(*(value[name] for name in ("check", "wanted", "got", "action")))

    def text(self) -> str:
        """One line for people."""
        return f"{self.check}: wanted {self.wanted}, got {self.got}. {self.action}"


@dataclass(frozen=True)
class ConstraintLatency:
    """Latencies of one constraint over all queries of a run, in milliseconds.

    Attributes:
        plain: The plain 99th percentile.
        at_percentile: The plain percentile that this run is judged at (p99 unless the file reduces it).
        early_stopping: The lowest limit under which the run would pass the early-stopping rule; None when the
            run has too few queries for its percentile.
        limit: The limit that applied.
        percentile: The judged percentile, 0 to 1.
        over_limit: Queries over the limit.
        over_limit_allowed: Queries that may be over it by the early-stopping rule; -1 when there are too few.
    """

    plain: float
    at_percentile: float
    early_stopping: float | None
    limit: float
    percentile: float
    over_limit: int
    over_limit_allowed: int


@dataclass(frozen=True)
class TransferEvidence:
    """What the engines' own counters say about the measured window: counter differences, summed over workers.

    Attributes:
        disaggregated: Whether the deployment has prefill and decode roles.
        proof: Where the proof comes from: `kv-counters` (engine counters of moved KV cache) or `routing only`
            (requests per role, simulated engines), `none` for aggregated deployments.
        requests: Requests that the decode (or aggregated) workers finished.
        prefill_requests: Requests that the prefill workers finished.
        remote_prefills: Requests whose whole prompt came from a prefill worker.
        prompt_tokens: Prompt tokens of the requests that decode workers took in.
        external_tokens: Those of them that arrived by KV transfer.
        local_tokens: Those of them that a decode worker computed itself.
        kv_bytes: Bytes moved by NIXL.
        transfers: Number of NIXL transfers.
        failed_transfers: Transfers that failed or expired.
    """

    disaggregated: bool
    proof: TransferProof
    requests: int = 0
    prefill_requests: int = 0
    remote_prefills: int = 0
    prompt_tokens: int = 0
    external_tokens: int = 0
    local_tokens: int = 0
    kv_bytes: int = 0
    transfers: int = 0
    failed_transfers: int = 0


@dataclass(frozen=True)
class Verdict:
    """The verdict of one run; `as_json` gives the keys of `run --json` and of `verdict.json`.

    `model` is the served model's name by the topology: a benchmark's rules also apply to a model that is not its own.
    It is empty where nobody knows it. `tests` has the verdicts of the run's accuracy and compliance tests by name; they
    do not change that of the performance test, but the exit code.
    """

    verdict: VerdictName
    result_class: ResultClass
    benchmark: str
    scenario: str
    run_dir: str
    reasons: tuple[Reason, ...] = ()
    notes: tuple[str, ...] = ()
    target_qps: float | None = None
    completed_qps: float | None = None
    tokens_per_second: float | None = None
    requests: int = 0
    failed_requests: int = 0
    duration_s: float | None = None
    latency_p99_ms: Mapping[str, ConstraintLatency] = field(default_factory=dict)
    transfer: TransferEvidence | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    tests: Mapping[str, VerdictName] = field(default_factory=dict)

    @property
    def exit_code(self) -> ExitCode:
        """By the performance test; where that is VALID, an accuracy or compliance test that is not makes it INVALID."""
        short = self.verdict == "VALID" and any(name != "VALID" for name in self.tests.values())
        return ExitCode.INVALID if short else EXIT_CODES[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain JSON values.

        Throughput and latencies are absent (null) where nothing was measured: a run without a measurement never
        shows a figure.
        """
        moved = self.transfer
        return {
            "verdict": self.verdict,
            "class": self.result_class,
            "reasons": [{**asdict(reason), "text": reason.text()} for reason in self.reasons],
            "notes": list(self.notes),
            "benchmark": self.benchmark,
            "scenario": self.scenario,
            "model": self.model or None,
            "target_qps": self.target_qps,
            "completed_qps": self.completed_qps,
            "tokens_per_second": self.tokens_per_second,
            "latency_p99_ms": {name: asdict(value) for name, value in self.latency_p99_ms.items()},
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "duration_s": self.duration_s,
            "remote_prefills": moved.remote_prefills if moved else None,
            "kv_bytes": moved.kv_bytes if moved else None,
            "failed_transfers": moved.failed_transfers if moved else None,
            "disaggregation": asdict(moved) if moved else None,
            "client": dict(self.client),
            "tests": dict(self.tests),
            "run_dir": self.run_dir,
        }


def failed_verdict(
    measured: tuple[ResultClass, str, str],
    directory: Path,
    problem: DynamoMlperfError,
    *,
    target_qps: float | None,
    model: str,
    check: str = "run",
) -> Verdict:
    """The verdict of a run that did not measure: no figure, only why.

    Args:
        measured: Class, benchmark and scenario.
        directory: The run's.
        problem: Why.
        target_qps: The rate that was asked for, in queries per second.
        model: The served model's name.
        check: What the reason is filed under; a stop request is always `interrupted`.
    """
    check = "interrupted" if isinstance(problem, Stopped) else check
    reason = Reason(check, "a measurement", problem.what, problem.action or "see events.jsonl and logs/")
    return Verdict("FAILED", *measured, str(directory), reasons=(reason,), target_qps=target_qps, model=model)


def transfer_from_json(value: Mapping[str, Any]) -> TransferEvidence:
    """The evidence of KV transfer as a run recorded it.

    Raises:
        TypeError: It is none of ours.
        ValueError: A count is no number, or the proof is of no known kind.
    """
    found = TransferEvidence(**value)
    if type(found.disaggregated) is not bool or found.proof not in get_args(TransferProof):
        raise ValueError(f"no proof of KV transfer: {found.disaggregated!r:.40}, {found.proof!r:.40}")
    counts = {name: count for name, count in asdict(found).items() if name not in ("disaggregated", "proof")}
    for name, count in counts.items():
        if type(count) not in {int, float} or not abs(count) < _MOST_COUNT:
            raise ValueError(f"{name} of KV transfer: wanted a number, got {count!r:.40}")
    return found


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """The inverse of `Verdict.as_json`.

    Raises:
        KeyError: It is no verdict of ours.
        TypeError: The same.
        ValueError: The same.
    """
    kept = {"verdict", "benchmark", "scenario", "run_dir", "target_qps", "completed_qps", "tokens_per_second"}
    kept |= {"requests", "failed_requests", "duration_s", "client", "tests"}
    moved = value["disaggregation"]
    return Verdict(
        **{name: value[name] for name in kept},
        result_class=value["class"],
        reasons=tuple(map(Reason.from_json, value["reasons"])),
        notes=tuple(value["notes"]),
        latency_p99_ms={name: ConstraintLatency(**one) for name, one in value["latency_p99_ms"].items()},
        transfer=transfer_from_json(moved) if moved else None,
        model=value["model"] or "",
    )


class EventLog:
    """Appends what happens to `events.jsonl`; `t` is seconds since the epoch.

    Attributes:
        problem: Why an event could not be written, once that has happened. It does not interrupt: events are written
            while processes are being stopped too, and that must go on. The controller looks at it before it judges.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._path = paths.events
        self.problem: OSError | None = None

    def add(self, event: str, **details: object) -> None:
        """Record `event` now."""
        try:
            append_json_line(self._path, {"t": round(time.time(), 6), "event": event, **details})
        except OSError as problem:
            self.problem = problem


def new_run_directory(place: Path) -> Path:
    """The absolute path of a run directory that is to be made; nothing is made yet.

    Raises:
        ConfigError: It exists, or has a name that LoadGen does not take, or that no table or log can show.
    """
    path = place.resolve()
    odd = [letter for letter in str(path) if "\ud800" <= letter <= "\udfff" or letter < " " or letter == "\x7f"]
    if odd:
        raise ConfigError(
            f"run directory {str(path)!r}: {odd[0]!r} in its name is a control character, or no UTF-8",
            "name another --run-dir, and run where the name of every folder is UTF-8 text",
        )
    if path.exists():
        raise ConfigError(f"{path} exists: results of two runs would mix", "name another --run-dir, or leave it out")
    return path


def write_verdict(paths: RunPaths, verdict: Verdict) -> None:
    """Write `verdict.json`, the last file of a run that ended."""
    write_json(paths.verdict, verdict.as_json())


def read_verdict(paths: RunPaths) -> dict[str, Any] | None:
    """The verdict of a run that ended, else None."""
    if not paths.verdict.exists():
        return None
    value: dict[str, Any] = read_json(paths.verdict)
    return value


def read_events(paths: RunPaths) -> list[dict[str, Any]]:
    """All events of a run, oldest first."""
    return read_json_lines(paths.events)

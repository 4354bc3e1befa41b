"""The figures that both the terminal summary and the page show, derived once from a run's data.

A figure that was not measured is None, and only a run that measured (VALID or INVALID) has latencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from dynamo_mlperf.record import FULL_RULES, Reason, VerdictName
from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.queries import ascending_ms, percentile
from dynamo_mlperf.report.run_data import as_list, as_mapping
from dynamo_mlperf.report.words import CONSTRAINTS, in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.load.queries import Queries
    from dynamo_mlperf.report.run_data import RunData

NO_VERDICT = "NO VERDICT"
DAMAGED = "DAMAGED"
MEASURED = ("VALID", "INVALID")
SHOWN_PERCENTILES = (0.5, 0.9, 0.99)

_STATE_MEANING = {
    "VALID": "The run finished and every rule was met.",
    "INVALID": "The run finished, but a rule was not met.",
    "FAILED": "The run did not measure.",
    NO_VERDICT: "The run has not ended, or was killed before it could judge. Nothing is measured yet.",
    DAMAGED: "The run has a verdict, and its verdict.json cannot be read: copy the run directory again.",
}
_CLASS_MEANING = {
    "official": FULL_RULES,
    "reduced": "reduced rules, for tuning and demos; cannot be submitted",
    "rehearsal": "simulated engines; says nothing about real hardware and cannot be submitted",
}


@dataclass(frozen=True)
class LatencyRow:
    """Latencies of one measure in milliseconds, over the answered queries.

    Attributes:
        name: The measure in words.
        constraint: The verdict's key; one of CONSTRAINTS where it follows from the record of single queries.
        percentiles: Fraction (0.99) to latency; None where it is not known.
        judged_at: The fraction that the run is judged at; None for a measure that is shown and not judged.
        early_stopping: The lowest limit under which the run passes the early-stopping rule, None with too few queries.
        limit: The limit that applied, None where not judged.
        over_limit: Queries over the limit.
        allowed: Queries that may be over it, negative where there are too few queries to allow any judgement.
    """

    name: str
    constraint: str
    percentiles: Mapping[float, float | None]
    judged_at: float | None = None
    early_stopping: float | None = None
    limit: float | None = None
    over_limit: int | None = None
    allowed: int | None = None

    @property
    def over_text(self) -> str:
        """How many are over the limit, and how many may be: `64, 1 allowed`."""
        if self.over_limit is None:
            return ""
        if self.allowed is None or self.allowed < 0:
            return f"{q.count(self.over_limit)}, too few queries"
        return f"{q.count(self.over_limit)}, {q.count(self.allowed)} allowed"


@dataclass(frozen=True)
class Proof:
    """Disaggregation as the engines' own counters tell it.

    `kind` is `kv-counters`, `routing only` (simulated engines: no KV cache moves) or `none` (nothing to prove).
    """

    kind: str
    disaggregated: bool
    requests: int | None
    prefill_requests: int | None
    remote_prefills: int | None
    prompt_tokens: int | None
    external_tokens: int | None
    local_tokens: int | None
    kv_bytes: int | None
    transfers: int | None
    failed_transfers: int | None


@dataclass(frozen=True)
class Figures:
    """What a reader wants first."""

    state: str
    meaning: str
    result_class: str
    class_meaning: str
    benchmark: str
    scenario: str
    model: str
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    target_qps: float | None
    completed_qps: float | None
    tokens_per_second: float | None
    requests: int | None
    failed_requests: int | None
    duration_s: float | None
    rate_unit: str
    latencies: tuple[LatencyRow, ...]
    proof: Proof | None

    @property
    def measured(self) -> bool:
        """Whether the run came to a measurement, VALID or not."""
        return self.state in MEASURED

    @property
    def simulated(self) -> str:
        """What a heading over figures adds, so that a rehearsed figure never passes for a measured one."""
        return ", simulated" if self.measured and self.result_class == "rehearsal" else ""


def derive_figures(run: RunData) -> Figures:
    """The figures of `run`."""
    verdict = run.verdict or {}
    state = _state(run)
    measured = state in MEASURED
    result_class, scenario = str(verdict.get("class") or ""), str(verdict.get("scenario") or "")
    return Figures(
        state=state,
        meaning=_STATE_MEANING.get(state, ""),
        result_class=result_class,
        class_meaning=_CLASS_MEANING.get(result_class, ""),
        benchmark=str(verdict.get("benchmark") or ""),
        scenario=scenario,
        model=str(verdict.get("model") or ""),
        reasons=tuple(_reason(entry) for entry in as_list(verdict.get("reasons"))),
        notes=tuple(in_words(str(note)) for note in as_list(verdict.get("notes"))),
        target_qps=q.number_or_none(verdict.get("target_qps")),
        completed_qps=q.number_or_none(verdict.get("completed_qps")) if measured else None,
        tokens_per_second=q.number_or_none(verdict.get("tokens_per_second")) if measured else None,
        requests=_whole(verdict.get("requests")) if measured else None,
        failed_requests=_whole(verdict.get("failed_requests")) if measured else None,
        duration_s=q.number_or_none(verdict.get("duration_s")) if measured else None,
        rate_unit="samples/s" if scenario == "Offline" else "queries/s",
        latencies=_latencies(as_mapping(verdict.get("latency_p99_ms")), run.queries) if measured else (),
        proof=_proof(run.transfer) if run.transfer else None,
    )


def _state(run: RunData) -> str:
    """The verdict; else whether there is none, or one that nobody can read."""
    if run.verdict is not None:
        found = run.verdict.get("verdict")
        return str(found) if found in get_args(VerdictName) else DAMAGED
    return DAMAGED if any(told.startswith("verdict.json") for told in run.damaged) else NO_VERDICT


def _reason(entry: object) -> Reason:
    fields = as_mapping(entry)
    return Reason(*(in_words(str(fields.get(name) or "")) for name in ("check", "wanted", "got", "action")))


def _latencies(constraints: Mapping[str, Any], queries: Queries | None) -> tuple[LatencyRow, ...]:
    """Judged measures first, then those that are only shown; endpoints' record has no tokens, and so no TPOT."""
    rows = [_judged_row(key, as_mapping(value), queries) for key, value in constraints.items()]
    for key in CONSTRAINTS:
        if queries is not None and key not in constraints:
            values = ascending_ms(queries, key)
            if len(values):
                shown = {fraction: percentile(values, fraction) for fraction in SHOWN_PERCENTILES}
                rows.append(LatencyRow(CONSTRAINTS[key], key, shown))
    return tuple(rows)


def _judged_row(key: str, value: Mapping[str, Any], queries: Queries | None) -> LatencyRow:
    """p99 and the judged percentile as the verdict has them; the others out of the client's record of each query."""
    values = ascending_ms(queries, key) if queries is not None and key in CONSTRAINTS else None
    shown: dict[float, float | None] = {f: None if values is None else percentile(values, f) for f in SHOWN_PERCENTILES}
    judged_at = q.number_or_none(value.get("percentile")) or SHOWN_PERCENTILES[-1]
    shown[judged_at] = q.number_or_none(value.get("at_percentile"))
    shown[SHOWN_PERCENTILES[-1]] = q.number_or_none(value.get("plain"))
    return LatencyRow(
        name=CONSTRAINTS.get(key, key),
        constraint=key,
        percentiles=dict(sorted(shown.items())),
        judged_at=judged_at,
        early_stopping=q.number_or_none(value.get("early_stopping")),
        limit=q.number_or_none(value.get("limit")),
        over_limit=_whole(value.get("over_limit")),
        allowed=_whole(value.get("over_limit_allowed")),
    )


def _proof(transfer: Mapping[str, Any]) -> Proof:
    names = (
        "requests", "prefill_requests", "remote_prefills", "prompt_tokens", "external_tokens", "local_tokens",
        "kv_bytes", "transfers", "failed_transfers",
    )  # fmt: skip
    return Proof(
        str(transfer.get("proof") or "none"),
        bool(transfer.get("disaggregated")),
        *(_whole(transfer.get(name)) for name in names),
    )


def _whole(value: object) -> int | None:
    number = q.number_or_none(value)
    return None if number is None else round(number)

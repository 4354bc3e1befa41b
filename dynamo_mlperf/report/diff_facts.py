"""What a run directory says, as flat facts by kind: what two runs are compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, DynamoMlperfError
from dynamo_mlperf.load.endpoints_run import RECORD
from dynamo_mlperf.load.logs import DETAIL, SUMMARY, read_logs
from dynamo_mlperf.report.causes import headline
from dynamo_mlperf.report.diff_values import digest_of, flattened
from dynamo_mlperf.report.quantities import percentile_name
from dynamo_mlperf.report.run_data import as_list, as_mapping
from dynamo_mlperf.report.run_files import found_below, object_in
from dynamo_mlperf.report.side_tests import side_rows
from dynamo_mlperf.report.words import in_words
from dynamo_mlperf.topology.batch import batch_directives
from dynamo_mlperf.topology.document import parse_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.report.diff_values import Value
    from dynamo_mlperf.report.figures import Figures, LatencyRow
    from dynamo_mlperf.report.run_data import RunData

_MOST_LOG_BYTES = 256_000_000
_SAID_BY_VERSIONS = ("os", "kernel", "memory_bytes")
_CLIENT_NOISE = ("first_issue_t", "in_flight_over_time")
_SENTENCES = ("reason", "action", "confirmed_in", "confirmed_by", "full_run_s")
"""Of a search's answer: what says the same again, and which probe it was."""
_RESULT = (
    "target_qps", "completed_qps", "tokens_per_second", "requests", "failed_requests", "duration_s",
)  # fmt: skip


def topology_facts(run: RunData) -> dict[str, Value]:
    """Keys of the topology file with what the command line laid over it, and its `#SBATCH` lines.

    A run of `measure` has an endpoint instead: its address, model and class.
    """
    text = run.topology
    if text is None:
        record = object_in(run.paths.endpoint)
        return (
            flattened({key: value for key, value in record.items() if key != "settings"}, "endpoint") if record else {}
        )
    if not text.strip():
        return {}
    try:
        merged = dict(parse_document(text, run.paths.topology).value)
    except ConfigError:
        return {"no file that can be read; its digest": digest_of(text)}
    for key, laid in run.laid_over.items():
        if isinstance(laid, dict):
            merged[key] = {**as_mapping(merged.get(key)), **laid}
        else:
            merged[f"--{key}"] = laid
    return flattened(merged) | _batch_facts(text)


def _batch_facts(text: str) -> dict[str, Value]:
    try:
        return {f"#SBATCH --{one.option}": one.value or "set" for one in batch_directives(text)}
    except ConfigError:
        return {}


def plan_facts(run: RunData) -> dict[str, Value]:
    """Split, nodes, idle GPUs, hosts, and where each worker stands."""
    layout = run.layout
    if layout is None:
        return {}
    hosts = dict.fromkeys(node.host for node in layout.nodes if node.host)
    by_role: dict[str, int] = {}
    for worker in layout.workers:
        by_role[worker.role] = by_role.get(worker.role, 0) + 1
    return {
        "split": layout.split or None,
        "nodes": len(layout.nodes),
        f"{layout.unit}s": layout.gpus,
        f"idle {layout.unit}s": layout.idle_gpus,
        "prefill GPUs": layout.prefill_gpus,
        "decode GPUs": layout.decode_gpus,
        **{f"{role} workers": count for role, count in by_role.items()},
        "hosts": ", ".join(hosts) or None,
        **{worker.name: _ranks(worker.ranks, layout.unit) for worker in layout.workers},
    }


def _ranks(ranks: tuple[tuple[int, int], ...], unit: str) -> str:
    by_node: dict[int, list[str]] = {}
    for node, gpu in ranks:
        by_node.setdefault(node, []).append(str(gpu))
    return "; ".join(f"node {node} {unit} {','.join(gpus)}" for node, gpus in by_node.items())


def version_facts(run: RunData) -> dict[str, Value]:
    """Versions of package, engines, Slurm, kernel; what the nodes are made of, their drivers included."""
    found: dict[str, Value] = {name: str(value) for name, value in run.versions.items()}
    nodes: dict[str, dict[str, None]] = {}
    for path in found_below(run.paths.logs, "check-*.json"):
        for name, value in flattened(as_mapping(object_in(path).get("hardware"))).items():
            if name not in _SAID_BY_VERSIONS:
                nodes.setdefault(f"nodes: {name}", {})[str(value)] = None
    return found | {name: " | ".join(values) for name, values in nodes.items()}


def asked_facts(run: RunData) -> dict[str, Value]:
    """What the load client was asked for."""
    asked = object_in(run.paths.root / "measure.json").get("settings")
    if isinstance(asked, dict):
        return flattened(asked)
    record = object_in(run.paths.endpoint).get("settings")
    return flattened(as_mapping(object_in(run.paths.root / RECORD)) or as_mapping(record))


def effective_facts(run: RunData) -> dict[str, Value]:
    """What LoadGen says was in force."""
    try:
        if any((run.paths.load / name).stat().st_size > _MOST_LOG_BYTES for name in (DETAIL, SUMMARY)):
            return {}
        effective = read_logs(run.paths.load).effective
    except (DynamoMlperfError, OSError, ValueError):
        return {}
    return {key.removeprefix("effective_"): flattened(value, "v").get("v") for key, value in effective.items()}


def result_facts(run: RunData, figures: Figures) -> dict[str, Value]:
    """Verdict, class, why, rates and counts; a figure that was not measured is None."""
    return {
        "verdict": figures.state,
        "class": figures.result_class or None,
        "benchmark": figures.benchmark or None,
        "scenario": figures.scenario or None,
        "model": figures.model or None,
        **{name: getattr(figures, name) for name in _RESULT},
        **{f"reason: {reason.check}": headline(reason.got) for reason in figures.reasons},
        **{f"ended by itself: {death.name}": death.status for death in run.timeline.deaths},
    }


def latency_facts(figures: Figures) -> dict[str, Value]:
    """Percentiles in milliseconds, early stopping and what is over the limit, by measure."""
    found: dict[str, Value] = {}
    for row in figures.latencies:
        found |= {f"{row.name} {name}": value for name, value in _latency(row).items()}
    return found


def _latency(row: LatencyRow) -> dict[str, Value]:
    shown: dict[str, Value] = {percentile_name(fraction): value for fraction, value in row.percentiles.items()}
    if row.judged_at is None:
        return {**shown, "judged at": "not judged"}
    return shown | {
        "judged at": percentile_name(row.judged_at),
        "early stopping": row.early_stopping,
        "limit": row.limit,
        "queries over the limit": row.over_limit,
        "of them allowed": row.allowed,
    }


def transfer_facts(run: RunData) -> dict[str, Value]:
    """The proof of disaggregation, by its counters."""
    return flattened(dict(run.transfer)) if run.transfer else {}


def client_facts(run: RunData, *, noise: bool) -> dict[str, Value]:
    """The load client's own account; with `noise`, times of day and one value a second too."""
    kept = {key: value for key, value in run.client.items() if noise or key not in _CLIENT_NOISE}
    if isinstance(kept.get("failed"), list):
        kept["failed"] = len(kept["failed"])
    return flattened(kept)


def search_facts(run: RunData) -> dict[str, Value]:
    """The answer of a rate search: rate, what binds, which role runs out, and what it cost."""
    answer = object_in(run.paths.root / "search" / "answer.json")
    if not answer:
        return {}
    told = {key: value for key, value in answer.items() if not isinstance(value, dict | list) and key not in _SENTENCES}
    told["binding_constraint"] = in_words(_text(answer.get("binding_constraint")) or "none")
    if answer.get("answer_qps") is None:
        told["why none"] = in_words(str(answer.get("reason")))
    bottleneck = as_mapping(answer.get("bottleneck"))
    return flattened(told) | {
        "bottleneck role": _text(bottleneck.get("role")),
        "probes": len(as_list(answer.get("probes"))),
    }


def sweep_facts(run: RunData) -> dict[str, Value]:
    """The winner, and of each split its rate, what binds, and which role runs out; or why it was not measured."""
    summary = object_in(run.paths.root / "sweep" / "summary.json")
    if not summary:
        return {}
    found: dict[str, Value] = {"winner": _text(summary.get("winner")), "state": _text(summary.get("state"))}
    for one in filter(None, map(as_mapping, as_list(summary.get("splits")))):
        found |= _split(one)
    found |= _given_rates(run.paths.root / "sweep")
    for kind, how in (("pruned", "skipped"), ("not_measured", "not measured")):
        for one in filter(None, map(as_mapping, as_list(summary.get(kind)))):
            found[f"{one.get('split')} {how}"] = in_words(str(one.get("reason")))
    return found


def _given_rates(sweep: Path) -> dict[str, Value]:
    """How the run at each given rate ended, by split."""
    found: dict[str, Value] = {}
    for path in found_below(sweep, "*/rate-*/verdict.json"):
        verdict = object_in(path)
        reasons = [in_words(str(as_mapping(one).get("check"))) for one in as_list(verdict.get("reasons"))]
        why = f" ({reasons[0]})" if reasons else ""
        found[f"{path.parent.parent.name} at {verdict.get('target_qps')} queries/s"] = f"{verdict.get('verdict')}{why}"
    return found


def _split(one: Mapping[str, Any]) -> dict[str, Value]:
    bottleneck = as_mapping(one.get("bottleneck"))
    named = {
        "queries/s": one.get("rate_qps"),
        "queries/s per GPU": one.get("rate_qps_per_gpu"),
        "located": one.get("located"),
        "breaks first": in_words(_text(one.get("binding_constraint")) or "none"),
        "limits": bottleneck.get("role"),
        "why none": None if one.get("rate_qps") is not None else one.get("reason"),
    }
    return {f"{one.get('split')} {name}": flattened(value, "v").get("v") for name, value in named.items()}


def side_facts(run: RunData) -> dict[str, Value]:
    """Accuracy and compliance tests: verdict and scores."""
    return {row.name: row.text() for row in side_rows(run.paths.root)}


def phase_facts(run: RunData) -> dict[str, Value]:
    """Seconds of each phase."""
    return {phase.name: None if phase.seconds is None else round(phase.seconds, 3) for phase in run.timeline.phases}


def _text(value: object) -> str | None:
    return None if value is None else str(value)

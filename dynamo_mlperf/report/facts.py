"""A run's report as plain JSON values, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.figures import derive_figures

if TYPE_CHECKING:
    from dynamo_mlperf.report.run_data import RunData


def facts_of(run: RunData) -> dict[str, Any]:
    """What `report --json` prints.

    Returns:
        `run_dir`; `state` (VALID, INVALID, FAILED, NO VERDICT or DAMAGED); `verdict`, what verdict.json holds or null;
        `percentiles_ms`, per measure an object such as {"p50": 812.4, "p99": 1457.1}, empty where nothing was
        measured; `phases`, each with `phase`, `begin_s` and `seconds` (null where it did not end); `processes`, each
        with `process`, `node`, `ready_after_s` and `died`; `missing` and `damaged` files.
    """
    figures = derive_figures(run)
    return {
        "run_dir": str(run.paths.root),
        "state": figures.state,
        "verdict": run.verdict,
        "percentiles_ms": {
            row.name: {q.percentile_name(fraction): value for fraction, value in row.percentiles.items()}
            for row in figures.latencies
        },
        "phases": [
            {"phase": phase.name, "begin_s": round(phase.begin_s, 3), "seconds": _rounded(phase.seconds)}
            for phase in run.timeline.phases
        ],
        "processes": [
            {
                "process": process.name,
                "node": process.node,
                "ready_after_s": _rounded(process.ready_after_s),
                "died": process.died,
            }
            for process in run.timeline.processes
        ],
        "missing": list(run.missing),
        "damaged": list(run.damaged),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

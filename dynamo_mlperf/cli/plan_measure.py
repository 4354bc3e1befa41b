"""What `plan` says of the measurement: benchmark, rate, client, limits, class, and what is searched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.job.context import class_of
from dynamo_mlperf.job.expected import expected_settings, why_class
from dynamo_mlperf.load.enough import enough_queries
from dynamo_mlperf.report.quantities import duration
from dynamo_mlperf.report.words import CONSTRAINTS
from dynamo_mlperf.topology.sweeping import splits_of

if TYPE_CHECKING:
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Topology

_CLIENTS = {"loadgen": "LoadGen", "endpoints": "MLCommons endpoints"}
_SPLITS_SHOWN = 12


def measure_lines(topology: Topology, base_dir: Path | None = None) -> list[str]:
    """For people: one line each of the measurement, its rules, its class, its search or sweep, and its hold.

    Args:
        topology: The file, with its `search:` and `sweep:`.
        base_dir: What its paths are relative to; None = the working directory.
    """
    measure, settings = topology.measure, expected_settings(topology, base_dir or Path.cwd())
    found = [
        f"measure     {measure.benchmark} {measure.scenario}, {_rate(topology)}, by {_CLIENTS[measure.client]}",
        f"rules       {measure.round}: {_rules(settings)}{_queries(topology, settings)}",
        f"class       {class_of(topology)}: {why_class(topology)}",
    ]
    after = [name for name in ("accuracy", "compliance") if getattr(measure, name)]
    found += [f"afterwards  {' and '.join(after)} tests on the same deployment"] if after else []
    found += [f"sweep       {_sweep(topology, settings)}"] if topology.sweep is not None else []
    searched = topology.search if not _given_rates(topology) else None
    found += [f"search      {searched.text()}"] if searched is not None else []
    return [*found, *([f"hold        {topology.hold.text()}"] if topology.hold is not None else [])]


def measure_facts(topology: Topology, base_dir: Path) -> dict[str, Any]:
    """The same as plain JSON values: `measure`, `class`, and `search`, `sweep` and `hold` where the file has them."""
    measure, settings = topology.measure, expected_settings(topology, base_dir)
    enough = enough_queries(settings, measure.client)
    rates, one_rate = _given_rates(topology), None if topology.finds_rate else measure.target_qps
    return {
        "measure": {
            "benchmark": measure.benchmark,
            "scenario": measure.scenario,
            "round": measure.round,
            "client": measure.client,
            "target_qps": one_rate,
            "percentile": settings.percentile if settings.limits_ms else None,
            "limits_ms": settings.limits_ms,
            "min_duration_s": enough.duration_s,
            "planned_queries": None if one_rate is None else enough.planned,
            **({"at_rates": [_at_rate(topology, settings, rate) for rate in rates]} if rates else {}),
            "needed_queries": enough.needed,
            "accuracy": measure.accuracy,
            "compliance": measure.compliance,
        },
        "class": {"name": class_of(topology), "why": why_class(topology)},
        **({"search": topology.search.model_dump()} if topology.search is not None and not rates else {}),
        **({"hold": topology.hold.model_dump()} if topology.hold is not None else {}),
        **(
            {"sweep": topology.sweep.model_dump() | {"splits": [split.name for split in splits_of(topology)]}}
            if topology.sweep is not None
            else {}
        ),
    }


def _given_rates(topology: Topology) -> list[float]:
    """The rates that a sweep runs in place of any search, in the order of the file; none where it searches."""
    return list(topology.sweep.rates or ()) if topology.sweep is not None else []


def _at_rate(topology: Topology, settings: LoadSettings, rate: float) -> dict[str, Any]:
    """One given rate, and how many queries the test at it sends."""
    enough = enough_queries(replace(settings, target_qps=rate), topology.measure.client)
    return {"target_qps": rate, "planned_queries": enough.planned}


def _rate(topology: Topology) -> str:
    rate, offline = topology.measure.target_qps, topology.measure.scenario == "Offline"
    unit = "samples/s" if offline else "queries/s"
    if _given_rates(topology):
        return f"at the rates of the sweep ({unit})"
    if topology.finds_rate:
        return "at the highest rate that holds, which is searched"
    return f"{rate:g} {unit} expected" if offline else f"{rate:g} {unit}"


def _rules(settings: LoadSettings) -> str:
    limits = " and ".join(f"{CONSTRAINTS[name]} within {limit:g} ms" for name, limit in settings.limits_ms.items())
    judged = f"p{settings.percentile * 100:g} of {limits}" if limits else "no latency limit"
    return f"{judged}, {settings.min_duration_ms / 1000:g} s at least"


def _queries(topology: Topology, settings: LoadSettings) -> str:
    """How many queries the test sends; nothing where its rate is not given."""
    if topology.finds_rate or topology.measure.target_qps is None:
        return ""
    noun = "samples" if topology.measure.scenario == "Offline" else "queries"
    enough = enough_queries(settings, topology.measure.client)
    in_sets = settings.sample_concatenate_permutation and enough.fewest < enough.most
    return f", {enough.fewest} to {enough.most} {noun}" if in_sets else f", about {enough.planned} {noun}"


def _sweep(topology: Topology, settings: LoadSettings) -> str:
    names = [split.name for split in splits_of(topology)]
    shown = ", ".join(names[:_SPLITS_SHOWN]) + (" ..." if len(names) > _SPLITS_SHOWN else "")
    tests = [_at_rate(topology, settings, rate) for rate in _given_rates(topology)]
    each = ", ".join(f"{test['target_qps']:g} queries/s (about {test['planned_queries']} queries)" for test in tests)
    full_s = len(names) * settings.min_duration_ms / 1000
    full = f"one full test of each: {duration(full_s)} or more in all; probes and starts come on top"
    how = f"each by halving over {each}" if tests else f"each searched ({full})"
    return f"{len(names)} split{'s' if len(names) > 1 else ''} ({shown}), {how}; the best is the result"

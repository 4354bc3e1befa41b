"""Two runs compared: topology, plan, flags, versions, settings, results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.report import diff_facts as facts
from dynamo_mlperf.report.diff_commands import facts_by_role
from dynamo_mlperf.report.diff_noise import Noise, noise_of
from dynamo_mlperf.report.diff_values import Section, compared
from dynamo_mlperf.report.figures import Figures, derive_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.report.diff_values import Value
    from dynamo_mlperf.report.run_data import RunData

SECTIONS = {
    "result": "Result",
    "latency": "Latency, ms",
    "search": "Rate search",
    "sweep": "Sweep over splits",
    "side_tests": "Accuracy and compliance",
    "topology": "Topology file",
    "plan": "Plan: splits and placement",
    "commands": "Flags and environment as started",
    "versions": "Versions and hardware",
    "asked": "MLPerf settings as asked for",
    "effective": "MLPerf settings in effect (LoadGen's log)",
    "disaggregation": "Proof of disaggregation",
    "client": "The load client's own health",
    "phases": "Where the time went, s",
}
"""By name: the title for people, in the order in which they are shown."""
_OPTIONAL = ("search", "sweep", "side_tests", "phases")
"""Told only where a run has them."""
_AS_IT_IS = ("plan", "versions", "commands")
"""Hosts and versions are no noise; commands are rid of theirs by role."""


@dataclass(frozen=True)
class Side:
    """One of the two runs: its directory and what its result is called."""

    run_dir: str
    figures: Figures
    split: str
    missing: tuple[str, ...]
    damaged: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        figures = self.figures
        return {
            "run_dir": self.run_dir,
            "state": figures.state,
            "class": figures.result_class or None,
            "benchmark": figures.benchmark or None,
            "scenario": figures.scenario or None,
            "split": self.split or None,
            "completed_qps": figures.completed_qps,
            "missing": list(self.missing),
            "damaged": list(self.damaged),
        }


@dataclass(frozen=True)
class Comparison:
    """Two runs and what differs between them."""

    a: Side
    b: Side
    sections: tuple[Section, ...]

    def as_json(self) -> dict[str, Any]:
        """What `diff --json` prints."""
        return {
            "a": self.a.as_json(),
            "b": self.b.as_json(),
            "equal": all(section.equal or section.absent == "both" for section in self.sections),
            "sections": [section.as_json() for section in self.sections],
        }


def diff_runs(a: RunData, b: RunData, *, noise: bool = False) -> Comparison:
    """What differs between two runs.

    Args:
        a: The one that changes are counted from.
        b: The other.
        noise: Whether what differs between any two runs (ports, nonces, paths of the run, times) counts too.
    """
    of_a, of_b = _facts(a, noise=noise), _facts(b, noise=noise)
    sections = [compared(name, title, of_a[name], of_b[name]) for name, title in SECTIONS.items()]
    told = [section for section in sections if section.absent != "both" or section.name not in _OPTIONAL]
    return Comparison(_side(a), _side(b), tuple(told))


def _side(run: RunData) -> Side:
    split = run.layout.split if run.layout else ""
    return Side(str(run.paths.root), derive_figures(run), split, run.missing, run.damaged)


def _facts(run: RunData, *, noise: bool) -> dict[str, dict[str, Value]]:
    figures = derive_figures(run)
    found = {
        "result": facts.result_facts(run, figures),
        "latency": facts.latency_facts(figures),
        "search": facts.search_facts(run),
        "sweep": facts.sweep_facts(run),
        "side_tests": facts.side_facts(run),
        "topology": facts.topology_facts(run),
        "plan": facts.plan_facts(run),
        "commands": facts_by_role(run.commands, None if noise else noise_of(run)),
        "versions": facts.version_facts(run),
        "asked": facts.asked_facts(run),
        "effective": facts.effective_facts(run),
        "disaggregation": facts.transfer_facts(run),
        "client": facts.client_facts(run, noise=noise),
        "phases": facts.phase_facts(run) if noise else {},
    }
    if noise:
        return found
    words = noise_of(run)
    return {name: values if name in _AS_IT_IS else _masked(values, words) for name, values in found.items()}


def _masked(values: Mapping[str, Value], noise: Noise) -> dict[str, Value]:
    return {key: noise.masked(value) if isinstance(value, str) else value for key, value in values.items()}

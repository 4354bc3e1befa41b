"""What all runs of one submission share: code, versions, nodes, and the deployment of each result's tests."""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.endpoints_results import SUMMARY
from dynamo_mlperf.load.logs import DETAIL
from dynamo_mlperf.process.checkout import DIRTY
from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.records import ENDPOINTS, PERFORMANCE
from dynamo_mlperf.submission.twice import used_twice
from dynamo_mlperf.topology.document import flat
from dynamo_mlperf.topology.spec import parse_topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from dynamo_mlperf.submission.records import Run
    from dynamo_mlperf.submission.results import Result

_SHOWN = 5
_OURS = ("dynamo_mlperf", "commit")
_OF_THE_TEST = frozenset(
    {"measure", "search", "sweep", "hold", "reduced", "timeouts", "name", "site", "schema", "schema_version"}
)
"""Keys of a topology file that say what is measured, not how it is served; of the site the versions have the digest."""


def runs_of(results: Sequence[Result]) -> list[Run]:
    """Every run of these results, each once."""
    return list({run.root: run for result in results for run in result.runs}.values())


def shared_findings(results: Sequence[Result], *, rehearsal: bool) -> list[Finding]:
    """Where runs differ that must not, and code that nobody else can have."""
    runs = runs_of(results)
    findings = [
        *_versions(runs),
        *(finding for result in results for finding in _deployment(result)),
        *used_twice(path for result in results for path in _own_evidence(result)),
    ]
    if not rehearsal:
        findings += [
            Finding(
                run.name, "commit of dynamo_mlperf", "a commit that others can have", run.commit, "commit, run again"
            )
            for run in runs
            if run.commit.endswith(DIRTY)
        ]
    return findings


def _own_evidence(result: Result) -> Iterator[Path]:
    """Of each test the file that no two tests have in common."""
    for record in result.tests.values():
        path = record.directory / (DETAIL if record.client != ENDPOINTS else SUMMARY)
        if path.is_file() and (record.client != ENDPOINTS or record.name == PERFORMANCE):
            yield path


def _versions(runs: Sequence[Run]) -> list[Finding]:
    """One commit and one set of versions for all, the first run's; only what both have (a client, say) can differ."""
    first, *others = runs
    findings = []
    for run in others:
        keys = {*_OURS, *(first.versions.keys() & run.versions.keys())}
        differ = [key for key in keys if first.versions.get(key) != run.versions.get(key)]
        if not differ:
            continue
        shown = [
            f"{key} {_version(run, key)} ({_version(first, key)} there)"
            for key in sorted(differ, key=lambda key: (key not in _OURS, key))[:_SHOWN]
        ]
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        action = "run all of them with one environment, or package them as systems of their own"
        got = f"{', '.join(shown)}{more}"
        findings.append(Finding(run.name, "commit and versions", f"those of {first.name}", got, action))
    return findings


def _version(run: Run, key: str) -> str:
    return str(run.versions.get(key) or "none")


def _deployment(result: Result) -> list[Finding]:
    """A result's tests ran on one deployment: the same file but for what it measures."""
    first, *others = result.runs
    findings = []
    for run in others:
        mine, theirs = _served(first), _served(run)
        differ = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        if differ:
            got = "; ".join(f"{key}: {_shown(theirs, key)}, not {_shown(mine, key)}" for key in differ[:_SHOWN])
            action = "run performance, accuracy and compliance by one topology file"
            findings.append(Finding(run.name, f"deployment of {result.name}", f"that of {first.name}", got, action))
    return findings


def _served(run: Run) -> dict[str, Any]:
    """How a run was served, as flat names and values: two files may say the same of it in other words."""
    if not run.topology:
        return {f"endpoint {key}": value for key, value in run.endpoint.items()}
    try:
        value = parse_topology(run.topology_text).model_dump(mode="json")
        stage = value["model"]["weights"]["stage"]
        value["model"]["weights"]["stage"] = stage and normpath(stage)
    except ConfigError:  # a file of another release: as it was written
        value = run.topology
    return dict(flat("", {key: item for key, item in value.items() if key not in _OF_THE_TEST}))


def _shown(served: dict[str, Any], key: str) -> str:
    return "left out" if served.get(key) is None else repr(served[key])

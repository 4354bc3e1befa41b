"""A run directory as frozen values: whatever is there, and the names of what is not.

Every file may be missing (the run failed early) or cut short (the run was killed): a report shows what there is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, MeasureError, SetupError
from dynamo_mlperf.files import RunPaths, shell_word
from dynamo_mlperf.load.endpoints_run import RECORD, REPORT_DIR
from dynamo_mlperf.load.queries import Queries, read_queries
from dynamo_mlperf.report.layout import Layout, read_layout
from dynamo_mlperf.report.run_files import Reader, is_there
from dynamo_mlperf.report.timeline import Timeline, build_timeline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MARKS = ("topology.yaml", "plan.json", "events.jsonl", "verdict.json")
"""A directory that holds none of these is no run directory."""
_MOST_QUERIES_BYTES = 1_000_000_000
"""Ten million queries and more."""


@dataclass(frozen=True)
class Command:
    """One process as it was started."""

    process: str
    node: str
    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    log: str


@dataclass(frozen=True, eq=False)
class RunData:
    """Everything that a report shows, as read from one run directory.

    Attributes:
        paths: Where the pieces lie.
        verdict: `verdict.json`; None while a run has not ended.
        topology: The topology file's text, None where missing.
        laid_over: What the command line has laid over the topology file, by top-level key.
        held_by: The run whose held engines served, by its name; empty where they were the run's own.
        layout: Nodes, workers and idle GPUs of the plan, None where there is no plan.
        versions: Names and versions.
        timeline: Phases and processes.
        commands: Processes as started.
        canary: What the KV canary found, empty where it did not run.
        transfer: Evidence of KV transfer, None where nothing was counted.
        counters: Counter differences per worker.
        client: The load client's own account, empty where there is none.
        queries: The client's record of each query, None where there is none.
        missing: What the run should have left and did not, as file names.
        damaged: What could not be read as it should, in words.
    """

    paths: RunPaths
    verdict: Mapping[str, Any] | None
    topology: str | None
    laid_over: Mapping[str, Any]
    held_by: str
    layout: Layout | None
    versions: Mapping[str, Any]
    timeline: Timeline
    commands: tuple[Command, ...]
    canary: Mapping[str, Any]
    transfer: Mapping[str, Any] | None
    counters: Mapping[str, Mapping[str, Any]]
    client: Mapping[str, Any]
    queries: Queries | None
    missing: tuple[str, ...]
    damaged: tuple[str, ...]


def read_run(run_dir: Path) -> RunData:
    """Read what `run_dir` holds.

    Raises:
        ConfigError: `run_dir` is no directory, or holds nothing that a run leaves.
        SetupError: It cannot be looked into.
    """
    _refuse_other_directories(run_dir)
    paths, reader = RunPaths(run_dir), Reader()
    verdict = reader.object(paths.verdict, "verdict.json")
    topology = reader.text(paths.topology, "topology.yaml")
    plan = reader.object(paths.plan, "plan.json")
    versions = reader.object(paths.versions, "versions.json")
    events = reader.lines(paths.events, "events.jsonl")
    commands = reader.lines(paths.commands, "commands.jsonl")
    evidence = reader.object(paths.evidence, "evidence.json") or {}
    begin = next((one for one in events if one.get("event") == "job_begin"), {})
    load = _client_directory(paths)
    client = reader.object(load / "client.json", f"{load.name}/client.json")
    return RunData(
        paths=paths,
        verdict=verdict,
        topology=topology,
        laid_over=as_mapping(begin.get("laid_over")),
        held_by=PurePosixPath(str(begin.get("held_by") or "")).name,
        layout=read_layout(plan, topology or "") if plan is not None else None,
        versions=versions or {},
        timeline=build_timeline(events),
        commands=tuple(_command(line) for line in commands),
        canary=as_mapping(evidence.get("canary")),
        transfer=as_mapping((verdict or {}).get("disaggregation")) or as_mapping(evidence.get("transfer")) or None,
        counters={name: as_mapping(value) for name, value in as_mapping(evidence.get("workers")).items()},
        client={**as_mapping((verdict or {}).get("client")), **(client or {})},
        queries=_queries(load, reader),
        missing=tuple(reader.missing),
        damaged=tuple(reader.damaged),
    )


def as_mapping(value: object) -> dict[str, Any]:
    """`value` where it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """`value` where it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def _refuse_other_directories(run_dir: Path) -> None:
    if not os.path.isdir(run_dir):  # noqa: PTH112 - Path.is_dir raises where a folder cannot be read
        raise ConfigError(
            f"{run_dir} is not a directory", "name a directory that `dynamo-mlperf run` made, or its id under runs/"
        )
    if not any(is_there(run_dir / mark) for mark in _MARKS):
        try:
            (run_dir / _MARKS[0]).stat()
        except PermissionError as error:
            raise SetupError(
                f"{run_dir} cannot be read: {error.strerror}", f"chmod u+rx {shell_word(run_dir)}, as its owner"
            ) from error
        except OSError:
            pass
        raise ConfigError(
            f"{run_dir} is no run directory: it lacks all of {', '.join(_MARKS)}",
            "name a directory that `dynamo-mlperf run` made, or its id under runs/",
        )


def _client_directory(paths: RunPaths) -> Path:
    """Where the load client wrote: LoadGen's directory unless endpoints made the run."""
    return paths.root / REPORT_DIR if is_there(paths.root / RECORD) else paths.load


def _queries(load: Path, reader: Reader) -> Queries | None:
    path = load / "queries.csv"
    name = f"{load.name}/queries.csv"
    if not reader.finds(path, name):
        return None
    if path.stat().st_size > _MOST_QUERIES_BYTES:
        reader.damaged.append(f"{name} is longer than {_MOST_QUERIES_BYTES // 1_000_000} MB")
        return None
    try:
        return read_queries(path)
    except MeasureError as error:
        reader.damaged.append(error.what)
        return None


def _command(line: Mapping[str, Any]) -> Command:
    return Command(
        process=str(line.get("process", "")),
        node=str(line.get("node", "")),
        host=str(line.get("host", "")),
        argv=tuple(str(part) for part in as_list(line.get("argv"))),
        env={str(name): str(value) for name, value in as_mapping(line.get("env")).items()},
        log=str(line.get("log", "")),
    )

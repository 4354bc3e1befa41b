"""What a run that holds its engines has on record of them, and each measurement through them records as well."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import RunPaths, open_regular, read_bounded, read_json_lines
from dynamo_mlperf.job.held import called

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.job.deployment import Deployment

_ANEW = "start engines anew, and measure through those: `dynamo-mlperf run FILE --hold`"
_SHOWN = 3
_OF_NODES = ("check-*.json", "node-*.jsonl")
"""Logs that say what the nodes are made of and how they were, and that belong to every run on them."""


@dataclass(frozen=True)
class HolderRecords:
    """What the holder has on record of what serves, and every measurement through it records as well.

    Attributes:
        binding: The node of each position, as in `plan.json`.
        versions: `versions.json`.
        commands: How store, frontends and engines were started; not its own load client.
    """

    binding: list[dict[str, Any]]
    versions: dict[str, str]
    commands: list[dict[str, Any]]

    @staticmethod
    def read(paths: RunPaths, deployment: Deployment) -> HolderRecords:
        """Read them.

        Raises:
            SetupError: One is gone, or no longer as the holder wrote it.
        """
        processes = {process.name for process in deployment.endpoints.processes}
        serving = {"etcd", *(f"frontend-{one.index}" for one in deployment.endpoints.plan.frontends), *processes}
        try:
            binding = json.loads(read_bounded(paths.plan))["binding"]
            versions = dict(json.loads(read_bounded(paths.versions)))
            lines = read_json_lines(paths.commands)
            commands = [line for line in lines if _process_of(line) in serving]
            missing = processes - set(map(_process_of, commands))
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
            what = f"plan.json, versions.json or commands.jsonl of {called(paths.root)} is damaged: {problem!r:.120}"
            raise SetupError(what, _ANEW) from None
        if missing:
            what = f"{paths.commands} does not say any more how {', '.join(sorted(missing))} was started"
            raise SetupError(what, _ANEW)
        return HolderRecords(binding, versions, commands)

    def versions_with(self, now: Mapping[str, str]) -> dict[str, str]:
        """What serves has the versions that it was started with; what is new, such as another load client's, is added.

        Raises:
            SetupError: The load client, which starts anew, would be of another version than what is on record.
        """
        other = {name: then for name, then in self.versions.items() if now.get(name, then) != then}
        other.pop("site_file", None)  # its values are compared, and its name may be another
        if other:
            told = ", ".join(f"{name} {then} there, {now[name]} now" for name, then in list(other.items())[:_SHOWN])
            raise SetupError(f"versions have changed since the engines were started: {told}", _ANEW)
        return {**now, **self.versions}


class LogSlices:
    """What store, frontends and engines write during one measurement: the end of the holder's logs of them.

    Args:
        paths: The holder's run directory.
        records: Its records; they name the processes.
    """

    def __init__(self, paths: RunPaths, records: HolderRecords) -> None:
        self._holder, self._names = paths, {_process_of(line) for line in records.commands}
        self._from = {path.name: path.stat().st_size for path in self._found()}

    def _found(self) -> list[Path]:
        return [path for path in self._holder.logs.glob("*.log") if path.stem.partition(".")[0] in self._names]

    def copy(self, paths: RunPaths) -> None:
        """Copy what has come since then into the logs of another run, and the nodes' records whole; its own logs stay.

        Raises:
            OSError: There is no room for it, or a log is gone.
        """
        for path in self._found():
            place = paths.logs / path.name
            if not place.exists():
                with open_regular(path) as source, place.open("wb") as out:
                    source.seek(self._from.get(path.name, 0))
                    shutil.copyfileobj(source, out)
        copy_node_records(self._holder, paths)


def copy_node_records(holder: RunPaths, paths: RunPaths) -> None:
    """Copy what the nodes' agents have recorded so far; they go on, and no record of a run that has ended changes.

    Raises:
        OSError: There is no room for it, or a log is gone.
    """
    for path in (path for pattern in _OF_NODES for path in holder.logs.glob(pattern)):
        shutil.copyfile(path, paths.logs / path.name)


def _process_of(line: Mapping[str, Any]) -> str:
    """The process that a command line is of: `decode-0` of `decode-0.again-1` too."""
    return str(line["process"]).partition(".")[0]

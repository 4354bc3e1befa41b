"""A sweep spread over several allocations: one job per split, a folder that says how each stands, one summary.

```
topology.yaml       the file as it was
points.json         what was sent: split, job, run directory
points/4P8D.yaml    the split's own topology file
points/4P8D/        its run directory (4P8D.2 for the second attempt, which resumes the first)
sweep/summary.json  as of a sweep in one job
```
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import RunPaths, read_bounded, read_text, write_atomic, write_json
from dynamo_mlperf.job.redoing import refuse_changed, sought
from dynamo_mlperf.job.split_record import SPLIT_FILE, read_split, result_of, split_changes
from dynamo_mlperf.job.sweep_records import POINTS_DIR, SUMMARY_FILE, SWEEP_DIR, SweepRecords
from dynamo_mlperf.record import read_verdict
from dynamo_mlperf.topology.one_split import one_split_text
from dynamo_mlperf.tuning.sweep import FAILED, SweepState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.topology.spec import Topology

POINTS_FILE, _LOCK = "points.json", ".lock"
_SCHEMA = 1


@dataclass(frozen=True)
class SentPoint:
    """One job of a parallel sweep.

    Attributes:
        split: Its split.
        job_id: As squeue shows it: `17_3`.
        run_dir: Name of its run directory below `points/`.
    """

    split: str
    job_id: str
    run_dir: str


class ParallelSweep:
    """The folder of a parallel sweep; `logs` below it is submitit's, with what each job printed.

    Args:
        root: The folder; made if missing.
        file: The topology file.
        topology: Its content, with the `sweep:` that holds.
        splits: Its splits.
        redo: Whether splits that were found with other rates or budgets are measured again.

    Raises:
        ConfigError: The folder holds the sweep of another file, is damaged, or has splits found with other settings.
    """

    def __init__(
        self, root: Path, file: Path, topology: Topology, splits: Sequence[RoleSplit], *, redo: bool = False
    ) -> None:
        self.root, self._splits, self._topology = root, splits, topology
        self._text = file.read_text()
        self._points, self.logs = root / POINTS_DIR, root / "submitit"
        self._points.mkdir(parents=True, exist_ok=True)
        known = root / "topology.yaml"
        if known.exists() and read_text(known) != self._text:
            raise ConfigError(f"{root} is the sweep of another file", f"use {known}, or begin anew without --resume")
        write_atomic(known, self._text)
        self.sent = self._read_sent()
        self._sought = sought(topology)
        if not redo:
            self._refuse_changed()

    def _refuse_changed(self) -> None:
        newest = {one.name: next(self._records(one), None) for one in self._splits}
        found = {name: split_changes(known, self._sought) for name, known in newest.items() if known is not None}
        refuse_changed(found, self.root)

    def _read_sent(self) -> list[SentPoint]:
        path = self.root / POINTS_FILE
        if not path.exists():
            return []
        try:
            told = json.loads(read_bounded(path))["sent"]
            return [SentPoint(str(one["split"]), str(one["job_id"]), _name(one["run_dir"])) for one in told]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise ConfigError(f"{path} is not as a sweep wrote it: {problem!r:.80}", "begin a new sweep") from problem

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one process at a time decide what is sent: two would send each job twice, and forget one of them.

        Raises:
            ConfigError: Another one is at it.
        """
        with (self.root / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as problem:
                what = f"another process sends jobs of {self.root} now"
                raise ConfigError(what, "wait until it has, then the same command again") from problem
            except OSError:
                pass  # a file system without locks: nobody can be kept out
            self.sent = self._read_sent()
            yield

    def open_splits(self, busy: Collection[str]) -> list[RoleSplit]:
        """Splits that are neither measured nor with a job that waits or runs (`busy`, by job id)."""
        under_way = {point.split for point in self.sent if point.job_id in busy}
        return [one for one in self._splits if one.name not in under_way and self._is_open(one)]

    def _is_open(self, split: RoleSplit) -> bool:
        """Whether a split was not measured; one that failed is tried again."""
        known = self._measured(split)
        return known is None or known["kind"] == FAILED

    def argv_of(self, split: RoleSplit) -> tuple[list[str], str]:
        """What the split's job becomes, and the name of its run directory."""
        file = self._points / f"{split.name}.yaml"
        write_atomic(file, one_split_text(self._text, self._topology, split))
        earlier = [point.run_dir for point in self.sent if point.split == split.name]
        name = split.name if not earlier else f"{split.name}.{len(earlier) + 1}"
        begun = [one for one in earlier if (self._points / one / SWEEP_DIR).is_dir()]
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", "job", str(file), "--run-dir", str(self._points / name)]
        # What was found with other settings is to be redone here, or this folder would have been refused.
        return argv + (["--resume", str(self._points / begun[-1]), "--redo"] if begun else []), name

    def note(self, points: Sequence[SentPoint]) -> None:
        """Record jobs that Slurm has taken."""
        self.sent += points
        write_json(self.root / POINTS_FILE, {"schema": _SCHEMA, "sent": [asdict(point) for point in self.sent]})

    def _runs(self, split: RoleSplit) -> list[Path]:
        return [self._points / point.run_dir for point in self.sent if point.split == split.name]

    def _records(self, split: RoleSplit) -> Iterator[dict[str, Any]]:
        """A split's records, newest first; its run directory's folder has the name that it has in its own file."""
        for run in reversed(self._runs(split)):
            for path in sorted(run.glob(f"{SWEEP_DIR}/*/{SPLIT_FILE}"))[:1]:
                yield {**read_split(path), "split": split.name, "run_dir": str(run)}

    def _measured(self, split: RoleSplit) -> dict[str, Any] | None:
        """The newest record of a split that was found with the settings of now."""
        return next((one for one in self._records(split) if not split_changes(one, self._sought)), None)

    def write_summary(self, facts: Mapping[str, Any], busy: Collection[str]) -> dict[str, Any]:
        """Write and return `sweep/summary.json` as things stand."""
        found = {one.name: known for one in self._splits if (known := self._measured(one)) is not None}
        results = [result_of(found[one.name], one) for one in self._splits if one.name in found]
        best = SweepState(tuple(self._splits), tuple(results)).best
        left_out = {one.name: self._why(one, busy) for one in self._splits if one.name not in found}
        records = SweepRecords(self.root / SWEEP_DIR, {**facts, "order": [one.name for one in self._splits]})
        records.root.mkdir(exist_ok=True)
        records.splits = list(found.values())
        state = "running" if any(point.job_id in busy for point in self.sent) else "stopped" if left_out else "finished"
        records.write_summary(state=state, pruned={}, left_out=left_out, winner=best.split.name if best else None)
        value: dict[str, Any] = json.loads(read_bounded(records.root / SUMMARY_FILE))
        return value

    def _why(self, split: RoleSplit, busy: Collection[str]) -> str:
        """Why a split has no record."""
        points = [point for point in self.sent if point.split == split.name]
        if not points:
            return "not sent"
        last = points[-1]
        if last.job_id in busy:
            return f"job {last.job_id} waits or runs"
        verdict = read_verdict(RunPaths(self._points / last.run_dir))
        if verdict and verdict["reasons"]:
            return f"job {last.job_id}: {verdict['reasons'][0]['got']}"
        log = self.logs / f"{last.job_id}_0_log.out"  # as submitit calls it
        where = f"read {log}" if log.exists() else f"it wrote no {log}; its node has to see this folder"
        return f"job {last.job_id}: ended without a record; {where}"


def _name(text: object) -> str:
    """A run directory's name as `argv_of` makes it.

    Raises:
        ValueError: It is something else, a path perhaps.
    """
    if not isinstance(text, str) or not re.fullmatch(r"[0-9A-Za-z]+(\.[0-9]+)?", text):
        raise ValueError(f"{text!r:.40} is no run directory's name")
    return text

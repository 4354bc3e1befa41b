"""What a sweep leaves on disk: one folder per split, finished by its `split.json`, and `summary.json` over all.

```
sweep/5P6D/      plan.json, topology.yaml, evidence.json (canary, warm-up), pressure.jsonl, the search's or the runs'
                 own records, and split.json once the split is measured
sweep/summary.json
```
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_json, write_json
from dynamo_mlperf.job.confirmed import damage_of
from dynamo_mlperf.job.pressure import PRESSURE_FILE
from dynamo_mlperf.job.resuming import BEGIN_ANEW, differences, link_tree
from dynamo_mlperf.job.split_record import SPLIT_FILE, finished_split, is_rate, read_object
from dynamo_mlperf.tuning.records import SETTINGS
from dynamo_mlperf.tuning.sweep import gpus_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.job.transition import Transition
    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.tuning.bottleneck import Bottleneck

SWEEP_DIR = "sweep"
SUMMARY_FILE = "summary.json"
IDENTITY_FILE = "identity.json"
POINTS_DIR = "points"
"""In the folder of a parallel sweep, which is no run directory: where those of its jobs lie."""
_SCHEMA = 1


@dataclass(frozen=True)
class Measured:
    """How one split did.

    Attributes:
        rate_qps: The highest rate at which a full-length run was VALID; None where none was.
        ceiling_qps: A rate above which it does not hold; None where that is not known.
        located: Whether nothing much higher would hold.
        binding: The constraint that is broken first above it.
        kind: `answer`, or why there is none: a search's word, `none of the rates` or `failed`.
        reason: The same in a sentence.
        confirmed: Folder of the full-length VALID run, below the split's; None without one.
        target_qps: What that run was asked for: the rate, but in Offline, where the rate is what it completed.
        engine_s: Seconds of the engines that measuring took.
        bottleneck: The role that limits.
        within: How far above the rate the highest may be, as a share, with probability 0.9; None where no search says.
    """

    rate_qps: float | None
    ceiling_qps: float | None
    located: bool
    binding: str | None
    kind: str
    reason: str
    confirmed: str | None
    target_qps: float | None
    engine_s: float
    bottleneck: Bottleneck | None = None
    within: float | None = None


@dataclass
class SweepRecords:
    """The folder `sweep/` of a run.

    Attributes:
        root: The folder.
        facts: Name, benchmark, scenario and class, for the summary.
        splits: `split.json` of those that are measured, in the order of time.
        sought: What the splits' answers depend on beside what is measured.
    """

    root: Path
    facts: Mapping[str, Any]
    splits: list[dict[str, Any]] = field(default_factory=list)
    sought: Mapping[str, Any] = field(default_factory=dict)

    def folder(self, split: RoleSplit) -> Path:
        """The split's folder; its name is that of a split, letters and digits alone."""
        folder = self.root / split.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def claim(self, split: RoleSplit, identity: Mapping[str, Any]) -> None:
        """Note what is measured there, so that a resumed sweep can tell."""
        write_json(self.folder(split) / IDENTITY_FILE, identity)

    def keep(
        self, split: RoleSplit, found: Measured, transition: Transition | None, predicted_qps: float | None
    ) -> None:
        """Record a split that is measured."""
        gpus = gpus_of(split)
        value = {
            "split": split.name,
            "workers": {count.role: count.workers for count in split.counts},
            "tensor_parallel": {count.role: count.tensor_parallel for count in split.counts},
            "gpus": gpus,
            "rate_qps": found.rate_qps,
            "rate_qps_per_gpu": None if found.rate_qps is None else found.rate_qps / gpus,
            "ceiling_qps": found.ceiling_qps,
            "located": found.located,
            "located_within": found.within,
            "binding_constraint": found.binding,
            "bottleneck": found.bottleneck.as_json() if found.bottleneck else None,
            "kind": found.kind,
            "reason": found.reason,
            "confirmed_in": found.confirmed,
            "target_qps": found.target_qps,
            "predicted_qps": predicted_qps,
            "restarts": len(transition.started) if transition else 0,
            "transition": transition.as_json() if transition else None,
            "engine_seconds": round(found.engine_s, 3),
            "sought": dict(self.sought),
            "resumed": False,
        }
        write_json(self.folder(split) / SPLIT_FILE, value)
        self.splits.append(value)

    def write_summary(
        self, *, state: str, pruned: Mapping[str, str], left_out: Mapping[str, str], winner: str | None
    ) -> None:
        """Write `summary.json` as things stand.

        Args:
            state: `running`, `stopped` or `finished`.
            pruned: Splits that cannot win, with the evidence.
            left_out: Splits that were not measured for another reason.
            winner: The split with the highest rate so far.
        """
        write_json(
            self.root / SUMMARY_FILE,
            {
                "schema": _SCHEMA,
                **self.facts,
                "state": state,
                "winner": winner,
                "splits": self.splits,
                "pruned": [{"split": name, "reason": reason} for name, reason in pruned.items()],
                "not_measured": [{"split": name, "reason": reason} for name, reason in left_out.items()],
                "restarts": sum(split["restarts"] for split in self.splits),
                "engine_seconds": round(sum(split["engine_seconds"] for split in self.splits), 3),
            },
        )

    def whole_probes(self, folder: Path) -> int:
        """How many probes have ended in a split's folder, or runs where rates are given: the others do not count."""
        return len(list(folder.glob("rate-*/verdict.json" if "sweep.rates" in self.sought else "probe-*/record.json")))

    def take_over(
        self, old: Path, splits: Sequence[RoleSplit], identities: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, int]:
        """Take over the splits that an interrupted sweep has measured; one that it was at is left to its search.

        Args:
            old: The earlier run's `sweep/`.
            splits: This sweep's.
            identities: What is measured at each, by split name.

        Returns:
            By split that goes on, how many of its probes or runs had ended.

        Raises:
            ConfigError: A split there was measured of something else, or its record is damaged.
        """
        check_takeover(old, identities)
        begun = {}
        for split in splits:
            there = old / split.name
            known = finished_split(there, self.sought)
            if known is not None:
                link_tree(there, self.folder(split))
                self.splits.append({**known, "split": split.name, "resumed": True})
            elif there.is_dir():
                _take_over_runs(there, self.folder(split))
                begun[split.name] = self.whole_probes(there)
        return {name: count for name, count in begun.items() if count}


def _take_over_runs(old: Path, new: Path) -> None:
    """Of a split that was cut: the runs that ended, and what the engines told. A search takes over its own probes."""
    for folder in run_folders(old):
        known = finished_run(folder)
        if known is not None and not (known["verdict"] == "VALID" and damage_of(folder)):
            link_tree(folder, new / folder.name)
    if (old / PRESSURE_FILE).is_file():
        shutil.copyfile(old / PRESSURE_FILE, new / PRESSURE_FILE)  # no link: it is appended to


def run_folders(directory: Path) -> list[Path]:
    """The folders of full-length runs at given rates in a split's folder."""
    found = sorted(directory.glob("rate-*"))
    return [folder for folder in found if re.fullmatch(r"rate-[0-9]{3,6}", folder.name) and folder.is_dir()]


def run_at(directory: Path, rate: float) -> tuple[Path, dict[str, Any] | None]:
    """The folder of a split's finished run at a rate, with its verdict; else a free one.

    A folder that is there is never measured in again: its files may be links to another run's evidence.
    """
    folders = run_folders(directory)
    for folder in folders:
        if (known := finished_run(folder)) is not None and known["target_qps"] == rate:
            return folder, known
    last = max((int(folder.name.rpartition("-")[2]) for folder in folders), default=0)
    return directory / f"rate-{last + 1:03d}", None


def finished_run(folder: Path) -> dict[str, Any] | None:
    """The verdict of a full-length run that measured; None where it did not end, or its record is damaged."""
    try:
        value: dict[str, Any] = read_json(folder / "verdict.json")
        measured = value["verdict"] in {"VALID", "INVALID"} and is_rate(value["target_qps"])
        limits = value["latency_p99_ms"].values()
        numbers = [one[key] for one in limits for key in ("at_percentile", "over_limit", "over_limit_allowed")]
        numbers += [1.0 / one["limit"] for one in limits]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None
    return value if measured and all(isinstance(number, int | float) for number in numbers) else None


def check_takeover(old: Path, identities: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to resume a sweep of something else.

    Raises:
        ConfigError: There is none, or it is a parallel one, or one of its splits was measured with other settings.
    """
    if (old.parent / POINTS_DIR).is_dir():
        raise ConfigError(f"{old.parent} is the folder of a parallel sweep", "go on with it by --parallel N, too")
    if not old.is_dir():
        raise ConfigError(f"{old} is no sweep", f"name the run directory of an interrupted sweep; {BEGIN_ANEW}")
    for name, wanted in identities.items():
        folder = old / name
        anew = f"remove {folder}; its split is then measured anew"
        told_by = [path for path in (folder / IDENTITY_FILE, folder / SETTINGS) if path.exists()]
        if not told_by and ((folder / SPLIT_FILE).exists() or run_folders(folder)):
            what = f"{folder / IDENTITY_FILE} is not there: nobody can tell what was measured beside it"
            raise ConfigError(what, anew)
        for path in told_by:
            if told := differences(read_object(path, anew), wanted):
                raise ConfigError(
                    f"{path.parent} was measured with something else: {told}",
                    "sweep anew, or with the same file; or remove that folder, and its split is measured anew",
                )

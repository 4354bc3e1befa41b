"""The record directory of a search: settings, and one folder per probe. An interrupted search resumes from it.

```
search.json            settings and command; another search is refused
probe-001/             stream.jsonl and probe.log of the program, record.json once it has ended,
                       or fault.json where it did not measure, or what it measured was failing
answer.json            once there is one
```
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import MOST_LOG_BYTES, RepeatedKeyError, read_json, read_text, write_json
from dynamo_mlperf.tuning.probe_command import STREAM
from dynamo_mlperf.tuning.probes import Final, Probe, ProbeRecord, Sample
from dynamo_mlperf.tuning.stream import ProbeFault, check_order, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.tuning.probes import History

_RECORD, _FAULT, _PLAN = "record.json", "fault.json", "plan.json"
_DISTRUSTED = "distrusted.json"
_STILL_S, _OLDEST_S = 600.0, 7200.0
"""A search that lay still for less is as if it had gone on; and from this age on all is as old."""
SETTINGS, ANSWER = "search.json", "answer.json"
LOCK = ".lock"
"""Held by the search that uses the directory."""


class RecordDirectory:
    """One search on disk; one process at a time.

    Args:
        root: The directory; made if missing.
        settings: All that makes two searches the same one.

    Raises:
        ConfigError: It holds another search, or another process uses it, or it is no record directory.
    """

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.root = root
        self._made: list[Path] = []
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as problem:
            raise ConfigError(
                f"the record directory {root} cannot be used: {problem.strerror}", "name another --record-dir"
            ) from problem
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            self.close()
            raise ConfigError(
                f"another search is using {root}", "wait for it to end, or name another --record-dir"
            ) from problem
        except OSError:
            pass  # a file system without locks: nobody can be kept out
        try:
            self._check(settings)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others use the directory."""
        os.close(self._lock)

    def _check(self, settings: dict[str, Any]) -> None:
        path = self.root / SETTINGS
        if not path.exists():
            if any(self.root.glob("probe-*")):
                raise ConfigError(f"{self.root} holds probes but no {SETTINGS}", "name an empty --record-dir")
            _write(path, settings)
            return
        known = _load(path)
        differ = [key for key in sorted({*known, *settings}) if known.get(key) != settings.get(key)]
        if differ:
            told = ", ".join(f"{key} {known.get(key)!r} there, {settings.get(key)!r} now" for key in differ)
            raise ConfigError(
                f"{self.root} holds a search with other settings: {told}",
                "repeat it with the same settings, or name another --record-dir",
            )

    def history(self) -> History:
        """The probes that count, in order; one that was cut off counts as far as its stream was written."""
        records: list[ProbeRecord] = []
        for folder in sorted(self._folders()):
            if (folder / _RECORD).exists():
                records.append(_read(folder / _RECORD, _from_json))
            elif not (folder / _FAULT).exists():
                cut = _recover(folder, sum(record.cost_s for record in records))
                if cut is None:
                    _write(folder / _FAULT, {"fault": "cut off before its first line"})
                else:
                    self.keep(folder, cut)
                    records.append(cut)
        return self._aged(records)

    def _aged(self, records: list[ProbeRecord]) -> History:
        """The records as old as they are by the clock, where a search lay still for a while before it was resumed.

        What was seen long ago tells less: systems drift. Two hours count as any longer time does.
        """
        now_s, now_t = sum(record.cost_s for record in records), time.time()
        folders = [folder for folder in sorted(self._folders()) if (folder / _RECORD).exists()]
        found = []
        for folder, record in zip(folders, records, strict=True):
            age_s = now_s - record.begin_s - record.cost_s
            written = (folder / name for name in (_RECORD, STREAM))  # a record may be made of its stream much later
            real_s = min(now_t - min(path.stat().st_mtime for path in written if path.exists()), _OLDEST_S)
            rested_s = real_s - age_s
            found.append(replace(record, begin_s=record.begin_s - rested_s) if rested_s > _STILL_S else record)
        return tuple(found)

    def _folders(self) -> list[Path]:
        """The folders of probes; what else a person has put there is left alone."""
        found = self.root.glob("probe-*")
        return [folder for folder in found if re.fullmatch(r"probe-[0-9]+", folder.name) and folder.is_dir()]

    def folder_of(self, index: int) -> Path:
        """The folder of a probe of the history, by its index there."""
        counted = [folder for folder in sorted(self._folders()) if (folder / _RECORD).exists()]
        return counted[index]

    def new_folder(self, probe: Probe) -> Path:
        """The folder of the next probe, with its plan."""
        taken = [int(folder.name.rpartition("-")[2]) for folder in self._folders()]
        folder = self.root / f"probe-{max(taken, default=0) + 1:03d}"
        try:
            folder.mkdir()
        except OSError as problem:
            raise _unwritten(folder, problem) from problem
        _write(folder / _PLAN, asdict(probe))
        self._made.append(folder)
        return folder

    def keep(self, folder: Path, record: ProbeRecord) -> None:
        """Record a probe that has ended."""
        _write(folder / _RECORD, _to_json(record))

    def keep_fault(self, folder: Path, fault: str) -> None:
        """Record that a probe did not measure."""
        _write(folder / _FAULT, {"fault": fault})

    def distrust(self, folder: Path, why: str) -> None:
        """Let a probe count for nothing during which what served died: nobody knows since when it had been failing.

        Before a probe's first line all that serves has answered. So where there is none, the probe before it is in
        doubt, too.
        """
        for one in [folder] if (folder / STREAM).exists() else self._made[-2:]:
            if (one / _RECORD).exists():
                (one / _RECORD).rename(one / _DISTRUSTED)
            self.keep_fault(one, why)

    def keep_answer(self, answer: dict[str, Any]) -> None:
        """Record the end of the search."""
        _write(self.root / ANSWER, answer)


def _load(path: Path, action: str = "name another --record-dir") -> dict[str, Any]:
    try:
        value = read_json(path)
    except RepeatedKeyError as problem:
        raise ConfigError(f"{path} holds the key {problem.key} twice", action) from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} is no JSON: {problem}", action) from problem
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}", action) from problem
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no JSON object", action)
    return value


def _read(path: Path, made: Callable[[dict[str, Any]], ProbeRecord | Probe]) -> Any:  # noqa: ANN401 - what is made
    """What a file of a probe says; one that was edited or damaged is no ground for an answer.

    Raises:
        ConfigError: It is not what a search wrote.
    """
    try:
        found = made(_load(path, _without(path)))
        if not (0 < found.rate < math.inf and 0 < found.planned_s < math.inf):
            raise ValueError(f"a rate of {found.rate} for {found.planned_s} s")  # noqa: TRY301 - as its neighbours are
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ConfigError(f"{path} is not as a search wrote it: {problem!r:.120}", _without(path)) from problem
    return found


def _without(path: Path) -> str:
    return f"remove {path.parent}: the search then goes on without that probe"


def check_probes(root: Path) -> None:
    """Refuse the records of a search whose probes cannot be read, without changing anything there.

    Raises:
        ConfigError: Names the first that is damaged.
    """
    for folder in sorted(root.glob("probe-*")):
        if (folder / _RECORD).exists():
            _read(folder / _RECORD, _from_json)
        elif not (folder / _FAULT).exists():
            _recover(folder, 0.0)


def _write(path: Path, value: Any) -> None:  # noqa: ANN401 - anything that JSON can carry
    try:
        write_json(path, value)
    except OSError as problem:
        raise _unwritten(path, problem) from problem


def _unwritten(path: Path, problem: OSError) -> SetupError:
    return SetupError(
        f"{path} cannot be written: {problem.strerror}", "make room there; the same command then resumes the search"
    )


def _to_json(record: ProbeRecord) -> dict[str, Any]:
    value = asdict(record)
    value["samples"] = [
        [each.t_s, each.issued, each.completed, each.over, each.over_in_flight, each.known_in_flight]
        for each in record.samples
    ]
    return value


def _from_json(value: dict[str, Any]) -> ProbeRecord:
    samples = tuple(Sample(*each) for each in value.pop("samples"))
    final = value.pop("final")
    if final:
        final = Final(**{**final, "reasons": tuple(str(text) for text in final.get("reasons", ()))})
    record = ProbeRecord(**value, samples=samples, final=final or None)
    counts = [count for each in samples for count in (each.t_s, each.issued, each.completed, *each.over.values())]
    counts += [count for each in samples for part in _in_flight(each) for count in part.values()]
    counts += [record.begin_s, record.cost_s]
    counts += [record.final.n, record.final.seconds, *record.final.over.values()] if record.final else []
    if not all(0 <= count < math.inf for count in counts):
        raise ValueError("a count or a time that is none")
    return record


def _in_flight(sample: Sample) -> tuple[dict[str, int], dict[str, int]]:
    return sample.over_in_flight, sample.known_in_flight


def _recover(folder: Path, begin_s: float) -> ProbeRecord | None:
    """The record of a probe whose search was killed: what its stream holds up to the first line that is cut."""
    if not (folder / _PLAN).exists() or not (folder / STREAM).exists():
        return None
    plan: Probe = _read(folder / _PLAN, lambda value: Probe(**value))
    samples: list[Sample] = []
    try:
        text = read_text(folder / STREAM, MOST_LOG_BYTES, errors="replace")
    except OSError as problem:
        raise ConfigError(f"{folder / STREAM}: {problem.strerror}", _without(folder / STREAM)) from problem
    except ValueError as problem:
        raise ConfigError(f"{folder / STREAM} {problem}", _without(folder / STREAM)) from problem
    for number, line in enumerate(text.split("\n"), 1):
        try:
            value = parse_line(line, number)
            if isinstance(value, Sample):
                check_order(samples[-1] if samples else None, value)
                samples.append(value)
        except ProbeFault:
            break
    if not samples:
        return None
    return ProbeRecord(
        plan.rate,
        plan.planned_s,
        tuple(samples),
        "interrupted",
        None,
        begin_s,
        samples[-1].t_s,
        plan.purpose,
    )

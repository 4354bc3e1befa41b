"""Where the truth of a test lies that is scored again: what the caller named, or else what its run names.

What a run names may be on another machine: that it is not there is said, no more. What the caller named and cannot
be used is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.accuracy.scoring import truth_file
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import RunPaths, digest_file
from dynamo_mlperf.load.endpoints_run import RECORD as ENDPOINTS_RECORD
from dynamo_mlperf.load.endpoints_run import read_record as read_endpoints
from dynamo_mlperf.submission.records import ACCURACY, ENDPOINT, ENDPOINTS
from dynamo_mlperf.topology.measuring import SCORED_BY_ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dynamo_mlperf.submission.records import TestRecord

SCORED = (ACCURACY, "TEST07")
"""Tests whose answers are held against the truth."""
_FOLDERS = {ACCURACY: "accuracy", "TEST07": "compliance"}
"""Below the data set, where a test has one of its own."""
_AGAIN = "copy the run directory again"
_SHOWN = 200


@dataclass(frozen=True)
class Rescoring:
    """How scores are made again.

    Attributes:
        data_sets: Directory of a benchmark's data set, where it is not the one that the run names.
        run_code: Whether code that a model wrote is run.
        wanted: Whether anything is scored again.
    """

    data_sets: Mapping[str, Path] = field(default_factory=dict)
    run_code: bool = False
    wanted: bool = True


class NamedDataSetError(ConfigError):
    """A data set that the caller named, and that cannot be used."""

    def __init__(self, benchmark_name: str, place: Path, why: str, action: str) -> None:
        super().__init__(f"--data-set {benchmark_name}={_short(place)}: {why}", action)


def check_named(records: Iterable[TestRecord], how: Rescoring) -> None:
    """Refuse data sets that were named for nothing, or that hold no truth, before anything is scored.

    Args:
        records: Every test of the runs.
        how: What was asked for.

    Raises:
        NamedDataSetError: Names the first and what to do.
    """
    if not how.wanted:
        return
    tests = [record for record in records if record.name in SCORED and not own_evaluators(record)]
    for name, place in how.data_sets.items():
        mine = [record for record in tests if record.benchmark == name]
        if not mine:
            known = ", ".join(sorted({record.benchmark for record in tests})) or "nothing"
            why = f"these runs hold no test of {name} that is scored by it; what is scored: {known}"
            raise NamedDataSetError(name, place, why, "leave it out, or name the benchmark that it is of")
        for record in mine:
            _in_named(record, place)


def own_evaluators(record: TestRecord) -> bool:
    """Whether evaluators that endpoints fetches scored a test, so that nothing here can."""
    return record.client == ENDPOINTS and record.benchmark not in SCORED_BY_ENDPOINTS


class DataSetMissingError(ConfigError):
    """The data set that a run names cannot be had from here."""


def data_set_of(record: TestRecord, how: Rescoring) -> Path:
    """Directory of the truth of a test.

    Raises:
        NamedDataSetError: The caller named one that cannot be used.
        DataSetMissingError: The run's own cannot be had from here.
        ConfigError: The run's records cannot be read.
        MeasureError: The same of a run of endpoints.
    """
    given = how.data_sets.get(record.benchmark)
    found = _in_named(record, given) if given is not None else _in_recorded(record)
    if record.client != ENDPOINTS:
        return found
    digest = read_endpoints(record.run.root / ENDPOINTS_RECORD).data_digest
    path = found / truth_file(record.benchmark)
    try:
        why = "" if digest_file(path) == digest else "not the one that ran, by its digest"
    except OSError as problem:
        why = str(problem.strerror)
    if why and given is not None:
        raise NamedDataSetError(record.benchmark, given, why, "name the one that ran, as this user may read it")
    if why:
        raise DataSetMissingError(f"the data set {_short(path.parent)}: {why}")
    return found


def _in_named(record: TestRecord, root: Path) -> Path:
    """Directory of the truth in a data set that the caller named."""
    try:
        found = _inside(record, root)
    except OSError as problem:
        action = "name a directory that this user may read, or leave it out"
        raise NamedDataSetError(record.benchmark, root, str(problem.strerror), action) from problem
    if found is None:
        why, action = f"no {truth_file(record.benchmark)} there", "name what `dynamo-mlperf dataset` made for it"
        raise NamedDataSetError(record.benchmark, root, why, action)
    return found


def _in_recorded(record: TestRecord) -> Path:
    """Directory of the truth in the data set that the run names."""
    root = _recorded(record)
    try:
        found = None if root is None else _inside(record, root)
    except OSError as problem:
        raise DataSetMissingError(f"the data set {_short(root)}: {problem.strerror}") from problem
    if found is None:
        raise DataSetMissingError(f"the data set is not at hand (--data-set {record.benchmark}=DIR)")
    return found


def _recorded(record: TestRecord) -> Path | None:
    """What the run names; None where it names nothing."""
    file, said = record.run.root / ENDPOINT, record.run.endpoint.get("data_set")
    if said is None:
        file, measured = RunPaths(record.run.root).topology, record.run.topology.get("measure")
        if not isinstance(measured, dict | None):
            raise ConfigError(f"{file}: measure is {measured!r:.60}, and has to be a mapping", _AGAIN)
        said = (measured or {}).get("dataset")
    if not isinstance(said, str | None):
        raise ConfigError(f"{file}: the data set is {said!r:.60}, and has to be a text", _AGAIN)
    return Path(said) if said else None


def _inside(record: TestRecord, root: Path) -> Path | None:
    """Where in a data set the truth of a test lies.

    Raises:
        OSError: Whether it is there is not to be seen.
    """
    places = (root / _FOLDERS[record.name], root)
    return next((place for place in places if (place / truth_file(record.benchmark)).is_file()), None)


def _short(path: Path | None) -> str:
    """A path for people: a damaged record may name one of megabytes."""
    return f"{path!s:.{_SHOWN}}"

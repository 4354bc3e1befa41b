"""An interrupted search goes on in a new run directory: the records of the old one are taken over, where they fit.

Probes count again only where they were made of the very same thing: model, roles, flags, data set, rules. The range,
the tolerance and the budget of the search may differ, and so may names, places and deadlines.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import RunPaths, read_json, write_json
from dynamo_mlperf.job.confirmed import check_confirmed_probes, check_finished_split
from dynamo_mlperf.job.redoing import REDO, refuse_changed, search_changes, sought
from dynamo_mlperf.job.wanted_settings import decide_settings
from dynamo_mlperf.job.workload import read_data_set
from dynamo_mlperf.process.machine import controller_of
from dynamo_mlperf.record import read_events
from dynamo_mlperf.slurm.runs import read_run
from dynamo_mlperf.slurm.standing import standings
from dynamo_mlperf.staging.lock import is_locked
from dynamo_mlperf.topology.document import flat
from dynamo_mlperf.tuning.records import ANSWER, LOCK, SETTINGS, check_probes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Topology

SEARCH_DIR = "search"
"""In the run directory: what a search leaves."""
KEPT = "settings.json"
"""In a search's directory: range, tolerance, budget and the rest of what was searched with."""
BEGIN_ANEW = "one that was cut before it measured anything is begun anew, without --resume"
RESUMED = "resumed.json"
"""In a search's directory: which run it goes on from."""
_FREE = frozenset({"name", "site", "search", "sweep", "hold", "timeouts", "schema_version"})
"""Blocks of the file that change nothing of what a probe shows."""
_FREE_MEASURE = frozenset({"target_qps", "dataset", "accuracy", "compliance"})
_FREE_LOAD = frozenset({"target_qps", "request_timeout_s", "max_in_flight"})
_SHOWN = 3


def identity(topology: Topology, load: LoadSettings) -> dict[str, Any]:
    """All that makes two searches the same one, as flat names and values."""
    file = {key: value for key, value in _given(topology).items() if key not in _FREE}
    file["measure"] = {key: value for key, value in file["measure"].items() if key not in _FREE_MEASURE}
    asked = {key: value for key, value in load.to_json().items() if key not in _FREE_LOAD}
    return dict(flat("", {**file, "load": asked}))


def _given(topology: Topology) -> dict[str, Any]:
    """What the file says beyond the defaults: a key that a later version adds makes no old record another search's."""
    given: dict[str, Any] = topology.model_dump(mode="json", exclude_defaults=True)
    return given


def begun_run(run: Path, topology: Topology) -> Path:
    """The run with the records: one that was itself to go on with another and was cut before it did has none yet."""
    part = SEARCH_DIR if topology.sweep is None else "sweep"
    seen: set[Path] = set()
    while run not in seen and not (run / part).is_dir():
        seen.add(run)
        try:
            first = next(iter(read_events(RunPaths(run))), {})
        except (OSError, ValueError):
            break
        run = Path(str(first.get("resumes", run)))
    return run


def refuse_living(run: Path) -> None:
    """Refuse to go on with a run that goes on by itself: what it measures next would be lost, or measured twice.

    Raises:
        ConfigError: Its controller lives, or its job runs.
    """
    (standing,), _unanswered = standings([read_run(run)])
    found = standing.run
    if standing.outcome.word != "RUNNING" or found.finished is not None:
        return
    if found.job_id and found.job_id == os.environ.get("SLURM_JOB_ID") and controller_of(found.run_id) is None:
        return  # this very job: it lives by us
    what = f" as job {found.job_id}" if found.job_id else ""
    raise ConfigError(f"the run in {run} still runs{what}", f"wait for its end, or: dynamo-mlperf cancel {run}")


def check_resume(topology: Topology, base_dir: Path, run: Path, *, redo: bool = False) -> None:
    """Refuse to resume a run whose records do not fit, before anything starts.

    Args:
        topology: The file that goes on with it.
        base_dir: What the file's paths are relative to.
        run: The run directory to be resumed.
        redo: Whether what was found with another range, tolerance, budget or rates is looked for again.

    Raises:
        ConfigError: The file searches nothing, the records are of something else, or answers there were found with
            other settings.
    """
    if not topology.finds_rate:
        raise ConfigError("--resume is for a search or a sweep, and the file has neither", "leave --resume out")
    load = decide_settings(topology, len(read_data_set(topology, base_dir)), base_dir)
    if topology.sweep is None:
        check_same(
            run / SEARCH_DIR, identity(topology, load), search_changes(run / SEARCH_DIR / KEPT, topology), redo=redo
        )
        return
    from dynamo_mlperf.job.split_record import finished_split, split_changes
    from dynamo_mlperf.job.sweep_records import SWEEP_DIR, check_takeover
    from dynamo_mlperf.job.sweep_start import identities_of

    identities = identities_of(topology, load)
    check_takeover(run / SWEEP_DIR, identities)
    for name in identities:
        if is_locked(run / SWEEP_DIR / name / LOCK):
            raise ConfigError(f"the sweep in {run} still runs", "wait for its end, or cancel it")
        check_probes(run / SWEEP_DIR / name)
    finished = {name: finished_split(run / SWEEP_DIR / name) for name in identities}
    for name, known in finished.items():
        if known is None:
            check_confirmed_probes(run / SWEEP_DIR / name)
        else:
            check_finished_split(run / SWEEP_DIR / name, known)
    asked = sought(topology)
    if not redo:
        found = {name: split_changes(value, asked) for name, value in finished.items() if value is not None}
        refuse_changed(found, run / SWEEP_DIR)


def differences(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How what was measured differs from what is wanted, for people; empty where it does not."""
    differ = [name for name in sorted({*known, *wanted}) if known.get(name) != wanted.get(name)]
    told = [f"{name} {known.get(name)!r:.60} there, {wanted.get(name)!r:.60} now" for name in differ[:_SHOWN]]
    more = f", and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    return ", ".join(told) + more


def check_same(old: Path, wanted: Mapping[str, Any], changed: Sequence[str] = (), *, redo: bool = False) -> None:
    """Refuse records of another search before anything starts.

    Args:
        old: A search's directory in the run to be resumed.
        wanted: This search's `identity`.
        changed: How range and tolerance differ from those that it was searched with, for people.
        redo: Whether an answer that was found with others is looked for again.

    Raises:
        ConfigError: They are of another plan, model or settings, there are none, or that search still runs.
    """
    try:
        known = dict(read_json(old / SETTINGS).items())
    except FileNotFoundError:
        raise ConfigError(
            f"{old} holds no search to resume", f"name the run directory of an interrupted search; {BEGIN_ANEW}"
        ) from None
    except (OSError, ValueError, AttributeError, RecursionError) as problem:
        raise ConfigError(f"{old / SETTINGS} cannot be read: {problem}", "start the search anew") from problem
    if told := differences(known, wanted):
        raise ConfigError(f"{old} is a search of something else: {told}", "search anew, or resume with the same file")
    if is_locked(old / LOCK):
        raise ConfigError(f"the search in {old} still runs", "wait for its end, or cancel it")
    check_probes(old)
    check_confirmed_probes(old)
    answer = _answer_of(old)
    if answer is not None and changed and redo:
        return
    if answer is not None and changed:
        told = "; ".join(changed)
        raise ConfigError(
            f"the search in {old} has its answer, {answer:.5g} QPS, found with other settings: {told}", REDO
        )
    if answer is not None:
        raise ConfigError(
            f"the search in {old} has its answer: {answer:.5g} QPS", "there is nothing to resume; search anew"
        )


def _answer_of(old: Path) -> float | None:
    """The answer of a search that needs no more; None while there is none, or a better one may be found."""
    try:
        value = read_json(old / ANSWER)
        rate = float(value["answer_qps"])
        return rate if value["located"] and 0.0 < rate < math.inf else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def adopt(old: Path, new: Path) -> None:
    """Take the probes of an earlier search over, each file as a hard link where the file system allows it.

    Args:
        old: The earlier search's directory; where there is none, nothing happens.
        new: This search's, which holds no probe yet.

    Raises:
        SetupError: They cannot be written.
    """
    if not (old / SETTINGS).is_file():
        return
    try:
        for folder in sorted(old.glob("probe-*")):
            if folder.is_dir() and not (new / folder.name).exists():
                link_tree(folder, new / folder.name)
        shutil.copyfile(old / SETTINGS, new / SETTINGS)
        write_json(new / RESUMED, {"from": str(old)})
    except OSError as problem:
        raise SetupError(
            f"the records in {old} cannot be taken over: {problem.filename}: {problem.strerror}", "make room there"
        ) from problem


def link_tree(source: Path, target: Path) -> None:
    """The same files below `target`: hard links, or copies where the file system has none."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_dir() and not path.is_symlink():
            link_tree(path, target / path.name)
        elif path.is_file():
            link_file(path, target / path.name)


def link_file(source: Path, target: Path) -> None:
    """The same file at `target`, instead of what is there."""
    target.unlink(missing_ok=True)  # not written over: it may be a link to another run's evidence
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

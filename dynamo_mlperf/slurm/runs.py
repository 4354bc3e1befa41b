"""The runs below `runs/`: what their directories say, what Slurm says of their jobs, and what both together mean.

A run that has only been submitted has no directory yet: its record below `runs/.submitted/` stands for it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import MOST_LOG_BYTES, RunPaths, read_bounded, strict_json
from dynamo_mlperf.process.command import AGAIN
from dynamo_mlperf.slurm.submission import Submitted, read_submissions
from dynamo_mlperf.topology.strict import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 120
_NAMED = 5
LIVE_REHEARSAL = "run"
"""The run directory inside what `rehearse --live` makes; that goes by the name of the directory around it."""
_JOB = re.compile(r"[0-9]+(_[0-9]+)?")
_SLURM = re.compile(r"Slurm job ([0-9]+)\b(?:.*, attached as step ([0-9]+\.[0-9]+)$)?")


@dataclass(frozen=True)
class WorkerFacts:
    """One process of a run.

    Attributes:
        name: Its name, as in `logs/`.
        host: The node that it runs on.
        state: `planned`, `starting`, `ready`, `ended` (on its own), or `stopped` (in the phase in which all are ended).
        status: Its exit status once it has ended or was stopped; negative for a signal.
    """

    name: str
    host: str
    state: str
    status: int | None = None


@dataclass(frozen=True)
class HoldFacts:
    """How a run holds its engines.

    Attributes:
        measurements: Those that were made or begun through them, its own included.
        current: The run directory of the last one, until it has ended; empty while none is under way.
        ended: Why it holds them no more; empty while it does.
    """

    measurements: int
    current: str = ""
    ended: str = ""

    def text(self) -> str:
        """How many, for people."""
        return f"{self.measurements} measurement{'' if self.measurements == 1 else 's'}"


@dataclass(frozen=True)
class Run:
    """One run, as far as its directory tells.

    Attributes:
        name: Name of its directory.
        root: Its directory; it may not exist yet.
        job_id: Slurm's id of its job; empty for a run on this machine alone.
        step: The step of its controller where it is attached to a job, as in `17.4`: the job outlives it. Else empty.
        began_t: When it was submitted or began, in seconds since the epoch; 0 when that is not known.
        present: Whether the directory is there.
        phase: The phase that runs, or the last one that did; empty before the first.
        phase_t: When that phase began.
        finished: The exit code that the controller recorded at its end; None before that.
        workers: Planned workers and what has become of them; none where another run holds them.
        progress: The load client's running figures, empty while there are none.
        verdict: The verdict, None while there is none that is whole.
        error: The first error that the controller recorded; empty when there is none.
        submitted: The record of its submission, where it was submitted by `submit`.
        recorded_id: The run's id as its controller recorded it; empty before that.
        held_by: The directory of the run whose held engines it measures through; empty for one with its own.
        hold: How it holds its engines; None where it does not, or not yet.
    """

    name: str
    root: Path
    job_id: str
    began_t: float = 0.0
    present: bool = False
    phase: str = ""
    phase_t: float = 0.0
    finished: int | None = None
    workers: tuple[WorkerFacts, ...] = ()
    progress: Mapping[str, Any] | None = None
    verdict: Mapping[str, Any] | None = None
    error: str = ""
    submitted: Submitted | None = None
    recorded_id: str = ""
    step: str = ""
    held_by: str = ""
    hold: HoldFacts | None = None

    @property
    def run_id(self) -> str:
        """What its controller is known by; with --run-dir the directory has another name."""
        return self.recorded_id or self.name

    @property
    def complete(self) -> bool:
        """Whether it left a whole verdict and its controller came to its own end."""
        return self.verdict is not None and self.finished is not None


def read_run(root: Path, submitted: Submitted | None = None) -> Run:
    """What the run's directory says; a file that is missing or cut short is as if it had not been written."""
    paths = RunPaths(root)
    events = _lines(paths.events)
    begin = next((event for event in events if event.get("event") == "job_begin"), {})
    place = "" if begin.get("held_by") else str(begin.get("place", ""))  # else a person's name for the holder is in it
    found = _SLURM.search(place)
    job_id = found[1] if found else (submitted.job_id if submitted else "")
    phases = [event for event in events if event.get("event") == "phase_begin"]
    end: dict[str, Any] = next((event for event in reversed(events) if event.get("event") == "job_end"), {})
    error = next((str(event.get("what", "")) for event in events if event.get("event") == "error"), "")
    verdict = _object(paths.verdict)
    return Run(
        root.parent.name if is_live_rehearsal(root) else root.name,
        root,
        job_id,
        _seconds(begin.get("t")) or (submitted.submitted_t if submitted else 0.0),
        bool(events),
        str(phases[-1].get("phase", "")) if phases else "",
        _seconds(phases[-1].get("t")) if phases else 0.0,
        end.get("exit_code") if isinstance(end.get("exit_code"), int) else None,
        () if begin.get("held_by") else _workers(_object(paths.plan) or {}, events),
        _progress(paths),
        verdict if verdict and verdict.get("verdict") in ("VALID", "INVALID", "FAILED") else None,
        error.split("\n")[0],
        submitted,
        str(begin.get("run") or ""),
        (found[2] or "") if found else "",
        str(begin.get("held_by") or ""),
        _hold(events),
    )


def _hold(events: Sequence[Mapping[str, Any]]) -> HoldFacts | None:
    found: HoldFacts | None = None
    for event in events:
        kind = event.get("event")
        if kind == "hold_begin":
            found = HoldFacts(1)
        elif found is not None and kind == "held_measurement":
            found = replace(found, measurements=found.measurements + 1, current=str(event.get("run_dir", "")))
        elif found is not None and kind == "held_measurement_end":
            found = replace(found, current="")
        elif found is not None and kind == "hold_end":
            found = replace(found, current="", ended=str(event.get("what", "")) or "ended")
    return found


def is_live_rehearsal(root: Path) -> bool:
    """Whether a run directory is the one inside a directory of `rehearse --live`."""
    return root.name == LIVE_REHEARSAL and (root.parent / "original.yaml").is_file()


def _progress(paths: RunPaths) -> dict[str, Any] | None:
    """The load client's running figures; in a search or a sweep those of its newest probe."""
    probes = [*paths.root.glob("search/probe-*/loadgen"), *paths.root.glob("sweep/*/probe-*/loadgen")]
    newest = max(probes, key=lambda path: path.stat().st_mtime, default=paths.load)
    return _object((paths.load if paths.load.exists() else newest) / "progress.json")


def list_runs(runs: Path) -> list[Run]:
    """All runs below `runs`, submitted ones included, oldest first."""
    submissions = {job.run_dir: job for job in read_submissions(runs).values()}
    found = {}
    inside = (path for path in runs.glob(f"*/{LIVE_REHEARSAL}/events.jsonl") if is_live_rehearsal(path.parent))
    for path in sorted([*runs.glob("*/events.jsonl"), *inside]):
        root = path.parent
        found[str(root.resolve())] = read_run(root, submissions.get(str(root.resolve())))
    found |= {run_dir: _waiting(job) for run_dir, job in submissions.items() if run_dir not in found}
    return sorted(found.values(), key=lambda run: run.began_t)


def _waiting(job: Submitted) -> Run:
    """A run that was submitted and has no directory yet."""
    root = Path(job.run_dir)
    return Run(root.name, root, job.job_id, job.submitted_t, submitted=job)


def find_run(word: str, runs: Path) -> Run:
    """The run that `word` means: a directory, the name of a run or the beginning of just one, or the id of a job.

    A beginning that ends where a part of the name does (`demo` of `demo-17`) is taken before one that does not
    (`demo-1`); a number alone is no beginning of the latter kind, since it is the id of a job.

    Raises:
        ConfigError: It means none, or several.
    """
    place = Path(word)
    try:
        if "/" in word or (place.is_dir() and (place / "events.jsonl").is_file()):
            return _directory(place, runs)
    except (OSError, RuntimeError) as problem:  # a name too long, another user's directory, links in a circle
        why = getattr(problem, "strerror", "") or "its links lead in a circle"
        raise ConfigError(f"{word[:_SHOWN]}: {why}", "`dynamo-mlperf status` lists runs") from problem
    everything = list_runs(runs)
    found = _meant(word, everything)
    if len(found) == 1:
        return found[0]
    if not found and _JOB.fullmatch(word):
        return Run(f"job {word}", runs / f"job-{word}", word)
    names = [run.name for run in reversed(found or everything)]
    if found:
        raise ConfigError(f"{word} names {len(found)} runs: {_some(names)}", f"name one, such as {names[0]}")
    near = nearest(word, names)
    raise ConfigError(
        f"no run {word!r} below {runs}; there are {_some(names) or 'none'}",
        f"name {near}" if near else "name a run, its directory, or a job's id; `dynamo-mlperf status` lists them",
    )


def _meant(word: str, everything: Sequence[Run]) -> list[Run]:
    """The runs of that name or job, else those whose names begin so."""
    found = [run for run in everything if word in {run.name, run.job_id}]
    found = found or [run for run in everything if run.name.startswith(f"{word}-")]
    if found or not word or _JOB.fullmatch(word):
        return found
    return [run for run in everything if run.name.startswith(word)]


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _directory(place: Path, runs: Path) -> Run:
    root = place.resolve()
    root = inside if is_live_rehearsal(inside := root / LIVE_REHEARSAL) else root
    submitted = {job.run_dir: job for job in read_submissions(runs).values()}.get(str(root))
    if (root / "events.jsonl").is_file():
        return read_run(root, submitted)
    if submitted is not None:
        return _waiting(submitted)
    raise ConfigError(f"{place} is no run directory: it has no events.jsonl", "`dynamo-mlperf status` lists runs")


def _workers(plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> tuple[WorkerFacts, ...]:
    hosts = {str(node.get("position")): str(node.get("host", "")) for node in _objects(plan.get("binding"))}
    found: dict[str, WorkerFacts] = {}
    for worker in _objects(plan.get("workers")):
        name, ranks = f"{worker.get('role')}-{worker.get('index')}", _objects(worker.get("ranks")) or [{}]
        found[name] = WorkerFacts(name, hosts.get(str(ranks[0].get("node")), ""), "planned")
    states = {"process_started": "starting", "process_ready": "ready", "process_exited": "ended"}
    asked: set[str] = set()
    for event in events:
        if event.get("event") == "phase_begin" and event.get("phase") == "stop":
            states["process_exited"] = "stopped"
        state, process = states.get(str(event.get("event", ""))), str(event.get("process", ""))
        if event.get("event") == "process_stopped":
            asked.add(process)
        elif state == "ended" and process in asked:
            state = "stopped"
        name = process.partition(AGAIN)[0]  # one that was started anew goes by its own name
        if state and name in found:
            status = event.get("status") if state in {"ended", "stopped"} else None
            found[name] = WorkerFacts(name, found[name].host, state, status)
    return tuple(found.values())


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what else a damaged file holds there is passed over."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _seconds(value: object) -> float:
    """A time in seconds; 0 where it is none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and math.isfinite(value) else 0.0  # type: ignore[arg-type]


def _object(path: Path) -> dict[str, Any] | None:
    found = _objects([_value(_bytes(path))])
    return found[0] if found else None


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; one that cannot be read does not hide the others."""
    return _objects([_value(line) for line in _bytes(path).split(b"\n")[:-1]])


def _value(raw: bytes) -> object:
    try:
        return strict_json(raw)
    except (ValueError, RecursionError):
        return None


def _bytes(path: Path) -> bytes:
    """Content of a regular file of a run; nothing where there is none."""
    try:
        return read_bounded(path, MOST_LOG_BYTES)
    except (OSError, ValueError):
        return b""

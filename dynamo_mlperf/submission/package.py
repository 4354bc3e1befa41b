"""From run directories to the tree of a submission: refused with every reason, or there whole."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rounds import CURRENT, round_of
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import shell_word, total_bytes
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.admission import admit, hopeless
from dynamo_mlperf.submission.build import Content, build
from dynamo_mlperf.submission.consistency import runs_of
from dynamo_mlperf.submission.description import description_findings, folder_name, read_description
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.nodes import nodes_of
from dynamo_mlperf.submission.results import collect
from dynamo_mlperf.submission.system_json import system_json
from dynamo_mlperf.submission.truth_at_hand import Rescoring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo_mlperf.submission.finding import Finding

_BESIDE = 40
"""Characters that are shown on either side of one that is none."""


@dataclass(frozen=True)
class PackageRequest:
    """What to make a tree of.

    Attributes:
        runs: Run directories; the tests of one result may lie in several.
        description: The site's description of the system.
        submitter: Whose tree it is; REHEARSAL for a rehearsal.
        out: The tree; must not exist, or be a tree that this made.
        rehearsal: Whether the runs are rehearsals, and the tree is to be one.
        replace: Whether a tree of other content may be replaced, as a whole.
        rescoring: How scores are made again.
    """

    runs: tuple[Path, ...]
    description: Path
    submitter: str
    out: Path
    rehearsal: bool = False
    replace: bool = False
    rescoring: Rescoring = field(default_factory=Rescoring)


@dataclass(frozen=True)
class Packaged:
    """A tree that is there.

    Attributes:
        tree: Where.
        changed: Whether this call made it; False where it was there already, the same to the byte.
        results: What it holds, each with its figures.
        files: How many files.
        size_bytes: Their size.
        accelerators: The total as the official checker counts it.
    """

    tree: Path
    changed: bool
    results: tuple[dict[str, Any], ...]
    files: int
    size_bytes: int
    accelerators: int


def package(request: PackageRequest, say: Callable[[str], None] = lambda _text: None) -> Packaged:
    """Make the tree.

    Raises:
        RefusedError: The runs cannot be submitted; names every reason, run and remedy.
        ConfigError: The request, the description or a data set that was named is not as it has to be.
        SetupError: The tree cannot be written.
    """
    _check_request(request)
    results, findings = collect(request.runs)
    # Before anybody fills in a description: no description makes these runs a submission.
    if wrong := hopeless(results, rehearsal=request.rehearsal):
        raise _refused([*findings, *wrong, *description_findings(request.description)])
    system, calibration = read_description(request.description)
    judged, more = admit(results, system, round_of(CURRENT), say, request.rescoring, rehearsal=request.rehearsal)
    findings += more
    runs = runs_of(results)
    nodes = [nodes_of(run) for run in runs]
    described, more = system_json(system, request.submitter, runs, nodes, rehearsal=request.rehearsal)
    findings += more
    if findings:
        raise _refused(findings)
    if request.rehearsal:
        described["sw_notes"] = f"{described['sw_notes']}. {marks.NOTE}".removeprefix(". ")
    say("writing the tree")
    content = Content(request.submitter, system, described, calibration, judged, request.rehearsal)
    try:
        changed = build(content, request.out, replace=request.replace)
        return _answer(request, content, changed=changed)
    except UnicodeEncodeError as problem:
        found = problem.object[max(0, problem.start - _BESIDE) : problem.end + _BESIDE]
        raise ConfigError(f"a record of the runs holds what is no text: {found!r}", "copy the runs again") from problem
    except OSError as problem:
        where = problem.filename2 or problem.filename or request.out
        # What copies a whole folder has no cause of its own, but a list of files with theirs.
        why = problem.strerror or str(problem.args[0][0][-1] if isinstance(problem, shutil.Error) else problem)
        raise SetupError(f"{where}: {why}", "make room, or name another --out; package again") from problem


def _refused(findings: Sequence[Finding]) -> RefusedError:
    return RefusedError(f"not packaged: {len(set(findings))} findings", tuple(dict.fromkeys(findings)))


def _check_request(request: PackageRequest) -> None:
    try:
        folder_name(request.submitter)
    except ValueError as problem:
        raise ConfigError(f"--submitter: {problem}", "write the organisation's folder name") from problem
    named_so = request.submitter.upper() == marks.SUBMITTER
    if request.rehearsal and request.submitter != marks.SUBMITTER:
        raise ConfigError(
            f"a rehearsal is not {request.submitter}'s", f"leave --submitter out: it is {marks.SUBMITTER}"
        )
    if named_so and not request.rehearsal:
        raise ConfigError(f"the submitter {request.submitter} is for rehearsals", "add --rehearsal, or name another")
    out = request.out
    if out.is_symlink() or (out.exists() and not _is_ours(request)):
        raise ConfigError(f"{out} is there already, and is no tree of this submitter's that package made", "--out NEW")
    if not out.absolute().parent.is_dir():
        raise ConfigError(
            f"there is no folder {out.absolute().parent}", f"mkdir -p {shell_word(out.absolute().parent)}"
        )
    for run in request.runs:
        if out.resolve().is_relative_to(run.resolve()):
            raise ConfigError(f"{out} lies in the run {run}, which stays as it is", "--out NEW")


def _is_ours(request: PackageRequest) -> bool:
    """Whether `out` holds nothing but what this made, so that it may be replaced as a whole."""
    division = request.out / layout.DIVISION
    part = layout.submitter_of(request.out, request.submitter)
    try:
        alone = [path.name for path in request.out.iterdir()] == [layout.DIVISION]
        alone = alone and [path.name for path in division.iterdir()] == [request.submitter]
    except OSError:
        return False
    return alone and part.manifest.is_file()


def _answer(request: PackageRequest, content: Content, *, changed: bool) -> Packaged:
    files = [path for path in request.out.rglob("*") if path.is_file()]
    rows = tuple(
        {
            "benchmark": entry.result.benchmark,
            "scenario": entry.result.scenario,
            "class": entry.verdict.result_class,
            "client": entry.performance.client,
            "completed_qps": entry.verdict.completed_qps,
            "tokens_per_second": entry.verdict.tokens_per_second,
            "scores": dict(entry.scores().metrics),
            "scored_again": entry.rescored,
            "runs": [run.name for run in entry.result.runs],
        }
        for entry in content.judged
    )
    total = int(content.described["number_of_nodes"]) * int(content.described["accelerators_per_node"])
    return Packaged(request.out, changed, rows, len(files), total_bytes(files), total)

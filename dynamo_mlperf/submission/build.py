"""Writing a tree: beside its place, held against our own gate, then moved there whole."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf import __version__
from dynamo_mlperf.benchmark.rounds import CURRENT
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import fsync_directory
from dynamo_mlperf.process.checkout import PACKAGE, own_commit
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.finding import Finding, RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.manifest import changed_files, read_manifest, write_manifest
from dynamo_mlperf.submission.scenario import write_scenario
from dynamo_mlperf.submission.texts import source_readme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.submission.scenario import Judged


_BEFORE = "before"
"""The tree that is being replaced."""


@dataclass(frozen=True)
class Content:
    """All that a tree is made of.

    Attributes:
        submitter: Its folder.
        system: The site's description.
        described: What `systems/<name>.json` says.
        calibration: The calibration document.
        judged: The results.
        rehearsal: Whether it is a rehearsal, and says so everywhere.
    """

    submitter: str
    system: System
    described: dict[str, Any]
    calibration: str
    judged: Sequence[Judged]
    rehearsal: bool


def build(content: Content, out: Path, *, replace: bool) -> bool:
    """Write the tree and move it to `out`; False where the same was there already.

    Raises:
        RefusedError: What these runs make does not pass our own gate.
        ConfigError: Another tree is there, and `replace` is not asked for.
        OSError: It cannot be written; what was there is as it was.
    """
    place = out.absolute()
    prefix = f".{place.name}.package-"
    _take_up(place, prefix)
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    held = os.open(aside, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        tree = aside / place.name
        part = layout.submitter_of(tree, content.submitter)
        _fill(part, content)
        gate = check_tree(tree, CURRENT, rehearsal=content.rehearsal)
        if gate.findings:
            moved = [_at(finding, tree, place) for finding in gate.findings]
            raise RefusedError(f"not packaged: {len(moved)} findings in the tree that these runs make", moved)
        return _move(part, tree, place, aside, replace=replace)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(held)


def _take_up(place: Path, prefix: str) -> None:
    """Remove what calls left that were killed; a tree that one of them was replacing goes back to its place."""
    for left in place.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError):
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (left / _BEFORE).exists() and not place.exists():
                    (left / _BEFORE).rename(place)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


def _at(finding: Finding, tree: Path, place: Path) -> Finding:
    return Finding(
        finding.where.replace(str(tree), str(place)), finding.check, finding.wanted, finding.got, finding.action
    )


def _fill(part: layout.Submitter, content: Content) -> None:
    system, judged = content.system, content.judged
    part.root.mkdir(parents=True)
    for entry in judged:
        result = entry.result
        write_scenario(
            part.scenario(system.name, result.benchmark, result.scenario), entry, system, rehearsal=content.rehearsal
        )
    part.system(system.name).parent.mkdir()
    part.system(system.name).write_text(json.dumps(content.described, indent=2) + "\n")
    (part.root / layout.CALIBRATION).parent.mkdir()
    text = f"{marks.NOTE}\n\n{content.calibration}" if content.rehearsal else content.calibration
    (part.root / layout.CALIBRATION).write_text(text)
    _sources(part, judged, rehearsal=content.rehearsal)
    facts = {
        "class": "rehearsal" if content.rehearsal else "official",
        "round": CURRENT,
        "submitter": content.submitter,
        "system": system.name,
    }
    write_manifest(part, facts, rehearsal=content.rehearsal)


def _sources(part: layout.Submitter, judged: Sequence[Judged], *, rehearsal: bool) -> None:
    sources = part.root / layout.SOURCES
    shutil.copytree(PACKAGE, sources / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
    for benchmark in sorted({entry.result.benchmark for entry in judged}):
        runs = [run for entry in judged if entry.result.benchmark == benchmark for run in entry.result.runs]
        (sources / benchmark).mkdir()
        commit = own_commit()
        copied = f"{__version__}, commit {commit}" if commit else __version__
        (sources / benchmark / layout.README).write_text(source_readme(benchmark, runs, copied, rehearsal=rehearsal))


def _move(part: layout.Submitter, tree: Path, place: Path, aside: Path, *, replace: bool) -> bool:
    """Rename the whole into place; what was there of other content goes as a whole, and only when asked."""
    if not place.exists():
        try:
            tree.rename(place)
        except OSError:
            if not place.exists():
                raise  # else another call has put one there meanwhile
        else:
            fsync_directory(place.parent)
            return True
    there = layout.submitter_of(place, part.name)
    edited = [name for name, _ in changed_files(there)]
    if not edited and read_manifest(there.manifest) == read_manifest(part.manifest):
        return False
    if not replace:
        mine, theirs = read_manifest(part.manifest).get("files", {}), read_manifest(there.manifest).get("files", {})
        differ = sorted({*edited, *(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))})
        raise ConfigError(
            f"{place} holds another tree: {len(differ)} files differ, the first {differ[0]}; nothing was changed"
            if differ
            else f"{place} holds another tree; nothing was changed",
            "name another --out, or replace it as a whole with --replace",
        )
    try:
        place.rename(aside / _BEFORE)
        tree.rename(place)
    except BaseException:  # a signal too: what was there stays
        if not place.exists():
            with contextlib.suppress(OSError):
                (aside / _BEFORE).rename(place)
        raise
    fsync_directory(place.parent)
    return True

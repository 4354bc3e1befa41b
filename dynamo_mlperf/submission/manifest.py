"""`documentation/package.json`: the digest of every file as it was packaged, by its path in the submitter's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import write_json
from dynamo_mlperf.submission import layout, marks
from dynamo_mlperf.submission.proofs import sha256_of
from dynamo_mlperf.submission.records import read_record

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.submission.layout import Submitter

_DOCUMENTS = (layout.README, layout.MEASUREMENTS)


def is_evidence(name: str) -> bool:
    """Whether the file at `name` below a submitter's folder is evidence, not a document that people may edit."""
    return name.startswith("results/") and name.rpartition("/")[2] not in _DOCUMENTS


def digests(part: Submitter) -> dict[str, str]:
    """SHA-256 of every file but the manifest, by path."""
    files = sorted(path for path in part.root.rglob("*") if path.is_file() and path != part.manifest)
    return {path.relative_to(part.root).as_posix(): sha256_of(path) for path in files}


def write_manifest(part: Submitter, facts: dict[str, Any], *, rehearsal: bool) -> dict[str, Any]:
    """Write and return the manifest of a part that is whole."""
    note = {"note": marks.NOTE} if rehearsal else {}
    value = {"made_by": "dynamo_mlperf", "schema": 1, **note, **facts, "files": digests(part)}
    part.manifest.parent.mkdir(exist_ok=True)
    write_json(part.manifest, value)
    return value


def recorded_files(part: Submitter) -> dict[str, str]:
    """The digests that the manifest records.

    Raises:
        ConfigError: There are none.
    """
    files = read_record(part.manifest).get("files")
    if not isinstance(files, dict):
        raise ConfigError(f"{part.manifest} records no files", "package the runs again")
    return files


def changed_files(part: Submitter) -> list[tuple[str, str]]:
    """Files that are not as they were packaged, each with how it differs.

    Raises:
        ConfigError: The manifest cannot be read.
    """
    recorded, now = recorded_files(part), digests(part)
    changed = [(name, "gone") for name in recorded if name not in now]
    changed += [(name, "not packaged") for name in now if name not in recorded]
    changed += [(name, "changed since") for name in now if name in recorded and now[name] != recorded[name]]
    return sorted(changed)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in `path`; empty where there is none."""
    return read_record(path)

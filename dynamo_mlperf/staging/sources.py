"""What a source directory holds: regular files, with Hugging Face's cache links followed and all others refused."""

from __future__ import annotations

import os
from pathlib import Path

from dynamo_mlperf.errors import SetupError


def _roots(source: Path) -> tuple[Path, ...]:
    """Where a file of `source` may really lie: below it, or among the blobs of the same Hugging Face cache entry.

    The cache keeps `snapshots/<revision>/<file>` as links to `blobs/<hash>`, as huggingface_hub documents it.
    """
    root = source.resolve()
    inside_cache = root.parent.name == "snapshots"
    return (root, root.parent.parent / "blobs") if inside_cache else (root,)


def real_file(source: Path, name: str) -> Path:
    """The regular file behind `name` in `source`, links resolved.

    Raises:
        SetupError: There is no such file, its link dangles or leads elsewhere, or it is no regular file.
    """
    path = source / name
    real = Path(os.path.realpath(path))  # a loop of links ends in a path that is not there; resolve() would raise
    if not real.exists():
        what = f"{path} is a link to {path.readlink()}, which is not there" if path.is_symlink() else f"no file {path}"
        raise SetupError(what, "complete the download of the source, or write its manifest anew")
    if not any(real.is_relative_to(root) for root in _roots(source)):
        raise SetupError(f"{path} leads out of its directory, to {real}", "put a copy of the file there, not a link")
    if not real.is_file():
        raise SetupError(f"{path} leads to {real}, which is no regular file", "remove it from the source")
    return real


def file_names(source: Path) -> list[str]:
    """Paths of all files below `source`, relative, sorted; what begins with a dot is left out.

    Raises:
        SetupError: `source` is no directory, or an entry is a link that `real_file` refuses.
    """
    if not source.is_dir():
        raise SetupError(f"no directory {source}", "give the directory that holds the files")
    names: list[str] = []
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked = [name for name in folders if Path(folder, name).is_symlink()]
        visible = [name for name in [*linked, *files] if not name.startswith(".")]
        names.extend(Path(folder, name).relative_to(source).as_posix() for name in visible)
    for name in names:
        real_file(source, name)
    return sorted(names)

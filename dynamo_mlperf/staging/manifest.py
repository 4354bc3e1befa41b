"""Staging manifests: what a directory has to hold, file by file, with sizes and digests.

A manifest is a YAML file that a person can read and a job can trust:

    schema: 1
    name: tiny-qwen3-vl-moe
    kind: model
    source: assets/tiny-qwen3-vl-moe
    destination: tiny-qwen3-vl-moe
    files:
    - path: config.json
      bytes: 1611
      blake3: 0d1f...
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Annotated, Any, Literal

import yaml
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.staging.blocks import digest_source
from dynamo_mlperf.staging.sources import file_names, real_file

MARKER = ".staged.json"
"""Written last into a staged directory; a directory without it is not complete."""

Kind = Literal["model", "dataset", "image"]

_MAX_MANIFEST_BYTES = 64 * 1024 * 1024
_GIVE_ONE = "give a manifest from staging/, or write one with dynamo-mlperf stage manifest SOURCE -o FILE"
_KINDS = {stat.S_IFIFO: "pipe", stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"}
_HASHING_THREADS = min(8, (os.cpu_count() or 1) * 2)
_PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=128)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class ManifestFile(_Strict):
    """One file: its path below the directory, size in bytes, and BLAKE3 digest as 64 hex digits."""

    path: str
    bytes: Annotated[int, Field(ge=0)]
    blake3: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or str(PurePosixPath(path)) != path:
            raise ValueError("has to be a plain relative path without '..'")
        if any("\ud800" <= letter <= "\udfff" for letter in path):
            raise ValueError(f"has to be UTF-8, which {path!r} is not")
        if path == MARKER:
            raise ValueError("is the name of the marker that staging writes itself")
        return path


class Manifest(_Strict):
    """A directory's worth of files.

    Attributes:
        schema_version: Version of this format (`schema` in the file).
        name: What people call it.
        kind: Model, data set or container image.
        source: Directory to copy from, relative to a base directory that the caller gives, or absolute.
        destination: Directory name on the node; the digest is appended to it.
        files: The files, each once.
    """

    schema_version: Literal[1] = Field(alias="schema")
    name: _PlainName
    kind: Kind
    source: Annotated[str, Field(min_length=1)]
    destination: _PlainName
    files: Annotated[list[ManifestFile], Field(min_length=1)]

    @field_validator("files")
    @classmethod
    def _each_once(cls, files: list[ManifestFile]) -> list[ManifestFile]:
        paths = {file.path for file in files}
        if len(paths) != len(files):
            raise ValueError(f"{len(files) - len(paths)} paths are listed twice")
        for file in files:
            folder = next((str(up) for up in PurePosixPath(file.path).parents if str(up) in paths), None)
            if folder is not None:
                raise ValueError(f"{folder} is listed as a file and as the directory of {file.path}")
        return files

    @property
    def digest(self) -> str:
        """BLAKE3 over paths, sizes and digests of the files: the identity of the content, 64 hex digits."""
        return digest_of({file.path: (file.bytes, file.blake3) for file in self.files})

    @property
    def total_bytes(self) -> int:
        """Size of all files together, in bytes."""
        return sum(file.bytes for file in self.files)

    def to_yaml(self) -> str:
        """The manifest as its file's text."""
        return yaml.safe_dump(self.model_dump(by_alias=True), sort_keys=False, allow_unicode=True, width=1000)


def digest_of(files: Mapping[str, tuple[int, str]]) -> str:
    """Identity of a directory's content from each file's size in bytes and digest, by path: 64 hex digits."""
    lines = sorted(f"{digest} {size_bytes} {path}\n" for path, (size_bytes, digest) in files.items())
    return blake3("".join(lines).encode()).hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        ConfigError: The file cannot be read, is no regular file, is larger than 64 MiB or is no manifest; names the
            file and the place in it.
    """
    raw = _read(path)
    try:
        content = yaml.safe_load(raw.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, or a number too long
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}", "repair the file") from error
    return _checked(content, str(path))


def _read(path: Path) -> bytes:
    """Content of a manifest's file; whatever else has that name is neither waited for nor read without end."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
                raise ConfigError(f"{path}: a {kind}, not a regular file", _GIVE_ONE)
            raw = file.read(_MAX_MANIFEST_BYTES + 1) if status.st_size <= _MAX_MANIFEST_BYTES else b""
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", _GIVE_ONE) from error
    size_bytes = max(status.st_size, len(raw))  # /proc gives a size of 0 for what holds more
    if size_bytes > _MAX_MANIFEST_BYTES:
        raise ConfigError(f"{path}: {size_bytes} bytes, more than {_MAX_MANIFEST_BYTES}", _GIVE_ONE)
    return raw


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe; a regular file is opened as ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _checked(content: Any, where: str) -> Manifest:  # noqa: ANN401 - whatever the YAML file holds
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ConfigError(
            f"{where}: {place}: {first['msg']}{more}", "write it with dynamo-mlperf stage manifest SOURCE -o FILE"
        ) from error


def make_manifest(
    source_path: Path,
    *,
    source: str | None = None,
    name: str | None = None,
    kind: Kind = "model",
    report: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Describe a directory, or the directory that holds one file, hashing files in parallel threads.

    Args:
        source_path: The directory to read, hidden files left out; or a single file, such as a container image, and
            then the manifest lists that file alone.
        source: What the manifest says to copy from; the directory itself if None.
        name: Name and destination; the directory's (or the file's) own name if None.
        kind: What it is.
        report: Called with bytes hashed and bytes in all, one call at a time.

    Raises:
        SetupError: No such directory, or it holds a link that dangles or leads out of it, or a file changed meanwhile.
        ConfigError: The directory is empty, or the name cannot be a directory name.
    """
    single = source_path.is_file()
    directory = source_path.parent if single else source_path
    names = [source_path.name] if single else file_names(directory)
    if not names:
        raise ConfigError(f"{directory}: 0 files", "give a directory that holds files")
    real = [real_file(directory, each) for each in names]
    sizes = [path.stat().st_size for path in real]
    digests = _digests(real, sizes, report)
    for path, size_bytes in zip(real, sizes, strict=True):
        if path.stat().st_size != size_bytes:
            raise SetupError(f"{path} changed while it was read", "wait until it is complete, then try again")
    files = [
        {"path": each, "bytes": size_bytes, "blake3": digest}
        for each, size_bytes, digest in zip(names, sizes, digests, strict=True)
    ]
    called = name or source_path.resolve().name
    content = {"schema": 1, "name": called, "kind": kind, "source": source or str(directory), "destination": called}
    return _checked({**content, "files": files}, str(source_path))


def _digests(paths: list[Path], sizes: list[int], report: Callable[[int, int], None] | None) -> list[str]:
    """Digests in the order of `paths`; the largest files first, so that none is left alone at the end."""
    lock, done_bytes = Lock(), 0

    def digest(place: int) -> str:
        nonlocal done_bytes
        found = digest_source(paths[place])
        with lock:
            done_bytes += sizes[place]
            if report is not None:
                report(done_bytes, sum(sizes))
        return found

    order = sorted(range(len(paths)), key=lambda place: -sizes[place])
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        by_place = dict(zip(order, pool.map(digest, order), strict=True))
    return [by_place[place] for place in range(len(paths))]

"""Where the bytes of a copy come from; and the simplest place, the source itself."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Protocol

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.blocks import copy_file, digest_source
from dynamo_mlperf.staging.sources import real_file

if TYPE_CHECKING:
    from pathlib import Path
    from threading import Event

    from dynamo_mlperf.staging.manifest import Manifest, ManifestFile


class Advance(Protocol):
    """Told of bytes that have been written."""

    def __call__(self, more_bytes: int) -> None:
        """So many more."""
        ...


class Supply(Protocol):
    """Fills files of a partial directory. Methods are called from several threads, once per file each."""

    store_bytes: int
    """Bytes read from the source so far."""
    peer_bytes: int
    """Bytes received from other nodes so far."""

    def begin(self, partial: Path, advance: Advance, stopping: Event) -> None:
        """Files will be filled below `partial`."""
        ...

    def may_keep(self, file: ManifestFile, path: Path) -> bool:
        """Whether `path` holds something that may be the file, from before."""
        ...

    def confirm(self, file: ManifestFile) -> None:
        """The file is here and has been found right."""
        ...

    def fill(self, file: ManifestFile, path: Path) -> None:
        """Write the file to `path`; less of it only once `stopping` is set."""
        ...

    def fill_again(self, file: ManifestFile, path: Path) -> None:
        """Write it anew, since what was written is not what the manifest says.

        Raises:
            SetupError: The source is not what the manifest says.
        """
        ...

    def settle(self, final: Path) -> None:
        """All files are right, at `final` from now on."""
        ...


def has_size(file: ManifestFile, path: Path) -> bool:
    """Whether `path` is a regular file, not a link, of the file's size."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size == file.bytes


def source_differs(manifest: Manifest, source: Path, file: ManifestFile, digest: str) -> SetupError:
    """The source holds another file than the manifest says."""
    return SetupError(
        f"{source / file.path} has digest {digest}; the manifest of {manifest.name} says {file.blake3}",
        "write the manifest anew if the change is meant: dynamo-mlperf stage manifest",
    )


class StoreSupply:
    """Every byte from the source itself."""

    def __init__(self, manifest: Manifest, source: Path) -> None:
        self._manifest = manifest
        self._source = source
        self._lock = Lock()
        self.store_bytes = 0
        self.peer_bytes = 0

    def begin(self, partial: Path, advance: Advance, stopping: Event) -> None:  # noqa: ARG002 - a Supply's
        """Files will be filled."""
        self._advance, self._stopping = advance, stopping

    def may_keep(self, file: ManifestFile, path: Path) -> bool:
        """Whether an earlier copy may have finished the file."""
        return has_size(file, path)

    def confirm(self, file: ManifestFile) -> None:
        """Nothing to do."""

    def fill(self, file: ManifestFile, path: Path) -> None:
        """Copy the file."""
        path.unlink(missing_ok=True)
        copy_file(real_file(self._source, file.path), path, self._moved, self._stopping.is_set)

    def fill_again(self, file: ManifestFile, path: Path) -> None:
        """Copy it once more if the source is right.

        Raises:
            SetupError: It is not.
        """
        digest = digest_source(real_file(self._source, file.path))
        if digest != file.blake3:
            raise source_differs(self._manifest, self._source, file, digest)
        self.fill(file, path)

    def settle(self, final: Path) -> None:
        """Nothing to do."""

    def _moved(self, more_bytes: int) -> None:
        with self._lock:
            self.store_bytes += more_bytes
        self._advance(more_bytes)

"""Stage a directory onto this node's own disk: visible only when whole, verified and durable.

The copy grows in a hidden directory that belongs to one process alone. Each file is read back from the disk and
hashed; a marker with the manifest's digest and each file's size, time and inode is written last; then the directory
is renamed into place. The digest is part of the final name, so a changed source becomes another directory and both
can be in use. A lock spares a second stager the work; without it, the one that renames first wins and the other
discards its own copy.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING

from blake3 import blake3

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import digest_file, fsync_directory
from dynamo_mlperf.staging.lock import held_lock
from dynamo_mlperf.staging.manifest import MARKER, Manifest, ManifestFile
from dynamo_mlperf.staging.marker import is_staged, stamp, write_marker
from dynamo_mlperf.staging.owner import is_abandoned, private_name
from dynamo_mlperf.staging.sources import real_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.staging.marker import Stamp

    Report = Callable[[int, int], None]
    """Called with bytes done and bytes in all, from any thread, one call at a time."""

LOCK_WAIT_S = 3600.0
DIGEST_LETTERS = 16

_BLOCK_BYTES = 4 * 1024 * 1024
_COPY_THREADS = 4
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_counter = itertools.count()


@dataclass(frozen=True)
class StageResult:
    """What staging did.

    Attributes:
        path: The complete directory.
        bytes_copied: Bytes read from the source and written here.
        bytes_reused: Bytes that were here already, from before or from an interrupted copy.
        seconds: How long it took, waiting included.
        reused: True if nothing had to be copied.
    """

    path: Path
    bytes_copied: int
    bytes_reused: int
    seconds: float
    reused: bool


def staged_path(manifest: Manifest, local_root: Path) -> Path:
    """Where `manifest` is staged below `local_root`: its destination and the start of its digest."""
    return local_root / f"{manifest.destination}-{manifest.digest[:DIGEST_LETTERS]}"


def stage(
    manifest: Manifest,
    source_dir: Path,
    local_root: Path,
    report: Report | None = None,
    *,
    lock_wait_s: float = LOCK_WAIT_S,
) -> StageResult:
    """Make the manifest's files present and whole below `local_root`.

    Args:
        manifest: What to stage.
        source_dir: Directory to copy from.
        local_root: Directory on this node's own disk, made if it is not there.
        report: Called as the copy goes on.
        lock_wait_s: Longest wait for another stager of the same files, in seconds.

    Raises:
        SetupError: The source differs from the manifest, the disk is full, or another stager holds the lock.
    """
    began_s = time.monotonic()
    final = staged_path(manifest, local_root)
    copied_bytes = 0
    if not is_staged(manifest, final):
        try:
            local_root.mkdir(parents=True, exist_ok=True)
            with held_lock(local_root / f".{final.name}.lock", lock_wait_s):
                if not is_staged(manifest, final):
                    copied_bytes = _Copy(manifest, source_dir, final, report or _no_report).run()
        except OSError as error:
            raise SetupError(f"staging {final}: {error}", "make the directory writable, or stage elsewhere") from error
    return StageResult(
        path=final,
        bytes_copied=copied_bytes,
        bytes_reused=manifest.total_bytes - copied_bytes,
        seconds=time.monotonic() - began_s,
        reused=copied_bytes == 0,
    )


def _no_report(done_bytes: int, total_bytes: int) -> None:
    """Say nothing."""


class _Copy:
    """One process's attempt to bring one directory into being."""

    def __init__(self, manifest: Manifest, source: Path, final: Path, report: Report) -> None:
        self.manifest = manifest
        self.source = source
        self.final = final
        self.report = report
        self.partial = final.parent / private_name(final.name, next(_counter))
        self.lock = Lock()
        self.stopping = Event()
        self.done_bytes = 0
        self.copied_bytes = 0
        self.stamps: dict[str, Stamp] = {}

    def run(self) -> int:
        """Copy, verify and publish; returns the bytes copied."""
        self._check_source()
        if not self._take_over_leftovers():
            return 0
        try:
            self._check_space()
            for file in self.manifest.files:
                (self.partial / file.path).parent.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(_COPY_THREADS) as pool:
                running = [pool.submit(self._bring, file) for file in self.manifest.files]
                try:
                    for each in running:
                        each.result()
                except BaseException:
                    self.stopping.set()
                    pool.shutdown(cancel_futures=True)
                    raise
            return self._publish()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._full(error) from error
        finally:
            shutil.rmtree(self.partial, ignore_errors=True)

    def _check_source(self) -> None:
        if not self.source.is_dir():
            raise SetupError(
                f"no source directory {self.source} for {self.manifest.name}",
                "mount or make it; the tiny model is made by dynamo-mlperf init --assets assets",
            )
        for file in self.manifest.files:
            size_bytes = real_file(self.source, file.path).stat().st_size
            if size_bytes != file.bytes:
                raise SetupError(
                    f"{self.source / file.path} is {size_bytes} bytes; the manifest of {self.manifest.name} says "
                    f"{file.bytes}",
                    "write the manifest anew if the change is meant: dynamo-mlperf stage manifest",
                )

    def _take_over_leftovers(self) -> bool:
        """Continue from a damaged directory or from a copy that its writer left behind; delete other leftovers.

        A rename decides between two processes that want the same one.

        Returns:
            False if another process has published the directory meanwhile.
        """
        if self.final.exists():
            if is_staged(self.manifest, self.final):
                return False
            with suppress(FileNotFoundError):
                self.final.rename(self.partial)
        for leftover in sorted(self.final.parent.glob(f".{self.final.name}.*.partial")):
            if leftover == self.partial or not is_abandoned(leftover):
                continue
            if self.partial.exists():
                shutil.rmtree(leftover, ignore_errors=True)
                continue
            with suppress(FileNotFoundError):
                leftover.rename(self.partial)
        self.partial.mkdir(exist_ok=True)
        self.partial.chmod(0o755)
        (self.partial / MARKER).unlink(missing_ok=True)
        return True

    def _check_space(self) -> None:
        here_bytes = sum(
            min(file.bytes, path.stat().st_size)
            for file in self.manifest.files
            if (path := self.partial / file.path).is_file()
        )
        needed_bytes = self.manifest.total_bytes - here_bytes
        free_bytes = shutil.disk_usage(self.partial).free
        if needed_bytes > free_bytes:
            raise SetupError(
                f"{self.manifest.name} needs {needed_bytes} bytes on {self.final.parent}; {free_bytes} are free",
                self._room(),
            )

    def _full(self, error: OSError) -> SetupError:
        free_bytes = shutil.disk_usage(self.final.parent).free
        return SetupError(
            f"{self.final.parent} was full ({error.strerror}) after {self.copied_bytes} of "
            f"{self.manifest.total_bytes} bytes of {self.manifest.name}; the partial copy is gone, "
            f"{free_bytes} are free",
            self._room(),
        )

    def _room(self) -> str:
        return f"remove what you no longer need from {self.final.parent}, or stage elsewhere with --to"

    def _bring(self, file: ManifestFile) -> None:
        """Make one file right in the partial directory: keep what verifies, copy what does not."""
        path = self.partial / file.path
        if path.is_file() and path.stat().st_size == file.bytes and self._digest(file) == file.blake3:
            self._advance(file.bytes, copied=False)
            return
        path.unlink(missing_ok=True)
        read_digest = self._copy_file(real_file(self.source, file.path), path)
        if read_digest != file.blake3:
            raise SetupError(
                f"{self.source / file.path} has digest {read_digest}; the manifest of {self.manifest.name} says "
                f"{file.blake3}",
                "write the manifest anew if the change is meant: dynamo-mlperf stage manifest",
            )
        written_digest = self._digest(file)
        if written_digest != file.blake3:
            raise SetupError(
                f"{path} reads back with digest {written_digest} where {file.blake3} was written",
                "check this node's disk, or stage elsewhere with --to",
            )

    def _digest(self, file: ManifestFile) -> str:
        """Digest of what the partial directory holds, stamped before it is read: a later write is then seen."""
        path = self.partial / file.path
        self.stamps[file.path] = stamp(path)
        return digest_file(path)

    def _copy_file(self, source: Path, path: Path) -> str:
        """Copy, flush to the disk and drop from the page cache; returns the digest of what was read."""
        hasher = blake3()
        with source.open("rb") as original, path.open("wb", buffering=0) as copy:
            while not self.stopping.is_set() and (block := original.read(_BLOCK_BYTES)):
                hasher.update(block)
                left = memoryview(block)
                while left:
                    left = left[copy.write(left) :]
                self._advance(len(block), copied=True)
            os.fsync(copy.fileno())
            os.posix_fadvise(copy.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hasher.hexdigest()

    def _advance(self, more_bytes: int, *, copied: bool) -> None:
        with self.lock:
            self.done_bytes += more_bytes
            self.copied_bytes += more_bytes if copied else 0
            self.report(self.done_bytes, self.manifest.total_bytes)

    def _publish(self) -> int:
        """Write the marker and rename into place; returns the bytes copied, 0 if another process was first."""
        self._remove_strangers()
        for folder in (path for path in self.partial.rglob("*") if path.is_dir()):
            fsync_directory(folder)
        write_marker(self.manifest, self.partial, self.stamps)
        fsync_directory(self.partial)
        try:
            self.partial.rename(self.final)
        except OSError as error:
            if error.errno not in _TAKEN or not is_staged(self.manifest, self.final):
                raise
            return 0
        fsync_directory(self.final.parent)
        return self.copied_bytes

    def _remove_strangers(self) -> None:
        """Remove what a taken-over directory holds beside the manifest's files."""
        wanted = {self.partial / file.path for file in self.manifest.files}
        for path in self.partial.rglob("*"):
            if path not in wanted and (path.is_symlink() or not path.is_dir()):
                path.unlink()

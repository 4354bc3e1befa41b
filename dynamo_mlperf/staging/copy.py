"""Stage a directory onto this node's own disk: visible only when whole, verified and durable.

The copy grows in a hidden directory that belongs to one process alone. Each file is read back from the disk and
hashed; a marker with the manifest's digest and each file's size, times and inode is written last; then the directory
is renamed into place. The digest is part of the final name, so a changed source becomes another directory and both
can be in use. A lock spares a second stager the work; without it, the one that renames first wins and the other
discards its own copy. Where the bytes come from, the store or other nodes, is a `Supply`'s business.
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
from threading import Event, Lock
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import fsync_directory
from dynamo_mlperf.staging.blocks import despite_stale, digest_written, flush
from dynamo_mlperf.staging.lock import held_lock
from dynamo_mlperf.staging.manifest import MARKER, Manifest, ManifestFile
from dynamo_mlperf.staging.marker import is_staged, stamp, write_marker
from dynamo_mlperf.staging.owner import is_abandoned, private_name
from dynamo_mlperf.staging.room import Room, look, make_room
from dynamo_mlperf.staging.sources import real_file
from dynamo_mlperf.staging.supply import StoreSupply
from dynamo_mlperf.staging.use import mark_in_use

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.staging.marker import Stamp
    from dynamo_mlperf.staging.supply import Supply

    Report = Callable[[int, int], None]
    """Called with bytes done and bytes in all, from any thread, one call at a time."""

LOCK_WAIT_S = 3600.0
DIGEST_LETTERS = 16

_COPY_THREADS = 4
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_counter = itertools.count()


@dataclass(frozen=True)
class StageResult:
    """What staging did.

    Attributes:
        path: The complete directory.
        bytes_copied: Bytes written here.
        bytes_reused: Bytes that were here already, from before or from an interrupted copy.
        bytes_from_store: Bytes read from the source; more than were written if some had to be read twice.
        bytes_from_peers: Bytes that other nodes gave.
        seconds: How long it took, waiting included.
        reused: True if nothing had to be copied.
    """

    path: Path
    bytes_copied: int
    bytes_reused: int
    bytes_from_store: int
    bytes_from_peers: int
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
    supply: Supply | None = None,
    evict: bool = False,
    run_dir: Path | None = None,
    notice: Callable[[str], None] | None = None,
) -> StageResult:
    """Make the manifest's files present and whole below `local_root`.

    Args:
        manifest: What to stage.
        source_dir: Directory to copy from.
        local_root: Directory on this node's own disk, made if it is not there.
        report: Called as the copy goes on.
        lock_wait_s: Longest wait for another stager of the same files, in seconds.
        supply: Where the bytes come from; the source itself if None.
        evict: Whether the least recently used directories may be removed when room is short.
        run_dir: Directory of the run that will use the files, for the mark that keeps them from eviction.
        notice: Told of what a person should know though it stops nothing.

    Raises:
        SetupError: The source differs from the manifest, the disk is full, or another stager holds the lock.
    """
    began_s = time.monotonic()
    final = staged_path(manifest, local_root)
    tell = notice or _say_nothing
    source = supply or StoreSupply(manifest, source_dir)
    copied_bytes = 0
    try:
        local_root.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # where one cannot write, one cannot stage, but use what is there
            mark_in_use(final, run_dir)
        if not is_staged(manifest, final):
            with held_lock(local_root / f".{final.name}.lock", lock_wait_s, tell):
                if not is_staged(manifest, final):
                    copy = _Copy(manifest, source_dir, final, source, report or _report_nothing)
                    copied_bytes = copy.run(evict=evict, notice=tell)
        with suppress(OSError):  # another user's directory can be used though not touched
            os.utime(final / MARKER)
        source.settle(final)
    except OSError as error:
        raise SetupError(f"staging {final}: {error}", "make the directory writable, or stage elsewhere") from error
    return StageResult(
        path=final,
        bytes_copied=copied_bytes,
        bytes_reused=manifest.total_bytes - copied_bytes,
        bytes_from_store=source.store_bytes,
        bytes_from_peers=source.peer_bytes,
        seconds=time.monotonic() - began_s,
        reused=copied_bytes == 0,
    )


def room_for(manifest: Manifest, local_root: Path) -> Room:
    """What the manifest still needs below `local_root`, and what is free there; nothing is changed.

    Raises:
        SetupError: `local_root` cannot be looked at.
    """
    final = staged_path(manifest, local_root)
    try:
        if is_staged(manifest, final):
            return Room(0, shutil.disk_usage(local_root).free)
        leftovers = [path for path in local_root.glob(f".{final.name}.*.partial") if is_abandoned(path)]
        present = final if final.exists() or not leftovers else leftovers[0]
        return look(manifest, local_root, final, present)
    except OSError as error:
        raise SetupError(f"{local_root}: {error.strerror}", "make the directory readable, or name another") from error


def _report_nothing(done_bytes: int, total_bytes: int) -> None:
    """Say nothing."""


def _say_nothing(text: str) -> None:
    """Say nothing."""


class _Copy:
    """One process's attempt to bring one directory into being."""

    def __init__(self, manifest: Manifest, source: Path, final: Path, supply: Supply, report: Report) -> None:
        self.manifest = manifest
        self.source = source
        self.final = final
        self.supply = supply
        self.report = report
        self.partial = final.parent / private_name(final.name, next(_counter))
        self.lock = Lock()
        self.stopping = Event()
        self.done_bytes = 0
        self.copied_bytes = 0
        self.stamps: dict[str, Stamp] = {}

    def run(self, *, evict: bool, notice: Callable[[str], None]) -> int:
        """Copy, verify and publish; returns the bytes copied."""
        self._check_source()
        if not self._take_over_leftovers():
            return 0
        try:
            make_room(self.manifest, self.final.parent, self.final, self.partial, evict=evict, notice=notice)
            for file in self.manifest.files:
                (self.partial / file.path).parent.mkdir(parents=True, exist_ok=True)
            self.supply.begin(self.partial, self._advance, self.stopping)
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
            path = real_file(self.source, file.path)
            size_bytes = despite_stale(lambda path=path: path.stat().st_size)  # type: ignore[misc]
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

    def _full(self, error: OSError) -> SetupError:
        free_bytes = shutil.disk_usage(self.final.parent).free
        return SetupError(
            f"{self.final.parent} was full ({error.strerror}) after {self.copied_bytes} of "
            f"{self.manifest.total_bytes} bytes of {self.manifest.name}; the partial copy is gone, "
            f"{free_bytes} are free",
            f"remove what you no longer need from {self.final.parent}, or stage elsewhere with --to",
        )

    def _bring(self, file: ManifestFile) -> None:
        """Make one file right in the partial directory: keep what verifies, copy what does not."""
        path = self.partial / file.path
        if self.supply.may_keep(file, path) and self._digest(file) == file.blake3:
            self.supply.confirm(file)
            self._advance(file.bytes, copied=False)
            return
        for fill in (self.supply.fill, self.supply.fill_again):
            fill(file, path)
            if self.stopping.is_set():
                return
            written_digest = self._digest(file)
            if written_digest == file.blake3:
                self.supply.confirm(file)
                return
        raise SetupError(
            f"{path} reads back with digest {written_digest} where {file.blake3} was written",
            "check this node's disk, or stage elsewhere with --to",
        )

    def _digest(self, file: ManifestFile) -> str:
        """Digest of what the partial directory holds, stamped before it is read: a later write is then seen.

        When the digest is right, the disk holds the file too.
        """
        path = self.partial / file.path
        self.stamps[file.path] = stamp(path)
        digest = digest_written(path)
        if digest == file.blake3:
            flush(path)
        return digest

    def _advance(self, more_bytes: int, *, copied: bool = True) -> None:
        with self.lock:
            self.done_bytes = min(self.done_bytes + more_bytes, self.manifest.total_bytes)
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
        return min(self.copied_bytes, self.manifest.total_bytes)

    def _remove_strangers(self) -> None:
        """Remove what a taken-over directory holds beside the manifest's files."""
        wanted = {self.partial / file.path for file in self.manifest.files}
        for path in self.partial.rglob("*"):
            if path not in wanted and (path.is_symlink() or not path.is_dir()):
                path.unlink()

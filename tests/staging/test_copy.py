"""Staging copies: whole or invisible, whatever dies, changes, fills up or runs at the same time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.copy import stage, staged_path
from dynamo_mlperf.staging.manifest import Manifest, make_manifest
from dynamo_mlperf.staging.marker import is_staged

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
SIZES = {"a.bin": MIB, "b.bin": MIB, "sub/c.bin": MIB, "sub/empty": 0}

# Stages argv[1] from argv[2] to argv[3]; once argv[4] bytes are done, says so and waits for a line on stdin.
STAGER = """
import json, sys
from pathlib import Path
from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.manifest import load_manifest

def report(done, total):
    if done >= int(sys.argv[4]):
        print("reached", flush=True)
        sys.stdin.readline()

try:
    result = stage(load_manifest(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), report)
except SetupError as error:
    sys.exit(f"refused: {error.what}")
print(json.dumps([str(result.path), result.bytes_copied, result.reused]), flush=True)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    for number, (name, size) in enumerate(SIZES.items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([65 + number]) * size)
    return directory


@pytest.fixture
def manifest(source: Path) -> Manifest:
    return make_manifest(source, name="m")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture
def full_disk(mount_small: Callable[[str], Path]) -> Path:
    """A file system of 4 MiB."""
    return mount_small("4m")


def _start(repository: Path, manifest: Manifest, source: Path, disk: Path, pause_at: int) -> subprocess.Popen[str]:
    path = source.parent / f"{manifest.digest}.yaml"
    path.write_text(manifest.to_yaml())
    return subprocess.Popen(
        [sys.executable, "-c", STAGER, path, source, disk, str(pause_at)],
        cwd=repository,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _reached(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "reached\n"


def _visible(disk: Path) -> list[str]:
    return sorted(path.name for path in disk.iterdir() if not path.name.startswith(".")) if disk.exists() else []


def _partials(disk: Path) -> list[Path]:
    return list(disk.glob(".*.partial")) if disk.exists() else []


def _same(source: Path, copy: Path) -> bool:
    names = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    return names == sorted([".staged.json", *SIZES]) and all(
        (copy / name).read_bytes() == (source / name).read_bytes() for name in SIZES
    )


def test_copy_then_reuse(source: Path, manifest: Manifest, disk: Path) -> None:
    told: list[tuple[int, int]] = []
    first = stage(manifest, source, disk, lambda done, total: told.append((done, total)))
    assert first.path == disk / f"m-{manifest.digest[:16]}"
    assert _same(source, first.path)
    assert (first.bytes_copied, first.bytes_reused, first.reused) == (3 * MIB, 0, False)
    assert told[-1] == (3 * MIB, 3 * MIB)
    assert sorted(told) == told
    stats = {name: (first.path / name).stat() for name in SIZES}
    assert json.loads((first.path / ".staged.json").read_text()) == {
        "name": "m",
        "manifest": manifest.digest,
        "files": {
            name: {
                "bytes": each.st_size,
                "mtime_ns": each.st_mtime_ns,
                "ctime_ns": each.st_ctime_ns,
                "inode": each.st_ino,
            }
            for name, each in stats.items()
        },
        "digests": {file.path: file.blake3 for file in manifest.files},
    }
    assert first.path.stat().st_mode & 0o777 == 0o755

    for path in source.rglob("*.bin"):
        path.unlink()  # a complete directory needs its source no more
    second = stage(manifest, source, disk)
    assert (second.path, second.bytes_copied, second.bytes_reused, second.reused) == (first.path, 0, 3 * MIB, True)
    assert _partials(disk) == []


def test_links_arrive_as_files(tmp_path: Path, disk: Path) -> None:
    blobs, snapshot = tmp_path / "e" / "blobs", tmp_path / "e" / "snapshots" / "r"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "b").write_bytes(b"weights")
    (snapshot / "w.bin").symlink_to("../../blobs/b")
    copy = stage(make_manifest(snapshot), snapshot, disk).path / "w.bin"
    assert not copy.is_symlink()
    assert copy.read_bytes() == b"weights"


def test_killed_halfway_then_repaired(repository: Path, source: Path, manifest: Manifest, disk: Path) -> None:
    process = _start(repository, manifest, source, disk, pause_at=2 * MIB)
    _reached(process)
    assert _visible(disk) == []
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(_partials(disk)) == 1

    result = stage(manifest, source, disk)
    assert _same(source, result.path)
    assert result.bytes_copied + result.bytes_reused == 3 * MIB
    assert result.bytes_reused >= MIB
    assert _partials(disk) == []


def test_leftovers_are_verified_before_they_are_reused(
    repository: Path, source: Path, manifest: Manifest, disk: Path
) -> None:
    process = _start(repository, manifest, source, disk, pause_at=2 * MIB)
    _reached(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    [partial] = _partials(disk)
    for path in partial.rglob("*.bin"):
        path.write_bytes(b"?" * MIB)
    (partial / "stranger").write_bytes(b"?")
    (partial / "link").symlink_to("/etc")
    result = stage(manifest, source, disk)
    assert _same(source, result.path)
    assert result.bytes_copied == 3 * MIB


def test_a_living_stagers_copy_is_left_alone(
    repository: Path, source: Path, manifest: Manifest, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where locks do not work, the first to finish wins and the other discards its own copy."""
    process = _start(repository, manifest, source, disk, pause_at=3 * MIB)
    _reached(process)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    result = stage(manifest, source, disk)
    assert not result.reused
    out, err = process.communicate("\n" * 20, timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == [str(result.path), 0, True]
    assert _same(source, result.path)
    assert _partials(disk) == []


def test_two_at_once_make_one_copy(repository: Path, source: Path, manifest: Manifest, disk: Path) -> None:
    first = _start(repository, manifest, source, disk, pause_at=MIB)
    _reached(first)
    with pytest.raises(SetupError, match=rf"another process \(pid {first.pid}\) has been staging .* for 0 s"):
        stage(manifest, source, disk, lock_wait_s=0.2)
    second = _start(repository, manifest, source, disk, pause_at=MIB)
    outs = [process.communicate("\n" * 20, timeout=60) for process in (first, second)]
    answers = [json.loads(out.splitlines()[-1]) for out, _ in outs]
    final = str(staged_path(manifest, disk))
    assert answers == [[final, 3 * MIB, False], [final, 0, True]]
    assert _visible(disk) == [Path(final).name]
    assert _partials(disk) == []


@pytest.mark.parametrize("locks", ["always granted", "not supported"])
def test_many_at_once_without_locks(
    source: Path, manifest: Manifest, disk: Path, monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    def flock(fd: int, operation: int) -> None:
        if locks == "not supported":
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    together = threading.Barrier(4, timeout=60)

    def stage_with_the_others(_: int) -> bool:
        def report(done: int, total: int) -> None:
            if done == total:
                together.wait()  # all four have copied everything, none has published

        return stage(manifest, source, disk, report).reused

    with ThreadPoolExecutor(4) as pool:
        reused = sorted(pool.map(stage_with_the_others, range(4)))
    assert reused == [False, True, True, True]
    assert _same(source, staged_path(manifest, disk))
    assert _partials(disk) == []


def test_a_changed_source_becomes_another_directory(source: Path, manifest: Manifest, disk: Path) -> None:
    first = stage(manifest, source, disk)
    before = (source / "a.bin").read_bytes()
    (source / "a.bin").write_bytes(b"Z" * MIB)
    second = stage(make_manifest(source, name="m"), source, disk)
    assert second.path != first.path
    assert (first.path / "a.bin").read_bytes() == before
    assert (second.path / "a.bin").read_bytes() == b"Z" * MIB


def test_source_of_another_size_is_refused_before_copying(source: Path, manifest: Manifest, disk: Path) -> None:
    (source / "b.bin").write_bytes(b"B" * (MIB - 1))
    told: list[int] = []
    with pytest.raises(SetupError) as refusal:
        stage(manifest, source, disk, lambda done, _: told.append(done))
    assert refusal.value.what == f"{source / 'b.bin'} is {MIB - 1} bytes; the manifest of m says {MIB}"
    assert (told, _visible(disk), _partials(disk)) == ([], [], [])


def test_source_of_another_content_is_refused_and_nothing_stays(source: Path, manifest: Manifest, disk: Path) -> None:
    (source / "sub" / "c.bin").write_bytes(b"X" * MIB)
    with pytest.raises(SetupError) as refusal:
        stage(manifest, source, disk)
    got = make_manifest(source).files[2].blake3
    wanted = manifest.files[2].blake3
    assert refusal.value.what == f"{source / 'sub/c.bin'} has digest {got}; the manifest of m says {wanted}"
    assert _visible(disk) == []
    assert _partials(disk) == []


def test_what_the_disk_returns_is_what_counts(source: Path, manifest: Manifest, disk: Path) -> None:
    def rot(done: int, total: int) -> None:
        for path in disk.glob(".m-*.partial/*.bin"):
            # The other thread may just make its file anew.
            with suppress(FileNotFoundError), path.open("r+b") as file:
                file.write(b"?")

    with pytest.raises(SetupError, match=r"\.bin reads back with digest [0-9a-f]{64} where [0-9a-f]{64} was written"):
        stage(manifest, source, disk, rot)
    assert _visible(disk) == []
    assert _partials(disk) == []


def test_missing_source(source: Path, manifest: Manifest, disk: Path) -> None:
    (source / "a.bin").unlink()
    with pytest.raises(SetupError, match=r"no file .*/source/a\.bin"):
        stage(manifest, source, disk)
    with pytest.raises(SetupError, match=r"no source directory .*/none for m"):
        stage(manifest, source / "none", disk)


def test_source_link_that_leads_out(source: Path, manifest: Manifest, disk: Path, tmp_path: Path) -> None:
    (source / "a.bin").rename(tmp_path / "a.bin")
    (source / "a.bin").symlink_to(tmp_path / "a.bin")
    with pytest.raises(SetupError, match=r"source/a\.bin leads out of its directory"):
        stage(manifest, source, disk)


@pytest.mark.parametrize("damage", ["cut", "gone", "marker gone", "marker of another", "marker no JSON"])
def test_a_damaged_directory_is_repaired(source: Path, manifest: Manifest, disk: Path, damage: str) -> None:
    final = stage(manifest, source, disk).path
    marker = final / ".staged.json"
    if damage == "cut":
        os.truncate(final / "a.bin", 5)
    elif damage == "gone":
        (final / "a.bin").unlink()
    elif damage == "marker gone":
        marker.unlink()
    else:
        marker.write_text('{"manifest": "0"}' if damage == "marker of another" else "{")
    assert not is_staged(manifest, final)
    result = stage(manifest, source, disk)
    assert result.bytes_copied == (MIB if damage in {"cut", "gone"} else 0)
    assert _same(source, final)
    assert _partials(disk) == []


def test_too_little_room_is_refused_before_copying(manifest: Manifest, source: Path, full_disk: Path) -> None:
    (full_disk / "other").write_bytes(bytes(2 * MIB))
    told: list[int] = []
    with pytest.raises(SetupError) as refusal:
        stage(manifest, source, full_disk, lambda done, _: told.append(done))
    free_bytes = shutil.disk_usage(full_disk).free
    free_bytes -= 4096  # what the lock's file takes while it holds its owner's name
    assert refusal.value.what == f"m needs {3 * MIB} bytes on {full_disk}; {free_bytes} are free"
    assert (told, _partials(full_disk)) == ([], [])


def test_a_disk_that_fills_up_meanwhile(manifest: Manifest, source: Path, full_disk: Path) -> None:
    def fill(done: int, total: int) -> None:
        with (full_disk / "other").open("ab") as other:
            other.write(bytes(MIB // 2))

    with pytest.raises(SetupError) as refusal:
        stage(manifest, source, full_disk, fill)
    assert refusal.value.what.startswith(f"{full_disk} was full (No space left on device) after ")
    assert f" of {3 * MIB} bytes of m; the partial copy is gone, " in refusal.value.what
    assert [path.name for path in full_disk.iterdir() if path.suffix != ".lock"] == ["other"]


def test_a_file_size_limit_ends_like_a_full_disk(
    repository: Path, manifest: Manifest, source: Path, disk: Path
) -> None:
    limited = STAGER.replace(
        "import json, sys", f"import json, resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, ({MIB // 2},) * 2)"
    )
    (source.parent / "m.yaml").write_text(manifest.to_yaml())
    ended = subprocess.run(
        [sys.executable, "-c", limited, source.parent / "m.yaml", source, disk, str(9 * MIB)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"refused: {disk} was full (File too large) after ")
    assert _visible(disk) == []
    assert _partials(disk) == []


def test_a_place_that_cannot_be_written(manifest: Manifest, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SetupError, match=r"staging .*/file/m-.*: .*Not a directory|File exists"):
        stage(manifest, source, tmp_path / "file")

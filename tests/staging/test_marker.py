"""Reuse of a staged directory: what is read again, what is not, and what is never served."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynamo_mlperf.files import digest_file
from dynamo_mlperf.staging import marker
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.manifest import Manifest, make_manifest
from dynamo_mlperf.staging.marker import is_staged

MIB = 1 << 20
SIZES = {"config.json": MIB - 1, "shard.bin": MIB}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    for name, size_bytes in SIZES.items():
        (directory / name).write_bytes(b"A" * size_bytes)
    return directory


@pytest.fixture
def manifest(source: Path) -> Manifest:
    return make_manifest(source, name="m")


@pytest.fixture
def final(source: Path, manifest: Manifest, tmp_path: Path) -> Path:
    return stage(manifest, source, tmp_path / "disk").path


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that a reuse reads, as it reads them."""
    names: list[str] = []

    def told(path: Path) -> str:
        names.append(path.name)
        return digest_file(path)

    monkeypatch.setattr(marker, "digest_file", told)
    return names


def _overwrite(path: Path, content: bytes, *, later_ns: int) -> None:
    """Change a file in place, without a change of size."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later_ns))


def test_an_unchanged_shard_is_not_read_again(manifest: Manifest, final: Path, hashed: list[str]) -> None:
    assert is_staged(manifest, final)
    assert hashed == ["config.json"]


@pytest.mark.parametrize(
    ("name", "later_ns"), [("config.json", 0), ("config.json", 1), ("shard.bin", 1), ("shard.bin", 0)]
)
def test_a_file_changed_in_place_is_staged_anew(
    source: Path, manifest: Manifest, final: Path, name: str, later_ns: int
) -> None:
    _overwrite(final / name, b"B", later_ns=later_ns)
    assert not is_staged(manifest, final)
    result = stage(manifest, source, final.parent)
    assert (result.path, result.bytes_copied) == (final, SIZES[name])
    assert (final / name).read_bytes() == b"A" * SIZES[name]
    assert is_staged(manifest, final)


def test_a_file_put_in_the_place_of_another_is_seen_by_its_inode(manifest: Manifest, final: Path) -> None:
    shard = final / "shard.bin"
    before = shard.stat()
    (final / "new").write_bytes(b"B" * MIB)
    os.utime(final / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (final / "new").rename(shard)
    assert not is_staged(manifest, final)


def test_a_touched_shard_that_verifies_is_read_once(manifest: Manifest, final: Path, hashed: list[str]) -> None:
    _overwrite(final / "shard.bin", b"A", later_ns=1)
    assert is_staged(manifest, final)
    assert is_staged(manifest, final)
    assert hashed == ["config.json", "shard.bin", "config.json"]


@pytest.mark.parametrize("files", [None, {}, [], {"shard.bin": None}, {"shard.bin": {"bytes": MIB}}])
def test_a_marker_without_stamps_proves_nothing(
    manifest: Manifest, final: Path, hashed: list[str], files: object
) -> None:
    content = {"name": "m", "manifest": manifest.digest} | ({} if files is None else {"files": files})
    (final / ".staged.json").write_text(json.dumps(content))
    damaged = isinstance(files, list)
    assert is_staged(manifest, final) is not damaged
    assert hashed == ([] if damaged else ["config.json", "shard.bin"])


def test_a_write_behind_the_verification_is_seen(source: Path, manifest: Manifest, tmp_path: Path) -> None:
    """The stamp is from before the digest, so that a write between digest and marker leaves it out of date."""
    disk = tmp_path / "disk"
    stage(manifest, source, disk)
    (next(disk.glob("m-*")) / ".staged.json").unlink()

    def spoil(done_bytes: int, total_bytes: int) -> None:
        if done_bytes == total_bytes:  # every file is verified, no marker is written
            [shard] = disk.glob(".m-*.partial/shard.bin")
            _overwrite(shard, b"B", later_ns=1)

    assert not is_staged(manifest, stage(manifest, source, disk, spoil).path)


def test_a_pipe_in_the_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "empty").touch()
    manifest = make_manifest(source, name="m")
    final = stage(manifest, source, tmp_path / "disk").path
    (final / "empty").unlink()
    os.mkfifo(final / "empty")
    assert not is_staged(manifest, final)

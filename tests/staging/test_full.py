"""Every byte read again: what stamps cannot tell."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.full import verify_full
from dynamo_mlperf.staging.manifest import Manifest, make_manifest
from dynamo_mlperf.staging.marker import is_staged, stamp

MIB = 1 << 20


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a.bin").write_bytes(b"A" * MIB)
    (source / "sub" / "b.bin").write_bytes(b"B" * (MIB + 1))
    return make_manifest(source, name="m")


@pytest.fixture
def final(tmp_path: Path, manifest: Manifest) -> Path:
    return stage(manifest, tmp_path / "source", tmp_path / "disk").path


def _rot(final: Path) -> None:
    """Change a byte as a disk would: neither size nor any time says so."""
    with (final / "a.bin").open("r+b") as file:
        file.write(b"?")
        os.fsync(file)
    marker = final / ".staged.json"
    content = json.loads(marker.read_text())
    content["files"]["a.bin"] = stamp(final / "a.bin")
    marker.write_text(json.dumps(content))


def test_a_right_directory(final: Path, manifest: Manifest) -> None:
    told: list[tuple[int, int]] = []
    assert verify_full(final, report=lambda done, total: told.append((done, total))) == 2 * MIB + 1
    assert told[-1] == (2 * MIB + 1, 2 * MIB + 1)
    assert verify_full(final, manifest) == 2 * MIB + 1


@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_rotten_file_is_named(final: Path, manifest: Manifest, *, with_manifest: bool) -> None:
    _rot(final)
    assert is_staged(manifest, final), "the stamps see nothing"
    with pytest.raises(SetupError) as refusal:
        verify_full(final, manifest if with_manifest else None)
    assert refusal.value.what.startswith(f"{final}: 1 of 2 files are not as staged: a.bin: digest ")
    assert refusal.value.what.endswith(f"{manifest.files[0].blake3} wanted")


def test_what_the_refusal_says_to_do_works(tmp_path: Path, final: Path, manifest: Manifest) -> None:
    _rot(final)
    (final / ".staged.json").unlink()
    assert stage(manifest, tmp_path / "source", tmp_path / "disk").bytes_copied == MIB
    verify_full(final)


def test_missing_and_cut_files_are_named(final: Path) -> None:
    (final / "a.bin").unlink()
    os.truncate(final / "sub" / "b.bin", 5)
    with pytest.raises(
        SetupError, match=r"2 of 2 files .*: a\.bin: No such file .*; sub/b\.bin: 5 bytes, 1048577 wanted"
    ):
        verify_full(final)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"manifest": "0", "files": {}, "digests": {}}'])
def test_without_a_marker_that_can_be_trusted_a_manifest_is_asked_for(final: Path, content: str | None) -> None:
    (final / ".staged.json").unlink()
    if content is not None:
        (final / ".staged.json").write_text(content)
    with pytest.raises(SetupError) as refusal:
        verify_full(final)
    assert refusal.value.action == "name its manifest: --manifest FILE"

"""Copies and digests of one file, and a file server that forgets handles."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from dynamo_mlperf.staging import blocks
from dynamo_mlperf.staging.blocks import copy_file, digest_source, digest_written

BLOCK_BYTES = 4096


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of five blocks and a bit."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(blocks, "HASHED_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(blocks, "MOVED_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(blocks, "STALE_PAUSE_S", 0.0)
    path = tmp_path / "source"
    path.write_bytes(os.urandom(5 * BLOCK_BYTES + 17))
    return path


def _forgetful(call: Callable[..., int], times: int) -> tuple[Callable[..., int], list[int]]:
    """`call` that fails with ESTALE each second time, `times` times in all."""
    calls: list[int] = []

    def wrapped(*given: int) -> int:
        calls.append(1)
        if len(calls) % 2 == 0 and len(calls) <= 2 * times:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return call(*given)

    return wrapped, calls


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES + 1])
@pytest.mark.parametrize("from_device", [False, True])
def test_digests_of_all_sizes(tmp_path: Path, source: Path, *, size: int, from_device: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(source.read_bytes()[:size])
    assert digest_written(path, from_device=from_device) == blake3(path.read_bytes()).hexdigest()


def test_a_stale_handle_is_opened_anew_and_the_copy_goes_on(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sendfile, calls = _forgetful(os.sendfile, blocks.STALE_TRIES - 1)
    monkeypatch.setattr(os, "sendfile", sendfile)
    moved: list[int] = []
    copy_file(source, tmp_path / "copy", moved.append, lambda: False)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert sum(moved) == source.stat().st_size, "no block is copied twice"
    assert len(calls) == len(moved) + 1 + blocks.STALE_TRIES - 1


def test_a_handle_that_stays_stale_is_an_error(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sendfile, _ = _forgetful(os.sendfile, blocks.STALE_TRIES)
    monkeypatch.setattr(os, "sendfile", sendfile)
    with pytest.raises(OSError, match="Stale file handle"):
        copy_file(source, tmp_path / "copy", lambda _: None, lambda: False)


def test_a_digest_begins_again_after_a_stale_handle(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, _ = _forgetful(os.preadv, 1)
    monkeypatch.setattr(os, "preadv", preadv)
    assert digest_source(source) == blake3(source.read_bytes()).hexdigest()


def test_other_errors_are_not_tried_again(tmp_path: Path, source: Path) -> None:
    with pytest.raises(FileNotFoundError):
        digest_source(source.with_name("none"))


def test_a_copy_that_is_stopped_stays_short(tmp_path: Path, source: Path) -> None:
    moved: list[int] = []
    copy_file(source, tmp_path / "copy", moved.append, lambda: len(moved) == 2)
    assert (tmp_path / "copy").stat().st_size == 2 * BLOCK_BYTES

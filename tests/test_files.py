"""Files: whole or not there, also when the disk is full."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.files import append_json_line, digest_file, read_json_lines, write_atomic, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file may grow beyond so many bytes: what a full disk does to a writer, for this process alone."""
    limit = 4096
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "x"
    write_atomic(path, "old")
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        write_atomic(path, "x" * (small_files + 1))
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_line_that_does_not_fit_leaves_no_half(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "events.jsonl"
    append_json_line(path, {"text": "a" * (small_files - 200)})
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        append_json_line(path, {"text": "b" * 400})
    append_json_line(path, {"text": "c"})
    assert [line["text"][0] for line in read_json_lines(path)] == ["a", "c"]


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": ')
    assert read_json_lines(path) == [{"a": 1}, {"a": 2}]
    assert read_json_lines(tmp_path / "none") == []


def test_the_digest_is_blake3(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_bytes(b"")
    # Source: the BLAKE3 specification's test vector for no input.
    assert digest_file(path) == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"

"""Files: whole or not there, also when the disk is full."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.files import digest_file, read_json_lines, shell_word, write_atomic, write_json

LIMIT_BYTES = 4096


def with_small_files(script: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process whose files may not grow beyond LIMIT_BYTES: what a full disk does to a writer."""
    lines = (
        "import errno, os, resource, signal",
        "from pathlib import Path",
        "from dynamo_mlperf.files import append_json_line, write_atomic",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))",
    )
    argv = (sys.executable, "-c", "\n".join((*lines, script)))
    return subprocess.run(argv, cwd=directory, text=True, capture_output=True, check=False)


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "x", "old")
    done = with_small_files(f"write_atomic(Path('x'), 'x' * {LIMIT_BYTES + 1})", tmp_path)
    assert done.stderr.splitlines()[-1].endswith(f"{os.strerror(errno.EFBIG)}: 'x'")
    assert (tmp_path / "x").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A full disk names no file by itself, and nobody knows the one beside."""
    script = f"try:\n    write_atomic(Path('x'), 'x' * {LIMIT_BYTES + 1})\nexcept OSError as problem:\n    print(problem.filename)"
    assert with_small_files(script, tmp_path).stdout == "x\n"
    with pytest.raises(FileNotFoundError) as caught:
        write_atomic(tmp_path / "nowhere" / "x", "")
    assert caught.value.filename == str(tmp_path / "nowhere" / "x")


def test_a_line_that_does_not_fit_leaves_no_half(tmp_path: Path) -> None:
    script = (
        f"path = Path('events.jsonl')\nappend_json_line(path, {{'text': 'a' * {LIMIT_BYTES - 200}}})\n"
        "try:\n    append_json_line(path, {'text': 'b' * 400})\nexcept OSError as problem:\n    print(problem.strerror)\n"
        "append_json_line(path, {'text': 'c'})"
    )
    done = with_small_files(script, tmp_path)
    assert done.stdout == os.strerror(errno.ENOSPC) + "\n", done.stderr
    assert [line["text"][0] for line in read_json_lines(tmp_path / "events.jsonl")] == ["a", "c"]


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


@pytest.mark.parametrize("name", ["plain", "a b", "-x", "it's $HOME", "new\nline", "*"])
def test_a_path_is_one_word_of_a_command_and_no_option(name: str) -> None:
    done = subprocess.run(
        f'for word in {shell_word(name)}; do printf %s "$word"; done',
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout) == Path(name)
    assert not done.stdout.startswith("-")

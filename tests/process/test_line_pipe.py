"""The pipe that a probe program's lines come through: how far its writer gets, what is kept, and when that fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.line_pipe import LinePipe

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = "import os\nfor n in range(40):\n    os.write(1, b'%d\\n' % n)\n    os.write(2, b'%d\\n' % n)\n"
"""Says on stderr how many lines it was rid of."""


def _started(pipe: LinePipe, program: str, said: Path) -> subprocess.Popen[bytes]:
    with said.open("wb") as log:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=pipe.write_fd, stderr=log)
    pipe.hand_over()
    return child


def _until(said: Path, lines: int) -> None:
    until = time.monotonic() + 60
    while said.read_bytes().count(b"\n") < lines and time.monotonic() < until:
        time.sleep(0.02)


def test_a_writer_is_a_line_ahead_and_no_more(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with LinePipe(tmp_path / "kept") as pipe:
        child = _started(pipe, COUNTS, said)
        for read in range(5):
            _until(said, read + 1)
            time.sleep(0.2)  # were there room, more would be said by now
            assert said.read_text().split() == [str(each) for each in range(read + 1)]
            assert pipe.read(10.0) == f"{read}\n".encode()
        left = b""
        while child.poll() is None:
            left += pipe.read(0.01)
        left += pipe.rest()
    assert left.split() == [str(each).encode() for each in range(5, 40)]
    assert (tmp_path / "kept").read_text().split() == [str(each) for each in range(40)]


def test_a_wide_one_makes_nobody_wait(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with LinePipe(tmp_path / "kept") as pipe:
        pipe.widen()
        child = _started(pipe, COUNTS, said)
        assert child.wait(timeout=60) == 0  # nobody has read anything
        assert pipe.rest().count(b"\n") == 40


def test_who_writes_on_and_on_is_left_behind(tmp_path: Path) -> None:
    with LinePipe(tmp_path / "kept") as pipe:
        child = _started(pipe, "import os\nwhile True: os.write(1, b'x' * 4000)", tmp_path / "said")
        try:
            assert len(pipe.read(60.0)) == 4000
            assert len(pipe.rest()) < 2 << 20
        finally:
            child.kill()
            child.wait()


def test_the_end_of_the_output_is_no_line_and_takes_no_core(tmp_path: Path) -> None:
    with LinePipe(tmp_path / "kept") as pipe:
        pipe.hand_over()
        used_s = time.process_time()
        assert [pipe.read(0.1) for _ in range(5)] == [b""] * 5
        assert time.process_time() - used_s < 0.3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110 - asked at import
def test_what_cannot_be_kept_is_told_once_and_read_all_the_same(tmp_path: Path) -> None:
    full = tmp_path / "kept"
    full.symlink_to("/dev/full")
    with LinePipe(full) as pipe:
        child = _started(pipe, COUNTS, tmp_path / "said")
        with pytest.raises(SetupError, match=r"kept cannot be written: No space left on device") as told:
            pipe.read(60.0)
        assert "make room there" in told.value.action
        while child.poll() is None:
            pipe.read(0.01)
        assert child.poll() == 0

"""Who still writes a partial directory: told from its name, without locks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.staging.owner import is_abandoned, private_name

SCRIPT = "from dynamo_mlperf.staging.owner import private_name; print(private_name('m', 0), flush=True); input()"


def _name_of_another_process(repository: Path, *, alive: bool) -> tuple[str, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    if not alive:
        process.communicate("\n", timeout=60)
    return name, process


def test_own_names_are_hidden_different_and_alive(tmp_path: Path) -> None:
    first, second = private_name("m-1.2", 0), private_name("m-1.2", 1)
    assert first != second
    assert first.startswith(".m-1.2.")
    assert not is_abandoned(tmp_path / first)


def test_a_living_and_a_dead_writer(tmp_path: Path, repository: Path) -> None:
    name, process = _name_of_another_process(repository, alive=True)
    assert not is_abandoned(tmp_path / name)
    process.communicate("\n", timeout=60)
    assert is_abandoned(tmp_path / name)


def test_a_writer_that_is_dead_but_not_yet_reaped(tmp_path: Path, repository: Path) -> None:
    name, process = _name_of_another_process(repository, alive=True)
    os.kill(process.pid, 9)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_abandoned(tmp_path / name)
    process.communicate()


def test_a_process_number_used_again(tmp_path: Path) -> None:
    name = re.sub(rf"-{os.getpid()}-\d+-", f"-{os.getpid()}-1-", private_name("m", 0))
    assert is_abandoned(tmp_path / name)


def test_a_writer_before_the_last_boot(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    other = f"{int(boot, 16) ^ 1:08x}"
    assert is_abandoned(tmp_path / private_name("m", 0).replace(boot, other))


def test_a_writer_in_another_namespace_counts_as_dead_after_an_hour_of_silence(tmp_path: Path) -> None:
    space = Path("/proc/self/ns/pid").stat().st_ino
    partial = tmp_path / private_name("m", 0).replace(f"-{space}-", f"-{space + 1}-")
    (partial / "sub").mkdir(parents=True)
    file = partial / "sub" / "weights"
    file.write_bytes(b"")
    assert not is_abandoned(partial)
    for path in (file, partial / "sub", partial):
        os.utime(path, (0, 0))
    assert is_abandoned(partial)
    os.utime(file)
    assert not is_abandoned(partial)


@pytest.mark.parametrize("name", [".m.partial", "m", ".m.12-3.partial"])
def test_what_staging_did_not_make_is_left_alone(tmp_path: Path, name: str) -> None:
    assert not is_abandoned(tmp_path / name)

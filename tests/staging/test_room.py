"""Room on a disk of 4 MiB: refused with numbers, made where that is allowed, and never at the cost of what is in use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.staging import room, use
from dynamo_mlperf.staging.copy import room_for, stage, staged_path
from dynamo_mlperf.staging.manifest import Manifest, make_manifest
from dynamo_mlperf.staging.use import in_use, mark_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KIB = 1024
SIZE = 1200 * KIB
LOCK_BYTES = 4 * KIB
"""What the lock's file takes while it holds its owner's name."""
NAME = f"run-{os.getpid()}"  # processes of any test on this machine are seen
RUN = f"{NAME}@host@1@2@3"


@pytest.fixture
def disk(mount_small: Callable[[str], Path]) -> Path:
    """A file system of 4 MiB: three models fit, a fourth does not."""
    return mount_small("4m")


class Models:
    """Models a to d of 1200 KiB each, with sources elsewhere."""

    def __init__(self, root: Path, disk: Path) -> None:
        self.root, self.disk = root, disk
        self.manifests: dict[str, Manifest] = {}
        for name in "abcd":
            (root / name).mkdir(parents=True)
            (root / name / "w.bin").write_bytes(os.urandom(SIZE))
            self.manifests[name] = make_manifest(root / name, name=name)

    def stage(self, name: str, **keys: object) -> list[str]:
        told: list[str] = []
        stage(self.manifests[name], self.root / name, self.disk, notice=told.append, **keys)  # type: ignore[arg-type]
        return told

    def place(self, name: str) -> Path:
        return staged_path(self.manifests[name], self.disk)

    def used(self, name: str, age_s: float) -> None:
        """Let the last use of a model be so long ago."""
        os.utime(self.place(name) / ".staged.json", (time.time() - age_s,) * 2)

    def staged(self) -> str:
        return "".join(name for name in "abcd" if self.place(name).is_dir())


@pytest.fixture
def models(tmp_path: Path, disk: Path) -> Models:
    """a, b and c are staged; b is the least recently used, then a."""
    made = Models(tmp_path / "sources", disk)
    for name in "abc":
        made.stage(name)
    made.used("a", 2000)
    made.used("b", 3000)
    made.used("c", 1000)
    return made


@contextmanager
def _living_run(run: str) -> Iterator[None]:
    """A process of a run on this node."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_VARIABLE: run})
    try:
        deadline = time.monotonic() + 60
        while psutil.Process(process.pid).environ().get(RUN_VARIABLE) != run:  # shown a little after it has begun
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


def test_nothing_is_evicted_unasked(models: Models) -> None:
    free_bytes = shutil.disk_usage(models.disk).free
    with pytest.raises(SetupError) as refusal:
        models.stage("d")
    assert refusal.value.what == f"d needs {SIZE} bytes on {models.disk}; {free_bytes - LOCK_BYTES} are free"
    names = ", ".join(models.place(name).name for name in "bac")
    assert re.fullmatch(
        rf"allow eviction \(evict: true in the site file, or --evict\) of \d+ bytes in {names}", refusal.value.action
    )
    assert models.staged() == "abc"
    assert shutil.disk_usage(models.disk).free == free_bytes, "free space is back where it was"


def test_the_least_recently_used_goes_and_no_more(models: Models) -> None:
    [text] = models.stage("d", evict=True)
    assert re.fullmatch(rf"evicted {models.place('b').name}, \d+ bytes", text)
    assert models.staged() == "acd"
    assert list(models.disk.glob(".*.partial")) == []


def test_use_without_a_copy_counts_as_use(models: Models) -> None:
    models.stage("b")
    models.stage("d", evict=True)
    assert models.staged() == "bcd"


def test_what_a_living_run_uses_stays(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "START_S", 0.0)
    monkeypatch.setenv(RUN_VARIABLE, RUN)
    models.stage("b")
    models.used("b", 3000)
    monkeypatch.delenv(RUN_VARIABLE)
    with _living_run(RUN):
        assert in_use([models.place("b")]) == {models.place("b"): f"run {NAME} has processes on this node"}
        models.stage("d", evict=True)
    assert models.staged() == "bcd"
    assert in_use([models.place("b")]) == {}, "the run is over"
    assert list(models.disk.glob(".*.use")) == []


def test_where_all_is_in_use_nothing_goes_and_the_refusal_says_why(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, RUN)
    for name in "abc":
        mark_in_use(models.place(name), None)
    monkeypatch.delenv(RUN_VARIABLE)
    with _living_run(RUN), pytest.raises(SetupError) as refusal:
        models.stage("d", evict=True)
    told = ", ".join(f"{models.place(name).name} (run {NAME} has processes on this node)" for name in "abc")
    assert refusal.value.what.endswith(f"; in use: {told}")
    assert models.staged() == "abc"


def test_nothing_goes_where_that_would_not_be_enough(models: Models) -> None:
    (models.root / "d" / "more.bin").write_bytes(bytes(4 << 20))
    models.manifests["d"] = make_manifest(models.root / "d", name="d")
    with pytest.raises(SetupError, match=r"d needs \d+ bytes on .*; \d+ are free; \d+ more could be evicted"):
        models.stage("d", evict=True)
    assert models.staged() == "abc"


def test_an_open_file_is_use(models: Models) -> None:
    with (models.place("b") / "w.bin").open("rb") as file:
        held = subprocess.Popen(["sleep", "600"], stdin=file)
    try:
        assert in_use([models.place("b")]) == {models.place("b"): f"process {held.pid} has files of it open"}
        models.stage("d", evict=True)
        assert models.staged() == "bcd"
    finally:
        held.kill()
        held.wait()


def test_what_a_dead_stager_left_goes_first(models: Models, repository: Path) -> None:
    script = "from dynamo_mlperf.staging.owner import private_name; print(private_name('x-0123', 0))"
    name = subprocess.check_output([sys.executable, "-c", script], cwd=repository, text=True).strip()
    shutil.rmtree(models.place("c"))
    (models.disk / name).mkdir()
    (models.disk / name / "w.bin").write_bytes(bytes(SIZE))
    [text] = models.stage("d", evict=True)
    assert text.startswith(f"evicted {name}, ")
    assert models.staged() == "abd"


def test_directories_that_staging_did_not_make_stay(models: Models) -> None:
    shutil.rmtree(models.place("b"))
    mine = models.disk / "results"
    mine.mkdir()
    (mine / "w.bin").write_bytes(bytes(SIZE))
    (mine / ".staged.json").write_text('{"manifest": "0123456789abcdef0"}')
    os.utime(mine / ".staged.json", (0, 0))
    models.stage("d", evict=True)
    assert mine.is_dir()
    assert models.staged() == "cd"


def test_one_that_comes_into_use_while_it_goes_is_given_back(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    place = models.place("b")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        if path == place:
            monkeypatch.setenv(RUN_VARIABLE, RUN)
            mark_in_use(place, None)
            monkeypatch.delenv(RUN_VARIABLE)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert not room._evict(place)
    assert (place / "w.bin").stat().st_size == SIZE


def test_one_that_is_removed_while_it_is_looked_at_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    going = tmp_path / "m-0123" / "sub"
    going.mkdir(parents=True)
    (going / "w.bin").write_bytes(bytes(SIZE))
    (tmp_path / "m-0123" / "v.bin").write_bytes(bytes(8 * KIB))
    scandir = os.scandir

    def late(path: os.PathLike[str] | str) -> object:
        if Path(path) == going:
            monkeypatch.undo()
            shutil.rmtree(going)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert 8 * KIB <= room._size_bytes(tmp_path / "m-0123") < SIZE


def test_one_that_is_being_staged_stays(models: Models) -> None:
    with room_lock(models.place("b")):
        models.stage("d", evict=True)
    assert models.staged() == "bcd"


@contextmanager
def room_lock(place: Path) -> Iterator[None]:
    """What a stager of that directory holds."""
    from dynamo_mlperf.staging.lock import held_lock

    with held_lock(place.parent / f".{place.name}.lock", 0.0, lambda _: None):
        yield


def test_a_copy_that_fails_gives_its_room_back(models: Models) -> None:
    shutil.rmtree(models.place("a"))
    before_bytes = shutil.disk_usage(models.disk).free
    content = bytearray((models.root / "d" / "w.bin").read_bytes())
    content[-1] ^= 1
    (models.root / "d" / "w.bin").write_bytes(content)
    with pytest.raises(SetupError, match="has digest"):
        models.stage("d")
    assert shutil.disk_usage(models.disk).free == before_bytes


def test_a_look_changes_nothing(models: Models) -> None:
    found = room_for(models.manifests["d"], models.disk)
    assert (found.needed_bytes, [path.name[0] for path, _ in found.evictable]) == (SIZE, ["b", "a", "c"])
    assert room_for(models.manifests["a"], models.disk).needed_bytes == 0
    assert room_for(models.manifests["d"], models.disk / "not" / "yet").needed_bytes == SIZE
    assert models.staged() == "abc"


@pytest.mark.parametrize(("verdict", "silent_s", "alive"), [(True, 0, False), (False, 0, True), (False, 4000, False)])
def test_a_run_without_processes_here_lives_while_its_directory_is_young(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, verdict: bool, silent_s: float, alive: bool
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "events.jsonl").touch()
    if verdict:
        (run_dir / "verdict.json").touch()
    then_s = time.time() - silent_s
    os.utime(run_dir / "events.jsonl", (then_s, then_s))
    monkeypatch.setenv(RUN_VARIABLE, RUN)
    with monkeypatch.context() as past:
        past.setattr(time, "time", lambda: then_s)
        mark = mark_in_use(tmp_path / "m-0123", run_dir)
    assert mark is not None
    assert (tmp_path / "m-0123" in in_use([tmp_path / "m-0123"])) is alive
    assert mark.exists() is alive


def test_marks_of_ended_runs_do_not_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {}
    for name in ("ended", "young", "next"):
        run_dir = tmp_path / name
        run_dir.mkdir()
        (run_dir / "events.jsonl").touch()
        monkeypatch.setenv(RUN_VARIABLE, f"{name}@1")
        marks[name] = mark_in_use(tmp_path / f"m-{name}", run_dir)
        if name == "ended":
            (run_dir / "verdict.json").touch()
    assert [name for name, mark in marks.items() if mark and mark.exists()] == ["young", "next"]

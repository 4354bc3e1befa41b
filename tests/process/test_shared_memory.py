"""Shared memory of engines that were killed: found by what they map, removed only when nobody does."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.process.command import RUN_VARIABLE, inherited_environment
from dynamo_mlperf.process.machine import SHARED_MEMORY, end_leftovers, make_scratch, read_machine
from dynamo_mlperf.process.shared_memory import SharedMemoryNotes, mapped_by, noted, remove_unmapped

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = (
    "import sys, time\nfrom multiprocessing import shared_memory, resource_tracker\n"
    "held = shared_memory.SharedMemory(create=True, size=4096)\nresource_tracker.unregister(held._name, 'shared_memory')\n"
    "print(held.name, flush=True)\ntime.sleep(600)"
)


class Engine:
    """A process that holds a segment as a killed engine does: without a tracker that would free it."""

    def __init__(self, mark: str = "") -> None:
        environment = {**inherited_environment(), **({RUN_VARIABLE: mark} if mark else {})}
        self.process = subprocess.Popen(
            (sys.executable, "-c", HOLD), stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.path = "/dev/shm/" + self.process.stdout.readline().strip()
        self.inode = Path(self.path).stat().st_ino

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.kill()
    Path(made.path).unlink(missing_ok=True)


def test_a_segment_outlives_a_killed_engine_until_it_is_removed(tmp_path: Path, engine: Engine) -> None:
    notes = SharedMemoryNotes(tmp_path / "notes")
    notes.look(now=True)
    assert engine.inode in mapped_by([engine.process.pid])
    assert notes.remove() == [], "nothing is removed while it is mapped"
    engine.kill()
    assert Path(engine.path).exists()
    assert notes.remove() == [engine.path]
    assert not Path(engine.path).exists()
    assert str(engine.inode) in (tmp_path / "notes").read_text().splitlines()


def test_what_another_process_maps_stays(engine: Engine) -> None:
    ours = shared_memory.SharedMemory(engine.path.rpartition("/")[2])
    resource_tracker.unregister(ours._name, "shared_memory")  # type: ignore[attr-defined]
    engine.kill()
    assert remove_unmapped({engine.inode}) == []
    assert Path(engine.path).exists()
    ours.close()
    assert remove_unmapped({engine.inode}) == [engine.path]


def test_nothing_outside_shared_memory_is_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "file"
    elsewhere.write_text("kept")
    (tmp_path / "notes").write_text(f"{elsewhere.stat().st_ino}\n../../etc/hostname\n-1\n")
    assert noted(tmp_path / "notes") == {elsewhere.stat().st_ino}
    remove_unmapped(noted(tmp_path / "notes"))
    assert elsewhere.exists()


def test_a_semaphore_is_known_by_what_it_is_not_by_its_name(tmp_path: Path, engine: Engine) -> None:
    notes = SharedMemoryNotes(tmp_path / "notes")
    notes.look(now=True)
    renamed = Path(engine.path).rename(engine.path + "-linked")
    engine.kill()
    assert notes.remove() == [str(renamed)]


def test_leftovers_of_a_killed_controller_take_their_memory_with_them(tmp_path: Path) -> None:
    import socket

    namespace = Path("/proc/self/ns/pid").stat().st_ino
    gone = f"old@{socket.gethostname()}@{namespace}@{2**22 - 1}@1"
    running, ended = Engine(gone), Engine()
    scratch = make_scratch(f"test-{os.getpid()}", gone)
    (scratch / SHARED_MEMORY).write_text(f"{ended.inode}\n")
    ended.kill()
    facts = read_machine(tmp_path)
    assert running.process.pid in facts.leftovers
    assert str(scratch) in facts.abandoned
    removed = end_leftovers(facts)
    running.kill()
    assert {running.path, ended.path} <= set(removed)
    assert not any(Path(path).exists() for path in (running.path, ended.path, scratch))

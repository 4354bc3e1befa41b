"""Locks: taken over with a notice when their holder has died, done without where they cannot be had."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging import lock
from dynamo_mlperf.staging.copy import stage, staged_path
from dynamo_mlperf.staging.lock import held_lock, is_locked
from dynamo_mlperf.staging.manifest import make_manifest
from dynamo_mlperf.staging.marker import is_staged
from dynamo_mlperf.staging.owner import identity

STAGER = """
import sys
from pathlib import Path
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.manifest import load_manifest

def report(done, total):
    if done == total:  # everything is copied, nothing is published
        print("reached", flush=True)
        sys.stdin.readline()

result = stage(load_manifest(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]), report)
print(result.bytes_copied, flush=True)
"""


def _dead_identity(repository: Path) -> str:
    script = "from dynamo_mlperf.staging.owner import identity; print(identity())"
    return subprocess.check_output([sys.executable, "-c", script], cwd=repository, text=True).strip()


def test_a_lock_left_by_a_dead_process_is_taken_over_with_a_notice(tmp_path: Path, repository: Path) -> None:
    path, dead = tmp_path / "lock", _dead_identity(repository)
    path.write_text(dead)
    told: list[str] = []
    with held_lock(path, 0.0, told.append):
        assert path.read_text() == identity()
        assert is_locked(path)
    assert told == [f"lock {path} was left by process {dead.split('-')[3]}, which has ended; taken over"]
    assert not is_locked(path)
    with held_lock(path, 0.0, told.append):
        pass
    assert len(told) == 1, "a lock that was given back leaves nothing to tell"


def test_a_dead_holders_lock_that_stays_taken_is_done_without(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an NFS server does that has not yet noticed that its client is gone."""
    monkeypatch.setattr(lock, "RECLAIM_S", 0.2)
    path, dead = tmp_path / "lock", _dead_identity(repository)
    path.write_text(dead)
    told: list[str] = []
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with held_lock(path, 60.0, told.append):
            assert told == [
                f"process {dead.split('-')[3]} has ended but its lock {path} stays taken; going on without it"
            ]


def test_a_living_holder_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RECLAIM_S", 0.0)
    path = tmp_path / "lock"
    with (
        held_lock(path, 0.0, lambda _: None),
        pytest.raises(SetupError, match=rf"pid {os.getpid()}\) has been staging"),
        held_lock(path, 0.3, lambda _: None),
    ):
        pytest.fail("two hold it")


@pytest.mark.compiler
def test_two_stagers_that_both_hold_the_lock(tmp_path: Path, repository: Path) -> None:
    """With a C library whose flock grants everything, two processes copy at once; one is first, both are right."""
    shim = tmp_path / "grant.so"
    (tmp_path / "grant.c").write_text("int flock(int fd, int operation) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, tmp_path / "grant.c"], check=True)
    source, disk = tmp_path / "source", tmp_path / "disk"
    source.mkdir()
    (source / "w.bin").write_bytes(os.urandom(1 << 20))
    manifest = make_manifest(source, name="m")
    (tmp_path / "m.yaml").write_text(manifest.to_yaml())
    stagers = [
        subprocess.Popen(
            [sys.executable, "-c", STAGER, tmp_path / "m.yaml", source, disk],
            cwd=repository,
            env={**os.environ, "LD_PRELOAD": str(shim)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in stagers:
        assert each.stdout is not None
        assert each.stdout.readline() == "reached\n", "the second did not wait for the first"
    copied = sorted(int(each.communicate("\n", timeout=60)[0]) for each in stagers)
    assert copied == [0, 1 << 20]
    assert is_staged(manifest, staged_path(manifest, disk))
    assert list(disk.glob(".*.partial")) == []
    assert stage(manifest, source, disk).reused

"""Stop requests: whatever the job is doing, it ends with the signal's code, says so, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.staging.copy import staged_path
from dynamo_mlperf.staging.manifest import load_manifest
from tests.job.chain import Place, Run, wait_until

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("stops"))


@dataclass
class Slow:
    """A run that stays in one phase for far longer than it takes to stop it there."""

    edits: Mapping[str, Any] = field(default_factory=dict)
    role: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    etcd: str = ""
    lock: bool = False


SLOW = {
    "check": Slow(python='case "$1" in -c) exec sleep 600;; esac'),
    "stage": Slow(lock=True),
    "start": Slow(etcd="exec sleep 600"),
    "ready": Slow(python='case "$*" in *"--disaggregation-mode decode"*) exec sleep 600;; esac'),
    "canary": Slow(role={"args": {"speedup-ratio": 0.005}}),
    "warmup": Slow({"timeouts": {"warmup_requests": 44}}, {"args": {"speedup-ratio": 0.05}}),
    "measure": Slow({"reduced": {"min_duration_s": 60}}),
}


@contextlib.contextmanager
def slow_runs(place: Place, slow: Slow, count: int = 2) -> Iterator[list[Run]]:
    """Start such runs side by side, with programs in the place of real ones that take their time."""
    local, env = place.local, place.environment()
    keys: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        if slow.python:
            keys["engine_python"] = str(place.program("python", f'{slow.python}\nexec $PYTHON "$@"'))
        if slow.etcd:
            env["PATH"] = f"{place.program('etcd', slow.etcd).parent}:{env['PATH']}"
        if slow.lock:
            local = place.root / "locked-disk"
            stack.enter_context(staging_lock(place, local))
        site = str(place.site(local_path=str(local), **keys))
        topologies = [place.topology(slow.edits, role=slow.role) for _ in range(count)]
        yield [stack.enter_context(place.run(topology, "--site", site, env=env)) for topology in topologies]


@contextlib.contextmanager
def staging_lock(place: Place, local: Path) -> Iterator[None]:
    """Be another stager of the same weights that does not come to an end."""
    local.mkdir(exist_ok=True)
    final = staged_path(load_manifest(place.root / "staging" / "tiny-qwen3-vl-moe.yaml"), local)
    with (local / f".{final.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


BUSY: Mapping[str, Callable[[Run], object]] = {
    "check": lambda run: run.wait_for("process_started", process="versions"),
    "stage": lambda run: run.wait_for("process_started", process="stage-0"),
    "start": lambda run: run.wait_for("process_started", process="etcd"),
    "measure": Run.wait_until_measuring,
}
"""What shows that a phase is in full swing, where its beginning does not."""


@pytest.mark.parametrize("phase", SLOW)
def test_a_signal_ends_the_run_in_every_phase(place: Place, phase: str) -> None:
    with slow_runs(place, SLOW[phase], len(CODES)) as runs:
        for run, number in zip(runs, CODES, strict=True):
            run.wait_for_phase(phase)
            if phase in BUSY:
                BUSY[phase](run)
            run.send(number)
        for run, number in zip(runs, CODES, strict=True):
            was_interrupted(run, phase, number)


def was_interrupted(run: Run, phase: str, number: signal.Signals) -> None:
    ended = run.end()
    verdict = run.verdict()
    assert (ended.status, verdict["verdict"]) == (CODES[number], "FAILED"), ended.stderr
    reason = verdict["reasons"][0]
    assert (reason["check"], reason["got"]) == ("interrupted", f"stopped by {number.name}")
    assert verdict["completed_qps"] is None
    assert run.phases()[-3:] == [phase, "stop", "record"]
    assert ended.stdout.splitlines()[-1].startswith("FAILED (interrupted) ")
    assert "Traceback" not in ended.stderr
    run.assert_nothing_left()


BRIEF = {"measure": {"target_qps": 40}, "reduced": {"min_duration_s": 1}}
SLOW_TO_END = """case "$*" in *dynamo.frontend*)
trap '' INT TERM
$PYTHON "$@" &
wait
esac"""


def test_a_signal_while_stopping_leaves_the_verdict_as_it_was(place: Place) -> None:
    with slow_runs(place, Slow(BRIEF, python=SLOW_TO_END), len(CODES)) as runs:
        for run, number in zip(runs, CODES, strict=True):
            run.wait_for_phase("stop")
            run.send(number)
        for run in runs:
            ended = run.end()
            assert (run.verdict()["verdict"], ended.status) == ("VALID", 0), ended.stderr
            assert run.phases()[-2:] == ["stop", "record"]
            run.assert_nothing_left()


LINGERING = """case "$*" in *"--disaggregation-mode decode"*)
trap 'sleep 3; exit 0' INT
trap '' TERM
echo up
while :; do sleep 0.1; done;;
esac"""


def says_up(log: Path) -> bool:
    return log.read_text() == "up\n"


def test_a_second_signal_asks_for_haste(place: Place) -> None:
    """A worker that needs three seconds to end is given them after one signal, and is killed after two."""
    with slow_runs(place, Slow(python=LINGERING)) as (once, twice):
        for run in (once, twice):
            run.wait_for("process_ready", process="prefill-0")
            wait_until(partial(says_up, run.paths.log_of("decode-0")))
            run.send(signal.SIGINT)
        twice.wait_for_phase("stop")
        twice.send(signal.SIGINT)
        assert [run.end().status for run in (once, twice)] == [130, 130]
        ends = [run.wait_for("process_exited", process="decode-0")["status"] for run in (once, twice)]
        assert ends == [0, -signal.SIGKILL]
        once.assert_nothing_left()
        twice.assert_nothing_left()

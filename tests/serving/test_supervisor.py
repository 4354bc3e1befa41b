"""The supervisor with real processes: the first death is the cause, stopping goes in layers, signals end a wait."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ExitCode, ServingError, SetupError, Stopped
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.process.command import Command, inherited_environment
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog, read_events
from dynamo_mlperf.serving.supervisor import Layer, Supervisor

STUBBORN = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"

PATIENCE_S = 60.0
"""Longest wait for what a process does at once on a machine that has nothing else to do."""


class Bench:
    """A supervisor over this machine, and a way to start scripts under it."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.logs.mkdir(parents=True)
        self.flag = StopFlag()
        self.supervisor = Supervisor(LocalAllocation(1), self.paths, EventLog(self.paths), self.flag)

    def start(self, name: str, script: str, layer: Layer = Layer.WORKER, *, may_end: bool = False) -> Child:
        argv = (sys.executable, "-c", script)
        command = Command(name, argv, inherited_environment(), self.paths.log_of(name))
        return self.supervisor.start(command, layer, may_end=may_end)

    def tick_until_raised(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            self.supervisor.tick()
            time.sleep(0.02)
        raise AssertionError("nothing was raised")

    def exits(self) -> dict[str, int]:
        return {
            event["process"]: event["status"] for event in read_events(self.paths) if event["event"] == "process_exited"
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "run")


def test_a_death_names_process_node_signal_and_last_lines(bench: Bench) -> None:
    bench.start(
        "decode-0", "import os\nfor i in range(40): print('\\x1b[31mline', i, flush=True)\nos.kill(os.getpid(), 9)"
    )
    with pytest.raises(ServingError, match=r"decode-0 on node 0 \(localhost\) was killed by SIGKILL") as raised:
        bench.tick_until_raised()
    assert "line 39" in raised.value.what
    assert "line 20\n" not in raised.value.what
    assert "\x1b" not in raised.value.what
    assert str(bench.paths.log_of("decode-0")) in raised.value.action
    bench.supervisor.stop_all()


def test_a_silent_process_that_was_killed_has_who_may_have_done_it_named(bench: Bench) -> None:
    bench.start("decode-0", "import os\nos.kill(os.getpid(), 9)")
    with pytest.raises(ServingError, match="was killed by SIGKILL; it wrote no log") as raised:
        bench.tick_until_raised()
    assert raised.value.action.startswith("find who sent the SIGKILL: the kernel, where memory ran out (on localhost: ")
    assert "read " not in raised.value.action
    bench.supervisor.stop_all()


def test_a_silent_process_that_ended_has_its_command_line_named(bench: Bench) -> None:
    bench.start("decode-0", "raise SystemExit(7)")
    with pytest.raises(ServingError, match="ended with status 7; it wrote no log") as raised:
        bench.tick_until_raised()
    assert raised.value.action == f"run it by hand: its command line is in {bench.paths.commands}"
    bench.supervisor.stop_all()


def test_exit_zero_is_a_death_too(bench: Bench) -> None:
    bench.start("prefill-0", "print('bye')")
    with pytest.raises(ServingError, match=r"prefill-0 .* ended with status 0"):
        bench.tick_until_raised()
    bench.supervisor.stop_all()


def test_of_deaths_seen_together_the_lowest_layer_is_the_cause(bench: Bench) -> None:
    children = [
        bench.start("frontend-0", "pass", Layer.FRONTEND),
        bench.start("decode-0", "pass", Layer.WORKER),
        bench.start("etcd", "import sys; sys.exit(3)", Layer.STORE),
    ]
    deadline = time.monotonic() + PATIENCE_S
    while any(child.poll() is None for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(ServingError, match=r"etcd .* ended with status 3"):
        bench.supervisor.tick()
    bench.supervisor.stop_all()


def test_stop_goes_down_the_layers_and_up_the_ladder(bench: Bench) -> None:
    bench.start("etcd", "import time; time.sleep(600)", Layer.STORE)
    bench.start("decode-0", STUBBORN, Layer.WORKER)
    bench.start("frontend-0", "import time; time.sleep(600)", Layer.FRONTEND)
    while "up" not in bench.paths.log_of("decode-0").read_text():
        time.sleep(0.02)
    bench.flag.times = 3  # in haste: the ladder does not wait out its patience
    assert bench.supervisor.stop_all() == []
    assert bench.exits()["decode-0"] == -signal.SIGKILL
    assert set(bench.exits()) == {"etcd", "decode-0", "frontend-0"}


def test_a_wait_has_a_deadline_that_says_what_was_missing(bench: Bench) -> None:
    with pytest.raises(ServingError, match="2 of 3 workers"):
        bench.supervisor.wait_for(lambda: None, 0.1, lambda: "2 of 3 workers")


def test_a_signal_ends_a_wait(bench: Bench) -> None:
    bench.flag.install()
    try:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM") as raised:
            bench.supervisor.wait_for(lambda: None, 5, lambda: "late")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    assert raised.value.exit_code is ExitCode.TERMINATED


def test_a_failed_task_says_what_its_log_says(bench: Bench) -> None:
    command = Command(
        "stage-0",
        (sys.executable, "-c", "import sys; sys.exit('disk is full')"),
        inherited_environment(),
        bench.paths.log_of("stage-0"),
    )
    task = bench.supervisor.start(command, Layer.TASK, may_end=True)
    with pytest.raises(SetupError, match=r"(?s)staging failed on node 0 \(localhost\).*disk is full"):
        bench.supervisor.wait_tasks([task], PATIENCE_S, "staging", lambda _left: None)
    bench.supervisor.stop_all()


def test_a_task_that_is_not_done_in_time_is_named_with_its_node(bench: Bench) -> None:
    task = bench.start("stage-0", "import time; time.sleep(600)", Layer.TASK, may_end=True)
    with pytest.raises(SetupError, match=r"staging not done after 0.1 s: stage-0 on node 0 \(localhost\)"):
        bench.supervisor.wait_tasks([task], 0.1, "staging", lambda _left: None)
    bench.supervisor.stop_all()


def test_commands_and_events_are_on_record(bench: Bench) -> None:
    bench.start("decode-0", "pass", may_end=True)
    bench.supervisor.stop_all()
    assert '"process": "decode-0"' in bench.paths.commands.read_text()
    assert [event["event"] for event in read_events(bench.paths)] == ["process_started", "process_exited"]


def test_a_tolerated_death_is_told_once_and_the_others_still_count(bench: Bench) -> None:
    fallen: list[str] = []
    argv = (sys.executable, "-c", "pass")
    command = Command("aggregated-0", argv, inherited_environment(), bench.paths.log_of("aggregated-0"))
    bench.supervisor.start(command, Layer.WORKER, on_loss=lambda child: fallen.append(child.command.name))
    bench.supervisor.wait_for(lambda: fallen or None, PATIENCE_S, lambda: "nobody was told")
    bench.supervisor.pause(0.3)
    assert fallen == ["aggregated-0"]
    bench.start("frontend-0", "pass", Layer.FRONTEND)
    with pytest.raises(ServingError, match="frontend-0"):
        bench.tick_until_raised()
    bench.supervisor.stop_all()


def test_what_is_left_of_a_lost_replica_ends_without_a_word(bench: Bench) -> None:
    argv = (sys.executable, "-c", STUBBORN)
    command = Command("aggregated-0.1", argv, inherited_environment(), bench.paths.log_of("aggregated-0.1"))
    child = bench.supervisor.start(command, Layer.WORKER)
    bench.supervisor.end([child])
    bench.supervisor.wait_for(child.poll, PATIENCE_S, lambda: "it lives")
    bench.supervisor.pause(0.2)
    assert child.poll() == -signal.SIGKILL
    bench.supervisor.stop_all()


def test_what_is_retired_ends_asked_for_and_the_others_serve_on(bench: Bench) -> None:
    bench.start("prefill-0", "import time; time.sleep(600)")
    argv = (sys.executable, "-c", "import time; time.sleep(600)")
    command = Command("prefill-1", argv, inherited_environment(), bench.paths.log_of("prefill-1"))
    going = bench.supervisor.start(command, Layer.WORKER)
    bench.supervisor.retire([going], Layer.WORKER)
    assert going.poll() is not None
    bench.supervisor.pause(0.2)  # no death is found
    assert list(bench.exits()) == ["prefill-1"]
    assert [event["process"] for event in read_events(bench.paths) if event["event"] == "process_stopped"] == [
        "prefill-1"
    ]
    bench.flag.first = signal.SIGTERM
    with pytest.raises(Stopped):
        bench.supervisor.retire([], Layer.WORKER)
    bench.supervisor.stop_all()


AGENT = "import sys, time\nprint('up', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)\ntime.sleep(0.2)\nprint('clean', flush=True)"


def test_what_reads_from_us_is_hung_up_on_last_and_may_clean_up(bench: Bench) -> None:
    argv = (sys.executable, "-c", AGENT)
    output = bench.paths.logs / "node-0.jsonl"
    command = Command("node-0", argv, inherited_environment(), bench.paths.log_of("node-0"), output=output, agent=True)
    agent = bench.supervisor.start(command, Layer.AGENT, may_end=True)
    bench.start("decode-0", "import time; time.sleep(600)")
    agent.say("hello\n")
    bench.supervisor.wait_for(
        lambda: True if "hello\n" in output.read_text() else None, PATIENCE_S, lambda: "it is deaf"
    )
    bench.supervisor.stop_all()
    assert output.read_text() == "up\nhello\nclean\n"
    assert list(bench.exits().items())[-1] == ("node-0", 0)

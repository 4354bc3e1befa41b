"""A program behind a launcher: stop requests reach it alone, also those of a caller that has died."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

RELAY = (sys.executable, "-m", "dynamo_mlperf.process.relay")
PROGRAM = """
import os, signal, sys, time
def note(number, _frame):
    os.write(1, (signal.Signals(number).name + chr(10)).encode())
    if number != signal.SIGINT or sys.argv[1] == "once": raise SystemExit(7)
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, note)
print("up", os.getpid(), flush=True)
while True: time.sleep(0.05)
"""
CALLER = """
import os, sys
from pathlib import Path
from dynamo_mlperf.process.relay import through_launcher
raise SystemExit(through_launcher(sys.argv[1:], os.environ, Path.cwd()))
"""
ENDS_S = 60


def relayed(how: str, *before: str) -> subprocess.Popen[str]:
    argv = (*before, *RELAY, sys.executable, "-c", PROGRAM, how)
    started = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline().startswith("up ")
    return started


def test_words_become_signals_and_the_status_comes_back() -> None:
    relay = relayed("twice")
    assert relay.stdin is not None
    assert relay.stdout is not None
    for word in ("SIGINT", "SIGINT", "SIGTERM"):  # one by one: of signals that come at once Python chooses the order
        relay.stdin.write(f"{word}\n")
        relay.stdin.flush()
        assert relay.stdout.readline() == f"{word}\n"
    assert relay.wait(ENDS_S) == 7
    relay.communicate()


def test_the_end_of_the_input_asks_for_the_end() -> None:
    relay = relayed("twice")
    out, _ = relay.communicate("", timeout=ENDS_S)
    assert (out.split(), relay.returncode) == (["SIGTERM"], 7)


def test_a_signal_to_the_relay_itself_reaches_the_program() -> None:
    relay = relayed("once")
    relay.send_signal(signal.SIGINT)
    assert relay.stdout is not None
    assert relay.stdout.readline() == "SIGINT\n"
    assert relay.wait(ENDS_S) == 7
    relay.communicate()


def test_a_program_ends_with_its_killed_relay() -> None:
    relay = relayed("once")
    relay.kill()
    assert relay.stdout is not None
    assert relay.stdout.read() == "SIGTERM\n", "the program, which holds the pipe, has ended"
    relay.communicate()


def test_how_a_program_was_killed_comes_back_as_a_shell_tells_it() -> None:
    argv = (*RELAY, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as relay:
        assert relay.wait(ENDS_S) == 128 + 9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_callers_stop_request_goes_through_a_launcher_that_ignores_it(number: signal.Signals, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/bash\ntrap "" INT TERM\n"$@" <&0 &\nwait $!\n')
    launcher.chmod(0o755)
    argv = (sys.executable, "-c", CALLER, str(launcher), *RELAY, sys.executable, "-c", PROGRAM, "once")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline().startswith("up ")
        caller.send_signal(number)
        assert caller.stdout.read() == f"{number.name}\n"
        assert caller.wait(ENDS_S) == 7


def test_the_third_request_kills_a_launcher_that_hangs(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text(
        f"#!/bin/sh\ntrap '' INT TERM\necho up $$\nexec {sys.executable} -c 'import time; time.sleep(600)'\n"
    )
    launcher.chmod(0o755)
    caller = subprocess.Popen((sys.executable, "-c", CALLER, str(launcher)), stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    assert caller.stdout.readline().startswith("up ")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert caller.poll() is None
        caller.send_signal(number)
    assert caller.wait(ENDS_S) == 128 + 9
    caller.communicate()

"""What is shown while workers load: who is missing, and after a while without a new one how the first's log ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.command import AGAIN, Command, inherited_environment
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.loading import QUIET_S, READ_EVERY_S, Loading
from dynamo_mlperf.serving.log_tail import LINE_CHARACTERS, last_line
from dynamo_mlperf.serving.readiness import Gate
from dynamo_mlperf.serving.supervisor import Layer, Supervisor
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import parse_topology
from tests.topology.topology_texts import role, topology_text

TOPOLOGY = topology_text(nodes=2, gpus=1, engine="mocker", prefill=role(1), decode=role(1))
BOTH = ["prefill-0", "decode-0"]
TOKEN = "hf_" + "x" * 30


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    paths, allocation = RunPaths(tmp_path / "run"), LocalAllocation(2)
    paths.logs.mkdir(parents=True)
    events = EventLog(paths)
    supervisor = Supervisor(allocation, paths, events, StopFlag())
    endpoints = Endpoints(make_plan(parse_topology(TOPOLOGY)), allocation.nodes, 20000, "ns", "m")
    yield Gate(supervisor, endpoints, events, "mocker", lambda _text: None, 1.0, 1.0)
    supervisor.stop_all()


def start(gate: Gate, name: str, log: Path) -> None:
    sleep = (sys.executable, "-c", "import time; time.sleep(600)")
    gate.supervisor.start(Command(name, sleep, inherited_environment(), log), Layer.WORKER)


def test_after_a_while_without_a_new_worker_the_log_of_the_first_is_shown(gate: Gate, tmp_path: Path) -> None:
    loading, log = Loading(gate), tmp_path / "run" / "logs" / "prefill-0.log"
    assert loading.hint(BOTH, 100.0) == ", waiting for prefill-0, decode-0"
    assert loading.hint(BOTH, 100.0 + QUIET_S - 0.1) == ", waiting for prefill-0, decode-0"
    now = 100.0 + QUIET_S
    assert loading.hint(BOTH, now) == (f"; prefill-0 has written nothing to {log} yet, waiting for prefill-0, decode-0")
    log.write_text("loading shard 1\n\x1b[31mloading shard 2\x1b[0m\n\n")
    assert "nothing" in loading.hint(BOTH, now + READ_EVERY_S / 2), "not read on every turn"
    assert loading.hint(BOTH, now + READ_EVERY_S) == (
        f"; prefill-0: loading shard 2 (log {log}), waiting for prefill-0, decode-0"
    )
    assert loading.hint(["decode-0"], now + 2) == ", waiting for decode-0", "a new one has come"
    assert loading.hint(["decode-0"], now + 2 + QUIET_S).startswith("; decode-0 has written nothing to ")
    assert loading.hint([], now + 3 + QUIET_S) == ""


def test_a_worker_that_was_started_anew_is_looked_for_in_its_new_log(gate: Gate, tmp_path: Path) -> None:
    logs = tmp_path / "run" / "logs"
    for name in ("decode-0", f"decode-0{AGAIN}1", "decode-01"):
        start(gate, name, logs / f"{name}.log")
        (logs / f"{name}.log").write_text(f"I am {name}\n")
    loading = Loading(gate)
    loading.hint(["decode-0"], 0.0)
    assert loading.hint(["decode-0"], QUIET_S).startswith(
        f"; decode-0: I am decode-0{AGAIN}1 (log {logs}/decode-0{AGAIN}1"
    )
    assert gate.log_of("decode-0") == f"logs/decode-0{AGAIN}1.log"
    assert gate.log_of("prefill-0") == "logs/prefill-0.log", "never started"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("a\nb", "b"),
        (" 10%|#\r 20%|##", "20%|##"),
        ("one\x1b]0;title\x07 two\n", "one ]0;title  two"),
        (f"token {TOKEN}\n", "token (not recorded)"),
        ("x" * 500, "x" * LINE_CHARACTERS + " ..."),
    ],
)
def test_the_last_line_is_short_and_safe_to_show(tmp_path: Path, text: str, shown: str) -> None:
    log = tmp_path / "decode-0.log"
    log.write_text(text)
    assert last_line(log) == shown


def test_a_log_that_cannot_be_read_costs_nothing(tmp_path: Path) -> None:
    assert last_line(tmp_path / "none.log") == ""
    assert last_line(tmp_path) == "", "a directory"

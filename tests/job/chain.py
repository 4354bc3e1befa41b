"""The whole chain as a person starts it: topology files, real `run` processes, and what they leave behind."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.record import read_events, read_verdict

TOKEN = "hf_" + "s" * 30
"""A secret of the caller: it may turn up nowhere in a run directory."""

END_S = 600.0
"""Longest wait for the end of a run, or for something in it: many times what it takes where nothing else runs."""

GONE_S = 30.0
"""Longest wait until nothing of a run is left."""

LIMIT_MS = 60_000
"""So long that the client may be late by as much as a busy machine makes it: a hundredth of this (`load.health`)."""

TEMPLATE: Mapping[str, Any] = {
    "schema": 1,
    "nodes": {"count": 2, "gpus": 1},
    "model": {"name": "tiny-qwen3-vl-moe", "weights": {"stage": "staging/tiny-qwen3-vl-moe.yaml"}},
    "engine": "mocker",
    "device": "cpu",
    "roles": {
        "prefill": {"workers": 1, "args": {"max-num-seqs": 64, "speedup-ratio": 10}},
        "decode": {"workers": 1, "args": {"max-num-seqs": 64, "speedup-ratio": 10}},
    },
    "measure": {
        "benchmark": "qwen3-vl-235b-a22b",
        "scenario": "Interactive",
        "target_qps": 14,
        "dataset": "assets/tiny-product-catalogue",
    },
    "reduced": {"min_duration_s": 3, "samples": 44, "percentile": 90, "latency_limit_ms": LIMIT_MS},
    "timeouts": {"warmup_requests": 2, "ready_s": 400},
}
"""A rehearsal of a few seconds: 44 queries, as LoadGen sends the data set whole."""


def merged(base: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `edits` laid over it, key by key; None takes a key out."""
    result = copy.deepcopy(dict(base))
    for key, value in edits.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    status: int
    stdout: str
    stderr: str


class Run:
    """One `run` process and its run directory."""

    def __init__(self, argv: list[str], cwd: Path, env: Mapping[str, str], run_dir: Path, name: str) -> None:
        self.paths = RunPaths(run_dir)
        self.name = name
        self._out, self._err = (cwd / f"{run_dir.name}.{end}" for end in ("stdout", "stderr"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                argv, cwd=cwd, env=dict(env), stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def events(self) -> list[dict[str, Any]]:
        return read_events(self.paths)

    def wait_for(self, event: str, timeout_s: float = END_S, **details: object) -> dict[str, Any]:
        """The first event of that kind with those details, once it has happened."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for entry in self.events():
                if entry["event"] == event and details.items() <= entry.items():
                    return entry
            assert not ended, f"ended with {self.process.returncode} before {event} {details}:\n{self.stderr()}"
            time.sleep(0.005)
        raise AssertionError(f"no {event} {details} in {timeout_s:g} s:\n{self.stderr()}")

    def wait_for_phase(self, name: str) -> None:
        self.wait_for("phase_begin", phase=name)

    def wait_until_measuring(self) -> None:
        """Until LoadGen has answers."""
        self.wait_for("process_started", process="loadgen")
        progress = self.paths.load / "progress.json"
        deadline = time.monotonic() + END_S
        while not (progress.exists() and json.loads(progress.read_text())["completed"]):
            assert self.process.poll() is None, self.stderr()
            assert time.monotonic() < deadline, self.stderr()
            time.sleep(0.02)

    def pid_of(self, process: str) -> int:
        return int(self.wait_for("process_started", process=process)["pid"])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stderr(self) -> str:
        return self._err.read_text()

    def end(self, timeout_s: float = END_S) -> Ended:
        """Wait for the end."""
        status = self.process.wait(timeout_s)
        return Ended(status, self._out.read_text(), self.stderr())

    def verdict(self) -> dict[str, Any]:
        value = read_verdict(self.paths)
        assert value is not None, f"no verdict.json:\n{self.stderr()}"
        return value

    def commands(self) -> dict[str, dict[str, Any]]:
        lines = (json.loads(line) for line in self.paths.commands.read_text().splitlines())
        return {entry["process"]: entry for entry in lines}

    @property
    def run_id(self) -> str:
        return str(self.events()[0]["run"])

    def phases(self) -> list[str]:
        return [entry["phase"] for entry in self.events() if entry["event"] == "phase_begin"]

    def ports(self) -> range:
        """The block of ports that the job held; empty before it has chosen one."""
        plan = json.loads(self.paths.plan.read_text())
        commands = self.commands() if self.paths.commands.exists() else {}
        held = [
            (int(entry["env"]["DYN_SYSTEM_PORT"]), worker["port_offset"])
            for worker in plan["workers"]
            if (entry := commands.get(f"{worker['role']}-{worker['index']}"))
        ]
        if not held:
            return range(0)
        base = held[0][0] - held[0][1]
        return range(base, base + plan["workers"][-1]["port_offset"] + 10)

    def leftovers(self) -> list[str]:
        """What is still there of the run: processes with its mark, ports that listen, directories in shared memory."""
        found = [f"process {process.pid} {process.info['name']}" for process in marked_processes(self.run_id)]
        found += [str(path) for path in Path("/dev/shm").glob(f"dynamo-mlperf-{self.name}-*")]
        if self.paths.plan.exists():
            found += [f"port {port} of pid {pid}" for port, pid in listening().items() if port in self.ports()]
        return found

    def assert_nothing_left(self) -> None:
        deadline = time.monotonic() + GONE_S
        while left := self.leftovers():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


def machine_is_busy() -> bool:
    """Whether far more wants to run here than a test starts by itself."""
    return os.getloadavg()[0] > 5 * len(os.sched_getaffinity(0))


def client_was_late(verdict: Mapping[str, Any]) -> bool:
    """Whether a run has no result since the machine was too busy for its client, which the run itself says.

    A client that used up a core for the few queries of these tests was not kept waiting: that is a fault of its own.
    """
    said = json.dumps(verdict)
    return verdict["verdict"] == "INVALID" and "client-limited: " in said and " of a core" not in said


def marked_processes(run_id: str) -> list[psutil.Process]:
    """Living processes that carry the run's mark; each has its name in `info`, since it may end before it is asked."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            marked = process.environ().get(RUN_VARIABLE, "").startswith(f"{run_id}@")
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def listening() -> dict[int, int]:
    """TCP ports that listen, with the process that holds each."""
    entries = psutil.net_connections(kind="tcp")
    return {entry.laddr.port: entry.pid or 0 for entry in entries if entry.laddr and entry.status == psutil.CONN_LISTEN}


class Place:
    """A directory to submit from: examples, tiny model and data set, and a disk of its own for staging."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.local = root / "disk"
        done = self.command("init", str(root), "--assets", "assets")
        assert done.returncode == 0, done.stderr

    def environment(self) -> dict[str, str]:
        """What a person's shell has, a secret included, and nothing of this test's own."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "XDG_CACHE_HOME": str(self.local), "HF_TOKEN": TOKEN}

    def command(self, *words: str, timeout_s: float = END_S) -> subprocess.CompletedProcess[str]:
        """Run a verb to its end."""
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", *words]
        env = self.environment()
        return subprocess.run(
            argv, cwd=self.root, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def topology(self, edits: Mapping[str, Any] | None = None, *, role: Mapping[str, Any] | None = None) -> Path:
        """A topology file under a name of its own: the template, `role` laid over each role, then `edits`."""
        name = f"chain-{secrets.token_hex(4)}"
        roles = {role_name: role or {} for role_name in TEMPLATE["roles"]}
        value = merged(merged(TEMPLATE, {"name": name, "roles": roles}), edits or {})
        path = self.root / f"{name}.yaml"
        path.write_text("#!/usr/bin/env -S dynamo-mlperf job\n" + yaml.safe_dump(value, sort_keys=False))
        return path

    def site(self, **keys: object) -> Path:
        """A site file of its own."""
        path = self.root / f"site-{secrets.token_hex(4)}.yaml"
        path.write_text(yaml.safe_dump(keys))
        return path

    def program(self, name: str, text: str) -> Path:
        """An executable shell script in a folder of its own; `$PYTHON` in it is the real interpreter."""
        folder = self.root / f"bin-{secrets.token_hex(4)}"
        folder.mkdir()
        path = folder / name
        path.write_text(f"#!/bin/sh\nPYTHON={sys.executable}\n{text}\n")
        path.chmod(0o755)
        return path

    @contextlib.contextmanager
    def holding(self, edits: Mapping[str, Any] | None = None, *, run_dir: Path | None = None) -> Iterator[Run]:
        """A run that has measured and holds its engines."""
        with self.run(self.topology(edits), "--hold", run_dir=run_dir) as run:
            run.wait_for("hold_begin")
            yield run

    @contextlib.contextmanager
    def run(
        self,
        topology: Path,
        *flags: str,
        run_dir: Path | None = None,
        env: Mapping[str, str] | None = None,
        verb: str = "run",
    ) -> Iterator[Run]:
        """Start a run; whatever the test does, nothing of it outlives the block."""
        where = run_dir or self.root / "runs" / f"{topology.stem}-{secrets.token_hex(2)}"
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", verb, str(topology), "--run-dir", str(where), *flags]
        run = Run(argv, self.root, {**self.environment(), **(env or {})}, where, topology.stem)
        try:
            yield run
        finally:
            _end(run)


def _end(run: Run) -> None:
    """For tests that failed half-way: the controller cleans up; what it does not, is killed."""
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGCONT)
        run.process.terminate()
    try:
        run.process.wait(END_S)
    except subprocess.TimeoutExpired:
        run.process.kill()
        run.process.wait()
    if run.paths.events.exists() and run.events():
        for process in marked_processes(run.run_id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until(true: Callable[[], bool], timeout_s: float = GONE_S) -> None:
    """Until it is."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)

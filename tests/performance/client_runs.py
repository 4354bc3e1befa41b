"""One run of one load client against the oracle, measured from outside: CPU of the whole client, memory, TTFT."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.request import urlopen

import numpy as np
import psutil

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.spec import MeasureSpec

if TYPE_CHECKING:
    from types import TracebackType

_SAMPLE_EVERY_S = 0.2
_RUN_TIMEOUT_S = 300
_WORDS_PER_PROMPT = 60
_ONE_TOKEN_LIMIT_MS = 1000.0
"""By which the client plans its descriptors."""


@dataclass(frozen=True)
class Load:
    """What a client is asked to do.

    Attributes:
        tokens: Tokens of every answer.
        requests: How many requests.
        qps: Poisson rate; None = as many as `in_flight` at a time, one after the other.
        in_flight: Requests at a time where there is no rate.
        ttft_ms: The oracle's time to first token.
        tpot_ms: The oracle's time per further token.
    """

    tokens: int
    requests: int
    qps: float | None = None
    in_flight: int = 0
    ttft_ms: float = 30.0
    tpot_ms: float = 10.0

    def prompts(self) -> list[str]:
        """The texts, no two alike."""
        filler = " ".join(f"word{number}" for number in range(_WORDS_PER_PROMPT))
        return [f"sample {number} {filler}" for number in range(self.requests)]


@dataclass(frozen=True)
class Figures:
    """What one run cost.

    Attributes:
        requests: Whole answers, by the oracle's count.
        cpu_s: User and system time of all processes of the client, start-up included.
        wall_s: Seconds from the first request's arrival at the oracle to the last one's end.
        added_ttft_ms: Client's TTFT less the oracle's own, at p50 and p99; None where the client gives none.
        largest_mb: Peak private memory of its largest process.
    """

    requests: int
    cpu_s: float
    wall_s: float
    added_ttft_ms: tuple[float, float] | None
    largest_mb: float


class OracleProcess:
    """The oracle in a process of its own."""

    def __init__(self, load: Load) -> None:
        argv = [sys.executable, "-m", "tests.fakes.oracle", "--tokens", str(load.tokens)]
        argv += ["--ttft-ms", str(load.ttft_ms), "--tpot-ms", str(load.tpot_ms)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split()[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def truth(self) -> dict[str, Any]:
        """Columns of what was sent, as numpy arrays."""
        with urlopen(f"http://127.0.0.1:{self.port}/truth") as answer:
            return {key: np.array(values) for key, values in json.load(answer).items()}


class Client:
    """A client to be measured: how it is started, and what TTFT it saw."""

    name = ""

    def prepare(self, load: Load, port: int, directory: Path) -> list[str]:
        """Write its input; return its command line."""
        raise NotImplementedError

    def ttft_ms(self, directory: Path) -> tuple[float, float] | None:
        """TTFT p50 and p99 that it reports."""
        raise NotImplementedError


class Ours(Client):
    """LoadGen and our client processes."""

    name = "ours"

    def prepare(self, load: Load, port: int, directory: Path) -> list[str]:
        """The spec and the bodies, as a measurement has them."""
        judges_tokens = load.tokens > 1  # LoadGen logs an error for each answer of one token where it does
        rules = benchmark("llama2-70b-99.9" if judges_tokens else "qwen3-vl-235b-a22b")
        bodies = (chat_body("m", [{"role": "user", "content": text}], load.tokens) for text in load.prompts())
        write_requests(directory / "requests.bin", bodies)
        scenario, qps = ("Offline", 1.0) if load.qps is None else ("Server", load.qps)
        seconds = (
            0.01 if load.qps is None else load.requests / load.qps * 0.5
        )  # LoadGen goes on to the end of the data set
        limit_ms = None if judges_tokens or load.qps is None else _ONE_TOKEN_LIMIT_MS
        reduction = Reduction(seconds, load.requests, 90, limit_ms)
        settings = build_settings(rules, scenario, qps, load.requests, reduction, max_in_flight=load.in_flight or 1024)
        spec = MeasureSpec(settings, directory / "requests.bin", (("127.0.0.1", port),), directory / "out")
        (directory / "spec.json").write_text(json.dumps(spec.to_json()))
        return [sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(directory / "spec.json")]

    def ttft_ms(self, directory: Path) -> tuple[float, float] | None:
        """From the queries' own record."""
        values = read_queries(directory / "out" / "queries.csv").latencies_ms("ttft")
        p50, p99 = np.percentile(values, [50, 99])
        return float(p50), float(p99)


class Aiohttp(Client):
    """aiohttp on uvloop, one task per request (`client_aiohttp.py`)."""

    name = "aiohttp"

    def prepare(self, load: Load, port: int, directory: Path) -> list[str]:
        """Its arguments."""
        (directory / "load.json").write_text(json.dumps({**vars(load), "prompts": load.prompts(), "port": port}))
        return [sys.executable, "-m", "tests.performance.client_aiohttp", str(directory)]

    def ttft_ms(self, directory: Path) -> tuple[float, float] | None:
        """From what it writes."""
        p50, p99 = np.percentile(json.loads((directory / "ttft_ms.json").read_text()), [50, 99])
        return float(p50), float(p99)


class ProcessWatch(threading.Thread, ABC):
    """Looks at a process and its descendants, again and again, until `done`."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self._root = pid

    def run(self) -> None:
        """Sample until done."""
        while not self.done.wait(_SAMPLE_EVERY_S):
            try:
                root = psutil.Process(self._root)
                for process in [root, *root.children(recursive=True)]:
                    self.look(process)
            except (psutil.NoSuchProcess, OSError):
                continue

    @abstractmethod
    def look(self, process: psutil.Process) -> None:
        """Take in one of them; it may end meanwhile."""


class _Memory(ProcessWatch):
    """The largest private memory of one process."""

    largest_mb = 0.0

    def look(self, process: psutil.Process) -> None:
        """Take in one process."""
        private = process.memory_info()
        self.largest_mb = max(self.largest_mb, (private.rss - private.shared) / 1e6)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(client: Client, load: Load, directory: Path) -> Figures:
    """Run `client` once; all it started has ended when this returns.

    Raises:
        RuntimeError: It failed.
    """
    directory.mkdir(parents=True)
    with OracleProcess(load) as oracle:
        argv = client.prepare(load, oracle.port, directory)
        before_s = _children_cpu_s()
        with (directory / "log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
            process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=directory, env=environment)
            memory = _Memory(process.pid)
            memory.start()
            status = process.wait(_RUN_TIMEOUT_S)
            memory.done.set()
            memory.join()
        cpu_s = _children_cpu_s() - before_s
        truth = oracle.truth()
    if status != 0 or not len(truth["first_ns"]):
        tail = (directory / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{client.name} ended with status {status} after {len(truth['first_ns'])} answers: {tail}")
    wall_s = float(truth["last_ns"].max() - truth["arrived_ns"].min()) / 1e9
    seen = client.ttft_ms(directory)
    added = None
    if seen is not None:
        p50, p99 = np.percentile((truth["first_ns"] - truth["arrived_ns"]) / 1e6, [50, 99])
        added = (seen[0] - float(p50), seen[1] - float(p99))
    time.sleep(0.2)
    return Figures(len(truth["first_ns"]), cpu_s, wall_s, added, memory.largest_mb)

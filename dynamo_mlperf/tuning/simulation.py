"""Simulated runs: Dynamo's offline replay, asked for one rate and one set of workers at a time."""

from __future__ import annotations

import math
import os
import queue
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.dialogue import Dialogue
from dynamo_mlperf.tuning.rehearsal_requests import BLOCK_TOKENS, Lengths, Requests, write_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from dynamo_mlperf.tuning.rehearsal_engines import EngineModel, Factors

    Array = NDArray[np.float64]

REPLAY_PROGRAM = Path(__file__).resolve().parent.parent / "serving" / "replay" / "offline_replay.py"
"""Runs in the engines' Python."""
MIN_ARRIVALS_S = 60.0
"""Shortest stretch of arrivals: fewer do not let queues form, and any rate seems to pass."""
MIN_REQUESTS = 4_000
_MOST_REQUESTS = 3_000_000
"""A gigabyte or two of memory, and more of the replay's: enough for 50,000 queries/s."""
_AT_ONCE = 1e9
_EACH_WORKERS = 100
_GROWTH = 1.3
_TIMEOUT_S = 900.0
_MOST_PROGRAMS = 8
_COLUMNS = {"end_to_end": "e2e_latency_ms", "ttft": "ttft_ms", "tpot": "itl_ms"}


@dataclass(frozen=True)
class Bar:
    """What a run is held to.

    Attributes:
        limits_ms: By constraint: `end_to_end`, or `ttft` and `tpot`; empty in Offline.
        percentile: The judged percentile, 0 to 1.
        duration_s: Length of a full run.
        min_queries: Fewest queries of a full run.
        strict: One over the limit less may be: the rule of the endpoints client.
    """

    limits_ms: Mapping[str, float]
    percentile: float
    duration_s: float
    min_queries: int
    strict: bool = False

    def judged_share(self, rate: float) -> float:
        """The quantile that has to be within the limit for a full run at `rate` to pass by early stopping."""
        queries = max(math.ceil(rate * self.duration_s), self.min_queries)
        allowed = allowed_over_limit(queries, self.percentile) - self.strict
        return 1.0 - max(allowed, 0) / queries


@dataclass(frozen=True)
class Cast:
    """Who takes part in a simulated run.

    Attributes:
        engines: By role, as the replay takes them.
        workers: How many, by role.
        router_mode: `kv_router` or `round_robin`.
    """

    engines: Mapping[str, Any]
    workers: Mapping[str, int]
    router_mode: str


@dataclass(frozen=True, eq=False)
class Simulated:
    """One simulated run.

    Attributes:
        rate: Offered rate in queries per second.
        latencies_ms: By constraint, ascending; infinite where a request did not end.
        excess: Log of the judged latency over its limit, the worst constraint's: above 0 the run fails.
        binding: That constraint; empty without limits.
    """

    rate: float
    latencies_ms: Mapping[str, Array]
    excess: float
    binding: str


class Simulator:
    """Keeps replay programs running and hands them out; a context that ends them.

    Args:
        python: The engines' Python.
        directory: Where requests and profiles are written.
        lengths: What is drawn from.
        programs: How many run side by side.
        check: Called before each run; raises when people want to stop.

    Raises:
        SetupError: A program cannot be started.
    """

    def __init__(
        self,
        python: str,
        directory: Path,
        lengths: Lengths,
        programs: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory, self._lengths, self._check = directory, lengths, check
        self._stack = ExitStack()
        self._free: queue.SimpleQueue[Dialogue] = queue.SimpleQueue()
        self._requests: dict[int, Requests] = {}
        self._lock = threading.Lock()
        self._profiles = 0
        self.simulated_requests = 0
        environment = {**inherited_environment(), "DYN_LOG": "error", "HF_HUB_OFFLINE": "1"}
        with ExitStack() as stack:
            for _ in range(programs):
                program = Dialogue("Dynamo's replay", (python, str(REPLAY_PROGRAM)), environment)
                self._free.put(stack.enter_context(program))
            self._stack = stack.pop_all()

    def configured(self, engines: Mapping[str, EngineModel], factors: Factors) -> dict[str, Any]:
        """The engines as the replay takes them, with their calibrated profiles written."""
        found = {}
        for role, engine in engines.items():
            with self._lock:
                self._profiles += 1
                path = self._directory / f"profile-{self._profiles}.npz"
            write_atomic(path, engine.scaled(factors).profile.npz_bytes(), durable=False)
            found[role] = engine.replay_config(path)
        return found

    def run(self, cast: Cast, rate: float, bar: Bar, overhead_ms: float, *, coarse: bool = False) -> Simulated:
        """One run at `rate`, judged.

        Args:
            cast: Who takes part.
            rate: Offered rate in queries per second.
            bar: What it is held to.
            overhead_ms: What the rest of the system adds to each request.
            coarse: Few requests, however short their stretch of arrivals: to find where to look, never to answer.

        Raises:
            ConfigError: More requests than fit into memory.
            SetupError: The replay cannot simulate it.
        """
        if not coarse and rate * MIN_ARRIVALS_S > _MOST_REQUESTS:
            raise ConfigError(
                f"a run at {rate:.5g} queries/s takes {rate * MIN_ARRIVALS_S:.3g} simulated requests, and "
                f"{_MOST_REQUESTS:,} are the most that fit into memory",
                "rehearse fewer workers; where it is a known rate (--calibrate), correct it",
            )
        wanted = 0 if coarse else math.ceil(rate * MIN_ARRIVALS_S)
        requests = self._requests_for(max(MIN_REQUESTS, wanted))
        names = list(bar.limits_ms)
        columns = self._ask(cast, requests, rate, [_COLUMNS[name] for name in names])
        latencies, excess, binding = {}, -math.inf, ""
        for name in names:
            added = 0.0 if name == "tpot" else overhead_ms
            ended = np.array([math.inf if each is None else each for each in columns[_COLUMNS[name]]])
            latencies[name] = np.sort(ended) + added
            place = min(len(ended) - 1, math.ceil(bar.judged_share(rate) * len(ended)) - 1)
            over = math.log(max(float(latencies[name][place]), 1e-9) / bar.limits_ms[name])
            if over > excess:
                excess, binding = over, name
        return Simulated(rate, latencies, excess, binding)

    def capacity(self, cast: Cast) -> float:
        """Requests per second that the system ends while more are waiting than it can take.

        Raises:
            SetupError: The replay cannot simulate it, or hardly any request ends.
        """
        given = self._requests_for(max(MIN_REQUESTS, _EACH_WORKERS * sum(cast.workers.values())))
        columns = self._ask(cast, given, _AT_ONCE, ["terminal_time_ms", "e2e_latency_ms"])
        pairs = zip(columns["terminal_time_ms"], columns["e2e_latency_ms"], strict=True)
        ends = np.sort([end for end, latency in pairs if latency is not None])
        if len(ends) < given.count // 2:
            raise SetupError(
                f"{given.count - len(ends)} of {given.count} simulated requests do not fit the KV cache",
                "give the workers more memory, or a higher tensor_parallel",
            )
        first, last = int(0.2 * len(ends)), int(0.8 * len(ends))
        return 1e3 * (last - first) / max(float(ends[last] - ends[first]), 1e-6)

    def _requests_for(self, count: int) -> Requests:
        """A file of at least `count` requests; sizes grow in steps, so that few files are written."""
        step = max(0, math.ceil(math.log(count / MIN_REQUESTS) / math.log(_GROWTH) - 1e-9))
        size = math.ceil(MIN_REQUESTS * _GROWTH**step)
        with self._lock:
            if size not in self._requests:
                self._requests[size] = write_requests(self._directory / f"requests-{size}.jsonl", self._lengths, size)
            return self._requests[size]

    def _ask(self, cast: Cast, requests: Requests, rate: float, columns: list[str]) -> dict[str, list[float | None]]:
        question = {
            "requests": str(requests.path),
            "speedup": rate,
            "block_size": BLOCK_TOKENS,
            "router_mode": cast.router_mode,
            "columns": columns,
            "workers": dict(cast.workers),
            "engines": dict(cast.engines),
        }
        program = self._free.get()
        try:
            self._check()
            answer = program.ask(question, _TIMEOUT_S, self._check)
        finally:
            self._free.put(program)
        if "error" in answer:
            raise SetupError(f"Dynamo's replay: {answer['error']}", "dynamo-mlperf doctor shows what is installed")
        with self._lock:
            self.simulated_requests += requests.count
        found: dict[str, list[float | None]] = answer["columns"]
        return found

    def close(self) -> None:
        """End the programs."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def usable_programs() -> int:
    """How many replays run side by side here."""
    return max(1, min(len(os.sched_getaffinity(0)), _MOST_PROGRAMS))

"""Reads what each role holds and has served while a split is measured, without ever waiting for an answer.

One JSON object a line goes into `pressure.jsonl`; `tuning/bottleneck.py` says what the lines tell.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING

from dynamo_mlperf.files import MOST_LOG_BYTES, append_json_line, read_text
from dynamo_mlperf.serving.counters import parse_counters
from dynamo_mlperf.serving.gauges import KV_SHARE, parse_gauges
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.tuning.bottleneck import Pressure, RolePressure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.topology.plan import Worker

PRESSURE_FILE = "pressure.jsonl"
EVERY_S = 1.0
WORKERS_PER_S = 16
"""With more workers the readings are further apart: the controller's one thread has other work."""
ANSWER_S = 10.0


class PressureGauge:
    """Reads all workers at once, again and again, while it has a file to write to.

    Args:
        deployment: What serves; its workers may change between two files.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._file: Path | None = None
        self._next = 0.0
        self._asked: dict[str, tuple[Worker, Request]] = {}
        self._pages: dict[str, tuple[Worker, str]] = {}
        deployment.job.supervisor.watch(self.look)

    def begin(self, file: Path) -> None:
        """Write to this file from now on."""
        self._file = file

    def end(self) -> None:
        """Write no more."""
        self._file = None
        self._asked, self._pages = {}, {}

    def look(self) -> None:
        """One turn; costs nothing between two readings."""
        if self._file is None:
            return
        if not self._asked and time.monotonic() >= self._next:
            self._ask()
        for name, (worker, request) in list(self._asked.items()):
            response = request.poll()
            if response is not None:
                del self._asked[name]
                if response.ok:
                    self._pages[name] = (worker, response.body.decode(errors="replace"))
        if self._pages and not self._asked:
            reading = reading_of(list(self._pages.values()))
            self._pages = {}
            append_json_line(self._file, {"t": reading.t, "roles": {n: asdict(r) for n, r in reading.roles.items()}})

    def _ask(self) -> None:
        workers = self._deployment.gate.workers
        self._next = time.monotonic() + max(EVERY_S, len(workers) / WORKERS_PER_S)
        place = self._deployment.endpoints.system
        self._asked = {one.name: (one, Request(place(one), "/metrics", timeout_s=ANSWER_S)) for one in workers}


def reading_of(pages: Sequence[tuple[Worker, str]]) -> Pressure:
    """One reading from the metrics pages of the workers that told."""
    by_role: dict[str, list[tuple[Mapping[str, int], Mapping[str, float]]]] = {}
    for worker, text in pages:
        by_role.setdefault(worker.role, []).append((parse_counters(text), parse_gauges(text)))
    return Pressure(round(time.time(), 3), {role: _summed(told) for role, told in by_role.items()})


def _summed(told: Sequence[tuple[Mapping[str, int], Mapping[str, float]]]) -> RolePressure:
    def gauge(*names: str) -> float:
        return sum(gauges.get(name, 0.0) for _counts, gauges in told for name in names)

    return RolePressure(
        workers=len(told),
        served=sum(counts.get("served", 0) for counts, _gauges in told),
        served_ms=float(sum(counts.get("served_ms", 0) for counts, _gauges in told)),
        in_flight=gauge("in_flight"),
        waiting=gauge("waiting", "sglang_waiting"),
        kv_share=round(gauge(KV_SHARE, f"sglang_{KV_SHARE}") / len(told), 5),
    )


def read_pressure(file: Path) -> list[Pressure]:
    """The readings of a file, in order; none where there is no file. Lines that are none are left out."""
    try:
        lines = read_text(file, MOST_LOG_BYTES, errors="replace").split("\n")
    except (OSError, ValueError):
        return []
    return [reading for line in lines if (reading := _reading(line)) is not None]


def _reading(line: str) -> Pressure | None:
    """The reading of a line; None where it is none: cut by a crash, or damaged."""
    try:
        value = json.loads(line)
        found = Pressure(value["t"], {name: RolePressure(**told) for name, told in value["roles"].items()})
        numbers = [found.t, *(number for role in found.roles.values() for number in astuple(role))]
        return found if all(math.isfinite(number) for number in numbers) else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None

"""A real LoadGen test with a system under test that answers on plan: `python -m tests.fakes.stub_sut PLAN.json`.

For what LoadGen itself decides: settings in force, early stopping, its logs. In tests: `StubPlan(...).run(directory)`.
"""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_FIRST, _END = 0, 1
"""In this order where both are due at once."""


@dataclass(frozen=True)
class StubPlan:
    """One test.

    Attributes:
        model: The model name that LoadGen is given.
        user_conf: Text of user.conf.
        samples: Samples of the data set.
        scenario: Server or Offline.
        accuracy: Whether it is an accuracy run.
        trace: Whether LoadGen writes its trace.
        slow: Seconds to the first token and to the end, by the order of issue; the others are answered at once.
        tokens: Output tokens of every answer.
    """

    model: str
    user_conf: str
    samples: int
    scenario: str = "Server"
    accuracy: bool = False
    trace: bool = False
    slow: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    tokens: int = 8

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        """Start it; the logs go to `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "user.conf").write_text(self.user_conf)
        plan = {**asdict(self), "slow": {str(order): times for order, times in self.slow.items()}}
        (directory / "plan.json").write_text(json.dumps(plan))
        argv = [sys.executable, "-m", "tests.fakes.stub_sut", str(directory / "plan.json")]
        return subprocess.Popen(argv, cwd=directory, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})

    def run(self, directory: Path) -> Path:
        """Run it to the end; returns the directory of its logs."""
        with self.start(directory) as process:
            assert process.wait(timeout=180) == 0
        return directory


class _Sut:
    """Answers each query when its time has come."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._slow = {int(order): times for order, times in plan["slow"].items()}
        self._tokens = plan["tokens"]
        self._buffer = array("B", b"answer! ")
        self._issued = 0
        self._due: list[tuple[float, int, int]] = []
        self._changed = threading.Condition()

    def issue(self, queries: list[Any]) -> None:
        now = time.monotonic()
        for query in queries:
            times = self._slow.get(self._issued)
            self._issued += 1
            if times is None:
                self._answer(query.id, first=True)
                self._answer(query.id, first=False)
                continue
            with self._changed:
                heapq.heappush(self._due, (now + times[0], query.id, _FIRST))
                heapq.heappush(self._due, (now + times[1], query.id, _END))
                self._changed.notify()

    def serve(self) -> None:
        while True:
            with self._changed:
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                _, query_id, stage = heapq.heappop(self._due)
            self._answer(query_id, first=stage == _FIRST)

    def _answer(self, query_id: int, *, first: bool) -> None:
        import mlperf_loadgen as loadgen

        at = self._buffer.buffer_info()[0]
        if first:
            loadgen.FirstTokenComplete([loadgen.QuerySampleResponse(query_id, at, 8)])
        else:
            loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query_id, at, 8, self._tokens)])


def main(plan_path: Path) -> None:
    import mlperf_loadgen as loadgen

    plan = json.loads(plan_path.read_text())
    out = plan_path.parent
    settings = loadgen.TestSettings()
    assert settings.FromConfig(str(out / "user.conf"), plan["model"], plan["scenario"], 1) == 0
    settings.scenario = getattr(loadgen.TestScenario, plan["scenario"])
    mode = "AccuracyOnly" if plan["accuracy"] else "PerformanceOnly"
    settings.mode = getattr(loadgen.TestMode, mode)
    log = loadgen.LogSettings()
    log.enable_trace = plan["trace"]
    log.log_output.outdir = str(out)
    log.log_output.copy_summary_to_stdout = False
    sut = _Sut(plan)
    threading.Thread(target=sut.serve, daemon=True).start()
    system = loadgen.ConstructSUT(sut.issue, lambda: None)
    library = loadgen.ConstructQSL(plan["samples"], plan["samples"], lambda _: None, lambda _: None)
    loadgen.StartTestWithLogSettings(system, library, settings, log, "audit.config")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    os._exit(0)  # the serving thread must not outlive the test

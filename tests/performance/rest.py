"""What an aborted overload leaves for the next probe: `python -m tests.performance.rest` (after `make assets`).

One deployment of simulated workers (1P1D), with the parts that a search uses. In turns: workers restarted, then a light
probe; a probe far above what they hold, stopped as a search stops it with its requests in flight, the engines brought
to rest, then the same light probe; and the same once more with no wait for rest, which shows what rest is for. Prints
one JSON object per light probe and one with the time to first token over all queries of a kind, as median and as tenth
percentile (other work on the machine only adds), each as a ratio to a fresh start's. Exits 1 where the tenth
percentile after rest is 10 % above a fresh start's or more.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from dynamo_mlperf.cli.launch import prepare
from dynamo_mlperf.cli.progress import TerminalProgress
from dynamo_mlperf.cli.run import this_machine
from dynamo_mlperf.job import tests as job_tests
from dynamo_mlperf.job.at_rest import Rest
from dynamo_mlperf.job.controller import JobRequest, run_job
from dynamo_mlperf.job.probe import JobProber
from dynamo_mlperf.job.rate_search import REST_REQUESTS
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.record import Verdict
from dynamo_mlperf.topology.searching import Search
from dynamo_mlperf.tuning.probes import Probe
from dynamo_mlperf.tuning.progress import GO_ON
from dynamo_mlperf.tuning.progress import Verdict as Look
from tests.topology.topology_texts import measure_block, simulated

if TYPE_CHECKING:
    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.tuning.probes import ProbeRecord

LIGHT_QPS, OVERLOAD_QPS, OVERLOAD_S = 3.0, 200.0, 6.0
MOST_RATIO = 1.1
PREFILL = {"workers": 1, "args": {"max-num-seqs": 8, "speedup-ratio": 0.2}}
"""So slow that the simulated time is most of what a client sees."""
DECODE = {"workers": 1, "args": {"max-num-seqs": 8, "speedup-ratio": 3}}
KINDS = ("rest", "no-wait")
TOPOLOGY = simulated(
    name="rest",
    model={"name": "tiny", "weights": {"path": "assets/tiny-qwen3-vl-moe"}},
    roles={"prefill": PREFILL, "decode": DECODE},
    measure=measure_block(target_qps=LIGHT_QPS, dataset="assets/tiny-product-catalogue"),
    reduced={"min_duration_s": 20, "samples": 64, "percentile": 90, "latency_limit_ms": 5000},
)


@dataclass
class _NoWait:
    """In place of rest: the next probe begins at once."""

    def reach(self) -> dict[str, Any]:
        return {}


@dataclass
class Bench:
    """Takes the place of a job's tests."""

    rounds: int
    kinds: tuple[str, ...]
    light_qps: float
    overload_s: float
    first_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _made: int = 0

    def run_tests(self, job: Job, deployment: Deployment, workload: Workload) -> Verdict:
        """All rounds with a deployment that is up."""
        rest = Rest(job, deployment, Search(), workload.warm_up_bodies(REST_REQUESTS))
        names = [worker.name for worker in deployment.gate.workers]
        for turn in range(self.rounds):
            deployment.restart(names)
            deployment.warm_up(workload.warm_up_bodies(REST_REQUESTS))
            self._light("fresh", JobProber(job, deployment, workload.settings, rest, ""), job)
            for kind in self.kinds if turn % 2 == 0 else self.kinds[::-1]:
                rest.reach()
                self._overload(JobProber(job, deployment, workload.settings, rest, ""), job)
                between: Any = rest if kind == "rest" else _NoWait()
                self._light(kind, JobProber(job, deployment, workload.settings, between, ""), job)
        load = workload.settings
        return Verdict("INVALID", "rehearsal", load.benchmark, load.scenario, str(job.paths.root))

    def _light(self, kind: str, prober: JobProber, job: Job) -> None:
        folder = self._probe(prober, job, self.light_qps, lambda _record: GO_ON)
        queries = read_queries(folder / "loadgen" / "queries.csv")
        first_ms = queries.latencies_ms("ttft")
        self.first_ms[kind] += first_ms.tolist()
        rest = json.loads((folder / "rest.json").read_text())
        told = {"probe": folder.name, "after": kind, "queries": len(first_ms)}
        p10, p50, p90 = np.percentile(first_ms, [10, 50, 90])
        times = {"ttft_p10_ms": p10, "ttft_p50_ms": p50, "ttft_p90_ms": p90}
        times = {name: round(float(value), 1) for name, value in times.items()}
        print(json.dumps({**told, **times, "rest_s": rest.get("seconds"), "above": rest.get("above")}), flush=True)

    def _overload(self, prober: JobProber, job: Job) -> None:
        def look(record: ProbeRecord) -> Look:
            return Look("cannot pass") if record.seconds >= self.overload_s else GO_ON

        self._probe(prober, job, OVERLOAD_QPS, look)

    def _probe(self, prober: JobProber, job: Job, rate: float, look: Any) -> Path:
        self._made += 1
        folder = job.paths.root / f"probe-{self._made:03d}"
        folder.mkdir()
        prober.run(Probe(rate, 600.0, 600.0, must_finish=True, purpose="bench"), folder, 0.0, look)
        return folder


def compared(values_ms: dict[str, list[float]], percent: float) -> dict[str, dict[str, float]]:
    """A percentile by kind in ms, and as a ratio to a fresh start's."""
    found = {kind: float(np.percentile(values, percent)) for kind, values in values_ms.items()}
    return {
        "ms": {kind: round(value, 1) for kind, value in found.items()},
        "of_fresh": {kind: round(value / found["fresh"], 3) for kind, value in found.items()},
    }


def main() -> int:
    """Run the rounds and compare."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--light-s", type=float, default=20.0, help="shortest light probe")
    options.add_argument("--light-qps", type=float, default=LIGHT_QPS)
    options.add_argument("--overload-s", type=float, default=OVERLOAD_S, help="until the overload is stopped")
    options.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    options.add_argument("--directory", type=Path, default=Path("runs/bench-rest"), help="takes the run; emptied first")
    given = options.parse_args()
    directory = given.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file = directory / "rest.yaml"
    content = {**TOPOLOGY, "reduced": {**TOPOLOGY["reduced"], "min_duration_s": given.light_s}}
    file.write_text("#!/usr/bin/env -S dynamo-mlperf job\n" + yaml.safe_dump(content, sort_keys=False))
    bench = Bench(given.rounds, tuple(given.kinds), given.light_qps, given.overload_s)
    job_tests.run_tests = bench.run_tests
    topology, plan, site = prepare(file, None, Path.cwd())
    where, run_dir = this_machine(plan, site), directory / "run"
    run_job(JobRequest(file, topology, plan, site, Path.cwd(), run_dir, "bench-rest", where, TerminalProgress()))
    if len(bench.first_ms) <= len(bench.kinds):
        return 1
    found = {f"ttft_p{percent}": compared(bench.first_ms, percent) for percent in (10, 50)}
    print(json.dumps(found))
    return int(found["ttft_p10"]["of_fresh"].get("rest", 0.0) >= MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())

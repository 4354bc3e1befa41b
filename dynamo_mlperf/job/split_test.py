"""What a sweep does with one split that is up: its rate search, or full-length runs at given rates."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.job.at_rest import Rest
from dynamo_mlperf.job.judged import judged
from dynamo_mlperf.job.measurement import LoadTest, measure
from dynamo_mlperf.job.pressure import PRESSURE_FILE, read_pressure
from dynamo_mlperf.job.rate_search import OVERHEAD_S, REST_REQUESTS, allocation_left_s, search_rate, search_settings
from dynamo_mlperf.job.sweep_records import Measured, run_at
from dynamo_mlperf.job.workload import REQUESTS_FILE
from dynamo_mlperf.load.enough import enough_queries
from dynamo_mlperf.record import write_verdict
from dynamo_mlperf.topology.searching import Search
from dynamo_mlperf.tuning.bottleneck import find_bottleneck
from dynamo_mlperf.tuning.probes import Answer
from dynamo_mlperf.tuning.sweep import FAILED, next_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.pressure import PressureGauge
    from dynamo_mlperf.job.workload import Workload

CEILING_TOLERANCES = 5.0
"""The highest rate that holds is at most this many tolerances above the highest that was seen to hold."""


@dataclass(frozen=True)
class SplitTest:
    """One split that is up and has proved itself.

    Attributes:
        job: The job with this split's topology and plan.
        deployment: What serves.
        workload: The requests.
        gauge: Reads what each role holds meanwhile.
        directory: The split's folder.
        name: The split, as in `5P6D`.
    """

    job: Job
    deployment: Deployment
    workload: Workload
    gauge: PressureGauge
    directory: Path
    name: str

    def measure(self, start_qps: float | None, budget_s: float | None) -> Measured:
        """Search, or run the file's rates; what does not measure is a split without a rate.

        Args:
            start_qps: An estimate of the answer.
            budget_s: Engine time for the search.

        Raises:
            ServingError: Something of the deployment died.
            Stopped: A signal came; what was measured is recorded.
        """
        sweep, began = self.job.topology.sweep, time.monotonic()
        rates = sweep.rates if sweep else None
        self.gauge.begin(self.directory / PRESSURE_FILE)
        try:
            found = self._search(start_qps, budget_s) if rates is None else self._run_rates(rates)
        except MeasureError as problem:
            spent_s = time.monotonic() - began
            found = Measured(None, None, False, None, FAILED, problem.what, None, None, spent_s)  # noqa: FBT003
        finally:
            self.gauge.end()
        held = _time_of(self.directory / found.confirmed) if found.confirmed else None
        return replace(found, bottleneck=find_bottleneck(read_pressure(self.directory / PRESSURE_FILE), held))

    def _search(self, start_qps: float | None, budget_s: float | None) -> Measured:
        settings = search_settings(self.job.topology, self.workload.settings, start_qps)
        if start_qps is not None and (settings.low or 0.0) <= start_qps <= (settings.high or start_qps):
            settings = replace(settings, start=start_qps)
        if budget_s is not None:
            settings = replace(settings, time_budget_s=min(budget_s, settings.time_budget_s or budget_s))
        outcome = search_rate(self.job, self.deployment, self.workload, settings, self.directory, label=self.name)
        answer = outcome.answer
        rate, located = answer["answer_qps"], bool(answer["located"])
        held = max((record.rate for record in outcome.history if record.final and record.final.valid), default=0.0)
        return Measured(
            rate,
            max(rate, held) * (1.0 + CEILING_TOLERANCES * settings.tolerance) if rate and located else None,
            located,
            answer["binding_constraint"],
            "answer" if isinstance(outcome.step, Answer) else outcome.step.kind,
            outcome.step.reason,
            answer["confirmed_in"],
            answer["target_qps"],
            answer["engine_seconds"],
            within=answer["located_within"],
        )

    def _run_rates(self, rates: Sequence[float]) -> Measured:
        """By halving: a rate below one that holds is not run."""
        began = time.monotonic()
        block = self.job.topology.search or Search()
        rest = Rest(self.job, self.deployment, block, self.workload.warm_up_bodies(REST_REQUESTS))
        ordered = sorted(rates)
        outcomes: dict[float, bool] = {}
        folders: dict[float, str] = {}
        binding = None
        while (rate := next_rate(ordered, outcomes)) is not None:
            if outcomes and not self._has_time(rate):  # what is measured is not lost to the job's end
                break
            folders[rate], verdict = self._run_again(rate, rest)
            outcomes[rate] = verdict["verdict"] == "VALID"
            binding = binding if outcomes[rate] else _first_broken(verdict)
        held = max((one for one, valid in outcomes.items() if valid), default=None)
        failed = min((one for one, valid in outcomes.items() if not valid), default=None)
        cut = "" if rate is None else f"; no time was left for {rate:g} QPS"
        told = f"full-length VALID run at {held:g} QPS" if held else f"none of {len(rates)} rates is VALID"
        return Measured(
            held,
            failed,
            failed is not None and not cut,
            binding,
            "answer" if held else "budget" if cut else "none of the rates",
            told + cut,
            folders[held] if held else None,
            held,
            time.monotonic() - began,
        )

    def _has_time(self, rate: float) -> bool:
        """Whether the allocation leaves time for a full-length run."""
        left_s = allocation_left_s(self.job)
        enough = enough_queries(replace(self.workload.settings, target_qps=rate), self.job.topology.measure.client)
        return left_s is None or left_s >= enough.most / rate + OVERHEAD_S

    def _run_again(self, rate: float, rest: Rest) -> tuple[str, dict[str, Any]]:
        """One run, made once more where it does not measure, as a search does with a probe."""
        try:
            return self._run(rate, rest)
        except MeasureError as problem:
            self.job.progress.note(f"{self.name} at {rate:g} QPS: {problem.what}; this run is made once more")
            return self._run(rate, rest)

    def _run(self, rate: float, rest: Rest) -> tuple[str, dict[str, Any]]:
        """One full-length run in a folder of its own; one that an interrupted sweep has finished already counts."""
        folder, known = run_at(self.directory, rate)
        if known is not None:
            return folder.name, known
        folder.mkdir()
        rest.reach()
        began_t = time.time()
        settings = replace(self.workload.settings, target_qps=rate)
        told = f"{self.name} at {rate:g} QPS: "
        requests = self.job.paths.root / REQUESTS_FILE
        test = LoadTest(f"{self.name}-{folder.name}", folder, folder / "loadgen", settings, requests, told=told)
        transfer = measure(self.job, self.deployment, test)
        verdict = judged(self.job, self.deployment, folder, settings, transfer, since_t=began_t)
        write_verdict(RunPaths(folder), verdict)
        if verdict.verdict == "FAILED":
            raise MeasureError(verdict.reasons[0].got, verdict.reasons[0].action)
        return folder.name, verdict.as_json()


def _time_of(run: Path) -> tuple[float, float] | None:
    """Begin and end of a finished run, in seconds since the epoch, by the counters that were kept then."""
    begins = [page.stat().st_mtime for page in RunPaths(run).metrics.glob("before/*")]
    ends = [page.stat().st_mtime for page in RunPaths(run).metrics.glob("after/*")]
    return (max(begins), min(ends)) if begins and ends else None


def _first_broken(verdict: dict[str, Any]) -> str | None:
    """The constraint that a run broke by most, of its limit."""
    over = {
        name: value["at_percentile"] / value["limit"]
        for name, value in verdict["latency_p99_ms"].items()
        if value["over_limit"] > value["over_limit_allowed"] >= 0
    }
    return max(over, key=lambda name: over[name], default=None)

"""The sweep inside the job: split after split in one allocation, each searched, until the best is known and confirmed.

What is next, what cannot win and what has won is decided by `tuning/sweep.py` from the records alone.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import write_atomic, write_json
from dynamo_mlperf.job.predictions import prediction_file, starts_of
from dynamo_mlperf.job.pressure import PressureGauge
from dynamo_mlperf.job.rate_search import allocation_left_s
from dynamo_mlperf.job.redoing import sought
from dynamo_mlperf.job.result import link_result
from dynamo_mlperf.job.resuming import identity
from dynamo_mlperf.job.split_record import result_of
from dynamo_mlperf.job.split_test import SplitTest
from dynamo_mlperf.job.sweep_records import SWEEP_DIR, SweepRecords
from dynamo_mlperf.job.sweep_start import first_state, identities_of, sweep_ports
from dynamo_mlperf.job.transition import Proof, job_of, move
from dynamo_mlperf.record import Reason, Verdict, read_events
from dynamo_mlperf.topology.plan import plan_as_json
from dynamo_mlperf.topology.role_splits import own_split, with_split
from dynamo_mlperf.tuning.prediction import FILE_NAME
from dynamo_mlperf.tuning.sweep import FAILED, NO_TIME, gpus_of, next_split, pruned, without_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.transition import Transition
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.topology.role_splits import RoleSplit
    from dynamo_mlperf.tuning.sweep import SplitResult

CANARY_SAMPLES = 2
_WAITS, _WAY, _MEASURED = "not begun", "its workers were being started", "it was being measured"


class Sweep:
    """One sweep of a job whose first split is up and has proved itself.

    Args:
        job: The job as it stands, with the first split's topology and plan.
        deployment: What serves.
        workload: The requests, and LoadGen's settings.
    """

    def __init__(self, job: Job, deployment: Deployment, workload: Workload) -> None:
        self._job, self._deployment, self._workload = job, deployment, workload
        self._file = job.origin or job.topology
        state = first_state(self._file, job.base_dir)
        here = own_split(job.topology).counts
        self._state = replace(state, running=next(split for split in state.splits if split.counts == here))
        self._blocks = sweep_ports(self._file)
        self._gauge = PressureGauge(deployment)
        self._used: Counter[str] = Counter()
        self._left_out: dict[str, str] = {}
        self._at: tuple[RoleSplit, str] | None = None
        self._way_s = _since_start_s(job)
        wanted = job.topology.measure
        facts = {
            "name": job.topology.name,
            "benchmark": wanted.benchmark,
            "scenario": wanted.scenario,
            "class": job.result_class,
            "order": [split.name for split in self._state.splits],
        }
        self._records = SweepRecords(job.paths.root / SWEEP_DIR, facts, sought=sought(self._file))
        self._starts = starts_of(self._file, job.base_dir)

    def run(self) -> Verdict:
        """Measure all splits that can win; the verdict is that of the winner's confirming run.

        Raises:
            ServingError: Something of the deployment died.
            Stopped: A signal came; all that was measured is recorded.
        """
        self._begin()
        try:
            while (split := self._next()) is not None:
                self._measure(split)
        except Exception as problem:
            from dynamo_mlperf.report.causes import headline

            why = headline(str(problem))
            self._write("stopped", f" when the run ended: {why}; resume the sweep")
            raise
        for name, reason in pruned(self._state).items():
            self._job.progress.note(f"sweep: {name} skipped: {reason}")
        self._write("stopped" if self._left_out else "finished")
        return self._conclude()

    def _begin(self) -> None:
        """Take over what an interrupted sweep has, and note how the first split came up."""
        job, records = self._job, self._records
        records.root.mkdir(exist_ok=True)
        predicted = prediction_file(self._file)
        if predicted is not None:
            shutil.copyfile((job.base_dir / predicted).absolute(), job.paths.root / FILE_NAME)
        if job.resume is not None:
            identities = identities_of(self._file, self._workload.settings)
            begun = records.take_over(job.resume / SWEEP_DIR, self._state.splits, identities)
            finished = [value["split"] for value in records.splits]
            records.facts = {
                **records.facts,
                "resumes": {"run": str(job.resume), "finished": finished, "probes": begun},
            }
            told = [f"{name} is finished" for name in finished]
            told += [f"{name} goes on with {count} probes" for name, count in begun.items()]
            job.progress.note(f"sweep: resumed: {', '.join(told) or 'nothing was finished'}")
        by_name = {split.name: split for split in self._state.splits}
        done = tuple(result_of(value, by_name[value["split"]]) for value in records.splits)
        self._state = replace(self._state, results=done)
        if self._running not in [result.split for result in done]:
            folder = records.folder(self._running)
            write_json(folder / "plan.json", plan_as_json(job.plan))
            write_atomic(folder / "evidence.json", job.paths.evidence.read_bytes())
        self._count(job)

    @property
    def _running(self) -> RoleSplit:
        """The split that is up."""
        return self._state.running or self._state.splits[0]

    def _count(self, job: Job) -> None:
        for worker in job.plan.workers:
            self._used[worker.role] = max(self._used[worker.role], worker.index + 1)

    def _next(self) -> RoleSplit | None:
        """The next split; None when there is none, or no time for one."""
        self._write("running")
        split = next_split(self._state)
        run_s = self._workload.settings.min_duration_ms / 1000.0
        self._left_out |= without_time(self._state, allocation_left_s(self._job), run_s, self._way_s)
        return None if self._left_out else split

    def _open_names(self) -> list[str]:
        state = self._state
        done = {result.split.name for result in state.results} | pruned(state).keys()
        return [split.name for split in state.splits if split.name not in done]

    def _measure(self, split: RoleSplit) -> None:
        if split != self._state.running:
            self._tell(split, _WAY)
        transition = self._go_to(split)
        job, records = self._job, self._records
        records.claim(split, identity(job.topology, self._workload.settings))
        self._tell(split, _MEASURED)
        test = SplitTest(job, self._deployment, self._workload, self._gauge, records.folder(split), split.name)
        found = test.measure(self._start_of(split), self._budget_s())
        records.keep(split, found, transition, self._starts.get(split.name))
        result = result_of(records.splits[-1], split)
        rate = "no rate holds" if found.rate_qps is None else f"{found.rate_qps:.5g} queries/s"
        job.progress.note(f"sweep: {split.name}: {rate} ({found.reason}); limited by {result.bottleneck or 'no role'}")
        self._state, self._at = replace(self._state, results=(*self._state.results, result)), None
        job.events.add(
            "split_end", split=split.name, rate_qps=found.rate_qps, kind=found.kind, bottleneck=result.bottleneck
        )

    def _go_to(self, split: RoleSplit) -> Transition | None:
        """Take the deployment to the split; None where it stands there already."""
        if split == self._state.running:
            return None
        job, workload = self._job, self._workload
        lost = frozenset(self._deployment.losses.lost)
        target = job_of(job, with_split(self._file, split), self._used, self._blocks, lost)
        proof = Proof(workload.bodies[:CANARY_SAMPLES], workload.warm_up_bodies(job.topology.timeouts.warmup_requests))
        transition = move(self._deployment, target, proof, self._records.folder(split))
        self._job = target
        self._show_plan(json.loads((self._records.folder(split) / "plan.json").read_text()))
        self._count(target)
        self._state, self._way_s = replace(self._state, running=split), transition.seconds
        return transition

    def _show_plan(self, plan: Mapping[str, Any]) -> None:
        """Make it the run's plan, on the nodes as they are bound."""
        path = self._job.paths.plan
        write_json(path, {**plan, "binding": json.loads(path.read_text())["binding"]})

    def _start_of(self, split: RoleSplit) -> float | None:
        """An estimate of its rate: the prediction, put right by how far the last was off; else by the limiting role."""
        predicted = self._starts
        measured = [result for result in self._state.results if result.rate_qps is not None]
        if not measured:
            return predicted.get(split.name)
        last = measured[-1]
        if split.name in predicted and last.split.name in predicted:
            return predicted[split.name] * (last.rate_qps or 0.0) / predicted[last.split.name]
        return predicted.get(split.name, _estimate(split, last))

    def _budget_s(self) -> float | None:
        """The file's budget of a split, and no more than its share of what the allocation leaves."""
        block = self._job.topology.sweep
        given_s = None if block is None else block.time_budget_s
        left_s = allocation_left_s(self._job)
        if left_s is None:
            return given_s
        share_s = max(left_s / max(1, len(self._open_names())), self._workload.settings.min_duration_ms / 1000.0)
        return share_s if given_s is None else min(given_s, share_s)

    def _tell(self, split: RoleSplit, doing: str) -> None:
        """Put on record what is being done: nobody can, once the power is gone."""
        self._at = split, doing
        self._write("running")

    def _write(self, state: str, cut: str = "") -> None:
        """Write the summary; where the sweep was `cut`, with why at each split that is open."""
        best = self._state.best
        self._records.write_summary(
            state=state,
            pruned=pruned(self._state),
            left_out=self._left_out or {name: self._standing(name) + cut for name in self._open_names()},
            winner=best.split.name if best else None,
        )

    def _standing(self, name: str) -> str:
        """How far a split is that has no result yet."""
        if self._at is None or self._at[0].name != name:
            return _WAITS
        split, doing = self._at
        probes = self._records.whole_probes(self._records.folder(split)) if doing == _MEASURED else 0
        return f"{doing}, {probes} probes so far" if probes else doing

    def _conclude(self) -> Verdict:
        best, job = self._state.best, self._job
        if best is None:
            return self._no_winner()
        value = next(one for one in self._records.splits if one["split"] == best.split.name)
        if job.topology.measure.accuracy or job.topology.measure.compliance:
            self._go_to(best.split)
        folder = self._records.folder(best.split)
        confirmed = folder / str(value["confirmed_in"])
        self._show_plan(json.loads((folder / "plan.json").read_text()))
        shutil.copyfile(folder / "evidence.json", job.paths.evidence)
        settings = replace(self._workload.settings, target_qps=value["target_qps"])
        winner = replace(job, topology=with_split(self._file, best.split))
        verdict = link_result(winner, self._deployment, confirmed, settings)
        notes = [f"the winner of a sweep over {len(self._state.splits)} splits: {best.split.name}", *verdict.notes]
        if value["resumed"]:
            notes.append(f"its confirming run was made by the run that this one goes on from: {job.resume}")
        return replace(verdict, notes=tuple(notes))

    def _no_winner(self) -> Verdict:
        job, wanted = self._job, self._job.topology.measure
        told = "; ".join(f"{value['split']}: {value['reason']}" for value in self._records.splits) or NO_TIME
        reason = Reason(
            "sweep",
            "a split with a rate that holds",
            f"none of {len(self._state.splits)} ({told})",
            way_on({value["kind"] for value in self._records.splits}),
        )
        failed = bool(self._records.splits) and all(value["kind"] == FAILED for value in self._records.splits)
        return Verdict(
            "FAILED" if failed else "INVALID",
            job.result_class,
            wanted.benchmark,
            wanted.scenario,
            str(job.paths.root),
            reasons=(reason,),
            model=job.topology.model.name,
        )


def way_on(kinds: set[str]) -> str:
    """What to do where no split holds any rate, by the kinds of their answers."""
    if not kinds:
        return "ask for more time (#SBATCH --time)"
    if kinds == {"budget"}:
        return "give each split more time: sweep.time_budget_s, search.time_budget_s, or the job's (#SBATCH --time)"
    return "read sweep/summary.json; lower sweep.rates, search.low or the size of the model"


def _since_start_s(job: Job) -> float:
    """Seconds since the job began to start its workers, all of them: what those of another split may need, too."""
    begun = [one["t"] for one in read_events(job.paths) if one["event"] == "phase_begin" and one["phase"] == "start"]
    return time.time() - begun[-1] if begun else 0.0


def _estimate(split: RoleSplit, last: SplitResult) -> float:
    """From the last split's rate by the workers of the role that limits it, else by GPUs; within a factor of two."""
    if last.bottleneck is None:
        factor = gpus_of(split) / gpus_of(last.split)
    else:
        there, here = last.split.of(last.bottleneck), split.of(last.bottleneck)
        factor = here.workers * here.tensor_parallel / (there.workers * there.tensor_parallel)
    return (last.rate_qps or 0.0) * min(max(factor, 0.5), 2.0)


def run_sweep(job: Job, deployment: Deployment, workload: Workload) -> Verdict:
    """Sweep over the file's splits; see `Sweep`."""
    with job.phase("measure"):
        return Sweep(job, deployment, workload).run()

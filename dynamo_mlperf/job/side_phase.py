"""The accuracy and compliance tests of a job, after its performance test, each in a LoadGen process of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, Stopped
from dynamo_mlperf.job.measurement import LoadPlace, measure
from dynamo_mlperf.job.scoring import score_apart
from dynamo_mlperf.job.side_tests import SideTest, names_of_side_tests, plan_side_test
from dynamo_mlperf.load.audit import AUDIT_CONFIG, COMPLIANCE_TESTS, place_audit_config
from dynamo_mlperf.load.end_of_text import end_of_text_ids
from dynamo_mlperf.load.side_results import (
    ACCURACY,
    Measured,
    Score,
    SideResult,
    accuracy_result,
    compliance_result,
    failed_result,
    score_here,
    write_result,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment
    from dynamo_mlperf.job.workload import Workload
    from dynamo_mlperf.load.bodies import IdsFrom
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.record import ResultClass, TransferEvidence, Verdict
    from dynamo_mlperf.topology.spec import Topology

AROUND_S = 30.0
"""What a test takes beside its queries, in seconds: processes that start, the last answers, scores."""

AUDIT_USED = f"{AUDIT_CONFIG}.used"
"""The test's `audit.config` after it, under a name that LoadGen does not look for."""


@dataclass(frozen=True)
class SideRun:
    """Where and how side tests run.

    Attributes:
        root: The run directory.
        result_class: What the results may be called.
        model: The served model name.
        ids_from: The server's way to be asked for token ids.
        tokenizer: Directory that tells the model's end-of-text ids; None where nobody named one.
        run: Runs LoadGen once for the test and returns the engines' counters.
        score: Makes the scores of what it logged.
    """

    root: Path
    result_class: ResultClass
    model: str
    ids_from: IdsFrom
    tokenizer: Path | None
    run: Callable[[SideTest], TransferEvidence | None]
    score: Score = score_here


def run_side_test(place: SideRun, test: SideTest) -> SideResult:
    """Run, judge and record one side test; what goes wrong with it is its own result.

    Raises:
        Stopped: A signal came; the test's folder then says FAILED.
    """
    directory = place.root / test.name
    measured = Measured(directory, test.settings, place.result_class, None, test.data_set)
    try:
        directory.mkdir()
        test.write_requests(place.root, place.model, place.ids_from)
        measured = replace(measured, transfer=_run_loadgen(place, test, directory))
        if test.compliance is None:
            return accuracy_result(measured, place.score)
        return compliance_result(test.compliance, measured, end_of_text(place.tokenizer, test.name), place.score)
    except DynamoMlperfError as problem:
        result = failed_result(test.name, measured, problem, audit=test.compliance is not None)
        write_result(directory, result)
        if isinstance(problem, Stopped):
            raise
        return result


def end_of_text(tokenizer: Path | None, test: str) -> frozenset[int]:
    """The model's own end-of-text ids where the test needs them, else none.

    Raises:
        ConfigError: It needs them, and nobody can tell.
    """
    if test != "TEST06":
        return frozenset()
    if tokenizer is None:
        raise ConfigError(
            "TEST06 counts end-of-text tokens, and the model's own are not known", "name its files: --tokenizer DIR"
        )
    return end_of_text_ids(tokenizer)


def _run_loadgen(place: SideRun, test: SideTest, directory: Path) -> TransferEvidence | None:
    if test.compliance is None:
        return place.run(test)
    placed = place_audit_config(test.compliance, directory)
    try:
        return place.run(test)
    finally:
        placed.rename(directory / AUDIT_USED)


def side_tests_s(topology: Topology, settings: LoadSettings) -> float:
    """About how many seconds the accuracy and compliance tests of this file take at the rate of `settings`."""
    wanted = topology.measure
    rules = benchmark(wanted.benchmark, wanted.round)
    most = settings.performance_sample_count
    queries = {name: min(COMPLIANCE_TESTS[name].min_query_count, most) for name in rules.compliance_tests}
    queries[ACCURACY] = settings.accuracy_sample_count
    names = names_of_side_tests(rules, accuracy=wanted.accuracy, compliance=wanted.compliance)
    return sum(queries[name] / settings.target_qps + AROUND_S for name in names)


def run_side_tests(job: Job, deployment: Deployment, workload: Workload, verdict: Verdict) -> Verdict:
    """The verdict with those of the accuracy and compliance tests that the file asks for beside it.

    Raises:
        Stopped: A signal came.
    """
    wanted = job.topology.measure
    rules = benchmark(wanted.benchmark, wanted.round)
    names = names_of_side_tests(rules, accuracy=wanted.accuracy, compliance=wanted.compliance)
    data_set = job.topology.resolve(job.base_dir).dataset
    if not names or data_set is None or verdict.verdict == "FAILED" or wanted.client != "loadgen":
        return verdict
    place = SideRun(
        root=job.paths.root,
        result_class=job.result_class,
        model=deployment.endpoints.model,
        ids_from="dynamo" if deployment.endpoints.plan.frontends else "vllm",
        tokenizer=next((path for path in deployment.model_dirs.values() if path.is_dir()), None),
        run=lambda test: measure(job, deployment, test.load_test(job.paths.root)),
        score=partial(score_apart, LoadPlace.of_job(job), job.topology.timeouts.scoring_s),
    )
    # A search has found the rate by itself; the performance test is the one whose verdict this is.
    settings = replace(workload.settings, target_qps=verdict.target_qps or workload.settings.target_qps)
    results: dict[str, SideResult] = {}
    for name in names:
        with job.phase(ACCURACY if name == ACCURACY else "compliance"):
            test = plan_side_test(name, settings, data_set, job.result_class)
            results[name] = run_side_test(place, test)
            job.progress.say(results[name].line())
            job.events.add("side_test", test=name, verdict=results[name].verdict)
    return replace(verdict, tests={name: result.verdict for name, result in results.items()})

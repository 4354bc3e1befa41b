"""One test against an endpoint that is up already: the same client, files, verdict and exit codes as in a job.

What only the deployment itself could prove is not proved here, and the verdict says so: how the endpoint is deployed,
and whether it is disaggregated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, ExitCode, MeasureError, SetupError
from dynamo_mlperf.files import RunPaths, read_bounded, write_json
from dynamo_mlperf.job.context import local_run_id, new_nonce, phase
from dynamo_mlperf.job.endpoint import BareWait, Endpoint, check_model, ids_from
from dynamo_mlperf.job.endpoint_warm_up import NO_WARM_UP, send_canary, send_warm_up
from dynamo_mlperf.job.endpoints_at_url import UrlTest
from dynamo_mlperf.job.endpoints_data import ClientPlace
from dynamo_mlperf.job.in_flight import client_processes
from dynamo_mlperf.job.measurement import LoadPlace, LoadTest, run_loadgen
from dynamo_mlperf.job.prompt_limit import refuse_long
from dynamo_mlperf.job.scoring import score_apart
from dynamo_mlperf.job.side_phase import SideRun, end_of_text, run_side_test
from dynamo_mlperf.job.side_tests import SideTest, plan_side_test
from dynamo_mlperf.job.simulated import refuse_simulated
from dynamo_mlperf.job.versions import own_versions
from dynamo_mlperf.job.workload import REQUESTS_FILE, load_samples, sample_messages, while_prepared
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.requests import RequestsFile, StoredBodies, write_requests
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.machine import (
    make_scratch,
    own_cpu_s,
    own_start_t,
    peak_memory_bytes,
    raise_descriptor_limit,
    run_mark,
)
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EXIT_CODES, EventLog, failed_verdict, new_run_directory, write_verdict
from dynamo_mlperf.serving.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dynamo_mlperf.job.context import Progress
    from dynamo_mlperf.load.bodies import IdsFrom
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.load.side_results import SideResult
    from dynamo_mlperf.record import ResultClass, Verdict

PERFORMANCE = "performance"

UNPROVED = (
    "measured at an endpoint that was up already: how it is deployed, and whether it is disaggregated, is not proved"
)


@dataclass(frozen=True)
class EndpointTest:
    """What to measure.

    Attributes:
        endpoint: Where.
        name: `performance`, `accuracy` or a compliance test.
        settings: Of the performance test, which the others go with.
        data_set: Directory of the performance test's data set.
        result_class: What the result may be called.
        run_dir: The run directory.
        warmup_requests: Requests before the timed test; 0 leaves the warm-up out.
        scoring_s: How long the scoring of an accuracy test's answers may take.
        tokenizer: The model's directory, which tells its end-of-text ids and counts its tokens; None where nobody
            named one.
        endpoints_python: Python of an environment with MLCommons endpoints, which then is the client; None = LoadGen.
        with_accuracy: Whether the accuracy phase of endpoints follows.
    """

    endpoint: Endpoint
    name: str
    settings: LoadSettings
    data_set: Path
    result_class: ResultClass
    run_dir: Path
    warmup_requests: int
    scoring_s: float
    tokenizer: Path | None = None
    endpoints_python: str | None = None
    with_accuracy: bool = False

    def record(self) -> dict[str, Any]:
        """`endpoint.json`: what all tests of one run directory have in common."""
        return {
            "urls": list(self.endpoint.urls),
            "model": self.endpoint.model,
            "class": self.result_class,
            "data_set": str(self.data_set),
            **({} if self.endpoints_python is None else {"client": "endpoints"}),
            "settings": self.settings.to_json(),
        }


def measure_endpoint(test: EndpointTest, progress: Progress) -> tuple[Verdict | SideResult, ExitCode]:
    """Run one test and record it; whatever happens, nothing of it is left running.

    Raises:
        ConfigError: The run directory is of other tests, or what was asked for cannot be measured.
        SetupError: The run directory cannot be written.
    """
    side = None
    if test.name != PERFORMANCE:
        side = plan_side_test(test.name, test.settings, test.data_set, test.result_class)
        end_of_text(test.tokenizer, test.name)
    stop = StopFlag()
    stop.install()
    if (unchecked := _refuse(test, side, stop)) is not None:
        progress.note(f"not checked: {unchecked} (--tokenizer names the model's directory)")
    raise_descriptor_limit()
    paths = RunPaths(test.run_dir)
    try:
        _open(test, paths)
        run = _Run(test, paths, progress, stop)
        try:
            return run.side(side) if side is not None else run.performance()
        finally:
            run.close()
    except OSError as problem:
        where = problem.filename2 or problem.filename or test.run_dir
        raise SetupError(f"{where}: {problem.strerror}", "mend that or name another --run-dir, then run again") from (
            problem
        )


def _refuse(test: EndpointTest, side: SideTest | None, stop: StopFlag) -> str | None:
    """Refuse what cannot be measured before a run directory is used up.

    One that does not answer is no mistake of the command: that is recorded, as what the run found.

    Returns:
        What could not be checked, for people; None where all was.

    Raises:
        ConfigError: It lists other models, what answers is no model and the result would be official, or a prompt
            leaves no room for an answer within the limit that it lists.
    """
    wait, official = BareWait(stop), test.result_class == "official"
    with contextlib.suppress(MeasureError):
        limit = check_model(test.endpoint, wait, official=official)
        if official:
            refuse_simulated(test.endpoint, wait)
        if limit is not None:
            samples = load_samples(test.settings.benchmark, test.data_set if side is None else side.data_set)
            where = f"by the model list of {test.endpoint.urls[0]}"
            return refuse_long(samples, test.tokenizer or test.data_set, limit, where)
    return None


def _open(test: EndpointTest, paths: RunPaths) -> None:
    """A new run directory, or (for accuracy and compliance) that of the same endpoint and settings."""
    record, path = test.record(), paths.endpoint
    if test.name == PERFORMANCE or not paths.root.exists():
        new_run_directory(paths.root)
        paths.logs.mkdir(parents=True)
        write_json(paths.versions, _versions())
        write_json(path, record)
        return
    _check_same(path, record)
    if (paths.root / test.name).exists():
        raise ConfigError(
            f"{paths.root / test.name} exists: results of two tests would mix",
            "remove that folder to run the test again, or name another --run-dir",
        )


def _check_same(path: Path, record: dict[str, Any]) -> None:
    try:
        known = json.loads(read_bounded(path))
        settings = known["settings"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path.parent} is no run of `measure`: {path.name} cannot be read", "name another --run-dir"
        ) from error
    other = [key for key in record if key != "settings" and known.get(key) != record[key]]
    other += [f"settings.{key}" for key, value in record["settings"].items() if settings.get(key) != value]
    if other:
        first = other[0]
        was, now = (
            entry["settings"][first.partition(".")[2]] if "." in first else entry.get(first)
            for entry in (known, record)
        )
        raise ConfigError(
            f"{path.parent} was measured with other values: {', '.join(other)} ({first} was {was}, now {now}); the "
            "tests of one run directory go together",
            "give the same values, or name another --run-dir",
        )


def _versions() -> dict[str, str]:
    return {**own_versions(), "mlcommons-loadgen": metadata.version("mlcommons-loadgen")}


class _Run:
    """The phases of one test."""

    def __init__(self, test: EndpointTest, paths: RunPaths, progress: Progress, stop: StopFlag) -> None:
        self._test, self._paths, self._progress = test, paths, progress
        self._events = EventLog(paths)
        self._allocation = LocalAllocation(1)
        self._supervisor = Supervisor(self._allocation, paths, self._events, stop)
        nonce = new_nonce()
        self._place = LoadPlace(self._supervisor, paths, progress, local_run_id("measure", nonce))
        self._scratch = make_scratch(nonce, run_mark(self._place.run_id))  # by which `status` and `cancel` find us

    def close(self) -> None:
        """Nothing is left running."""
        self._supervisor.stop_all()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return phase(self._progress, self._events, name)

    def _check_endpoint(self) -> None:
        """It answers, and serves the model: what else could be refused has been, before there was a directory."""
        check_model(self._test.endpoint, self._supervisor, official=self._test.result_class == "official")

    def performance(self) -> tuple[Verdict, ExitCode]:
        """The performance test, to its recorded verdict."""
        place = self._allocation.describe()
        self._events.add("job_begin", called_t=own_start_t(), run=self._place.run_id, place=place)
        try:
            verdict = self._measured()
            code = verdict.exit_code
        except DynamoMlperfError as problem:
            self._events.add("error", what=str(problem))
            verdict, code = self._failed(problem), problem.exit_code
        write_verdict(self._paths, verdict)
        self._events.add("job_end", exit_code=int(code), peak_memory_bytes=peak_memory_bytes(), cpu_s=own_cpu_s())
        return verdict, code

    def _measured(self) -> Verdict:
        test, root = self._test, self._paths.root
        if test.endpoints_python is not None:
            return self._measured_by_endpoints(test.endpoints_python)
        with self._phase("check"):
            self._check_endpoint()
            self._write_requests(root / REQUESTS_FILE)
        evidence = self._warmed(StoredBodies(root / REQUESTS_FILE))
        with self._phase("measure"):
            self._load(LoadTest("loadgen", root, self._paths.load, test.settings, root / REQUESTS_FILE))
        write_json(self._paths.evidence, evidence)
        with self._phase("judge"):
            return self._told(judge(self._paths.load, test.settings, None, test.result_class, str(root)))

    def _told(self, verdict: Verdict) -> Verdict:
        """The verdict with the model, and what a reader should know of how it came about."""
        notes = (*verdict.notes, UNPROVED, *(() if self._test.warmup_requests else (NO_WARM_UP,)))
        return dataclasses.replace(verdict, model=self._test.endpoint.model, notes=notes)

    def _warmed(self, bodies: Sequence[bytes], *, own: bool = False) -> dict[str, Any]:
        """Canary and warm-up, before anything is timed.

        Args:
            bodies: The requests of the test.
            own: Whether the load client warms up by itself.

        Returns:
            What `evidence.json` says of them.
        """
        test, say = self._test, self._progress.say
        timeout_s, found = test.settings.request_timeout_s, dict[str, Any]()
        with self._phase("canary"):
            found["canary"] = send_canary(test.endpoint, bodies[0], self._supervisor, timeout_s, say)
        if own:
            found["warmup"] = {"requests": test.warmup_requests, "by": "endpoints"}
        elif test.warmup_requests == 0:
            found["warmup"] = {"requests": 0}
        else:
            first = [bodies[number % len(bodies)] for number in range(test.warmup_requests)]
            with self._phase("warmup"):
                found["warmup"] = send_warm_up(test.endpoint, first, self._supervisor, timeout_s, say)
        return {**found, "not proved": UNPROVED}

    def _measured_by_endpoints(self, python: str) -> Verdict:
        test, run_id = self._test, self._place.run_id
        place = ClientPlace(python, self._supervisor, self._allocation, self._paths, self._progress, run_id)
        at_url = UrlTest(
            place,
            test.endpoint,
            test.settings,
            test.data_set,
            test.result_class,
            test.tokenizer,
            test.with_accuracy,
            test.warmup_requests,
        )
        with self._phase("check"):
            self._check_endpoint()
            record = at_url.prepare(self._events)
        evidence = self._warmed([self._body(0)], own=True)
        with self._phase("measure"):
            at_url.measure(record)
        write_json(self._paths.evidence, evidence)
        with self._phase("judge"):
            return self._told(at_url.judge(record))

    def _body(self, index: int) -> bytes:
        """The request of one sample."""
        settings = self._test.settings
        rules = benchmark(settings.benchmark, settings.round_name)
        sample = load_samples(settings.benchmark, self._test.data_set)[index]
        effort = rules.reasoning_effort.get("performance")
        return chat_body(self._test.endpoint.model, sample_messages(sample), rules.max_new_tokens, effort=effort)

    def side(self, side: SideTest) -> tuple[SideResult, ExitCode]:
        """An accuracy or compliance test, to its recorded result."""
        test = self._test
        with self._phase("check"):
            self._check_endpoint()
            way = self._ids_from(side)
        with self._phase("accuracy" if side.compliance is None else "compliance"):
            place = SideRun(
                self._paths.root,
                test.result_class,
                test.endpoint.model,
                way,
                test.tokenizer,
                self._load_side,
                partial(score_apart, self._place, test.scoring_s),
            )
            result = run_side_test(place, side)
        self._events.add("side_test", test=side.name, verdict=result.verdict)
        return result, EXIT_CODES[result.verdict]

    def _ids_from(self, side: SideTest) -> IdsFrom:
        if not side.keep_token_ids:
            return "dynamo"
        messages = sample_messages(load_samples(side.settings.benchmark, side.data_set)[0])
        body = chat_body(self._test.endpoint.model, messages, 1)
        return ids_from(self._test.endpoint, body, self._supervisor, side.settings.request_timeout_s)

    def _load_side(self, side: SideTest) -> None:
        self._load(side.load_test(self._paths.root))

    def _load(self, test: LoadTest) -> None:
        clients = client_processes(test.settings)
        spec = MeasureSpec(
            settings=test.settings,
            requests=test.requests,
            out_dir=test.load_dir,
            frontends=self._test.endpoint.entrances,
            client_workers=clients,
            keep_text=test.keep_text,
            keep_token_ids=test.keep_token_ids,
            audit_config=test.audit_config,
        )
        path = test.directory / "measure.json"
        write_json(path, spec.to_json())
        run_loadgen(self._place, test, path)

    def _write_requests(self, path: Path) -> None:
        settings = self._test.settings
        rules = benchmark(settings.benchmark, settings.round_name)
        samples = load_samples(settings.benchmark, self._test.data_set)
        model, most = self._test.endpoint.model, rules.max_new_tokens
        effort = rules.reasoning_effort.get("performance")
        bodies = (chat_body(model, sample_messages(sample), most, effort=effort) for sample in samples)
        write_requests(path, while_prepared(bodies, len(samples), self._supervisor.tick, self._progress.say))
        if len(RequestsFile(path)) != settings.dataset_samples:
            raise MeasureError(f"{self._test.data_set} has changed since it was looked at", "run again")

    def _failed(self, problem: DynamoMlperfError) -> Verdict:
        settings = self._test.settings
        return failed_verdict(
            (self._test.result_class, settings.benchmark, settings.scenario),
            self._paths.root,
            problem,
            target_qps=settings.target_qps,
            model=self._test.endpoint.model,
        )

"""One LoadGen test in a fresh process: `python -m dynamo_mlperf.load.loadgen_process SPEC.json`.

The only module that imports `mlperf_loadgen`. LoadGen keeps configuration for the life of a process and logs an error
at a second one, so each test gets its own. This process does nothing but issue and complete: HTTP lives in the client
processes, LoadGen runs in a thread, and the main thread reads events and answers signals.

Exit status: 0 measured (whatever the validity), 4 could not measure (one line on stderr), 130 and 143 stopped.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
import time
import traceback
from array import array
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen

from dynamo_mlperf.errors import DynamoMlperfError, ExitCode, MeasureError, Stopped
from dynamo_mlperf.files import write_atomic, write_json
from dynamo_mlperf.load.account import Account
from dynamo_mlperf.load.audit import AUDIT_CONFIG
from dynamo_mlperf.load.channel import Event, Kind
from dynamo_mlperf.load.health import client_limit
from dynamo_mlperf.load.limits import Limits, check_limits, read_limits
from dynamo_mlperf.load.logs import DETAIL, audit_notice, generated_queries
from dynamo_mlperf.load.queries import CUT, CUT_FILE
from dynamo_mlperf.load.requests import RequestsFile
from dynamo_mlperf.load.spec import MeasureSpec, read_spec
from dynamo_mlperf.load.user_conf import expected_queries, parse_user_conf, user_conf
from dynamo_mlperf.load.workers import Worker, Workers
from dynamo_mlperf.process.signals import StopFlag

_EMBEDDED_THEN_USER_CONF = 1
_POLL_S = 0.2
_PROGRESS_S = 1.0
_SWITCH_S = 0.0005
"""Longest turn of a Python thread while LoadGen's waits for its own: it bounds the issue delay."""

_FIRST, _FAILED, _ENDS = int(Kind.FIRST), int(Kind.FAILED), (int(Kind.DONE), int(Kind.FAILED))
"""As plain numbers: looking a member of an enumeration up costs more than to compare it."""

_CHECK_NS = 500_000_000
_STUCK_GRACE_NS = 30_000_000_000
"""A client process that has not failed a request this long after its deadline is stuck."""


class Test:
    """One test: the SUT and QSL of LoadGen on one side, the client processes on the other."""

    def __init__(self, spec: MeasureSpec, workers: Workers, stop: StopFlag, limits: Limits) -> None:
        self._spec = spec
        self._limits = limits
        self._settings = spec.settings
        self._workers = workers
        self._stop = stop
        self._account = Account(spec.settings, spec.max_tokens)
        self._offline = spec.settings.loadgen_scenario == "Offline"
        logs_answers = spec.settings.mode == "accuracy" or spec.audit_config
        self._logs_tokens = logs_answers and spec.settings.use_token_latencies
        self._next = 0  # Offline: the first query that still waits for its turn
        self._nothing = array("B", bytes(8))
        self._nothing_at = self._nothing.buffer_info()[0]
        self._started_ns = 0
        self._check_ns = 0
        self._planned: int | None = None
        self._finished = threading.Event()
        self._problem = ""

    # -- LoadGen's thread --

    def _run_loadgen(self) -> None:
        try:
            self._start_test()
        except (RuntimeError, MeasureError, OSError, ValueError) as error:
            self._problem = f"LoadGen did not run: {error}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread would wait for ever
            traceback.print_exc()
            self._problem = f"LoadGen did not run: {error!r}"
        self._finished.set()
        self._workers.wake()

    def _start_test(self) -> None:
        settings, spec = self._settings, self._spec
        conf = spec.out_dir / "user.conf"
        test = loadgen.TestSettings()
        status = test.FromConfig(str(conf), settings.loadgen_model, settings.loadgen_scenario, _EMBEDDED_THEN_USER_CONF)
        if status:
            raise MeasureError(f"LoadGen refused {conf} with status {status}")
        test.scenario = getattr(loadgen.TestScenario, settings.loadgen_scenario)
        accuracy = settings.mode == "accuracy"
        test.mode = loadgen.TestMode.AccuracyOnly if accuracy else loadgen.TestMode.PerformanceOnly
        log = loadgen.LogSettings()
        log.enable_trace = False
        log.log_output.outdir = str(spec.out_dir)
        log.log_output.copy_summary_to_stdout = False
        samples = min(settings.performance_sample_count, settings.dataset_samples)
        sut = loadgen.ConstructSUT(self._issue_offline if self._offline else self._issue, _nothing_to_flush)
        qsl = loadgen.ConstructQSL(settings.dataset_samples, samples, _nothing_to_load, _nothing_to_load)
        loadgen.StartTestWithLogSettings(sut, qsl, test, log, AUDIT_CONFIG)
        loadgen.DestroyQSL(qsl)
        loadgen.DestroySUT(sut)

    def _issue(self, queries: list[Any]) -> None:
        now_ns = time.monotonic_ns()
        for query in queries:
            order = self._account.issue(query.id, query.index, now_ns)
            self._workers.least_loaded().dispatch(order, query.index, now_ns)

    def _issue_offline(self, queries: list[Any]) -> None:
        for query in queries:
            self._account.issue(query.id, query.index, 0)
        self._workers.wake()

    # -- the main thread --

    def run(self) -> None:
        """Run the test to its end.

        Raises:
            MeasureError: LoadGen or a client process did not do its part.
            Stopped: A signal came.
        """
        self._started_ns = time.monotonic_ns()
        sys.setswitchinterval(_SWITCH_S)
        gc.freeze()  # what is loaded by now stays: no collection in the timed window looks at it
        threading.Thread(target=self._run_loadgen, name="loadgen", daemon=True).start()
        reporter = threading.Thread(target=self._report, name="progress", daemon=True)
        reporter.start()
        while not self._finished.is_set():
            self._stop.check()
            self._complete(self._workers.events(_POLL_S))
            if self._offline:
                self._feed_offline()
            self._check_stuck(time.monotonic_ns())
        if self._problem:
            raise MeasureError(self._problem)
        reporter.join()

    def _feed_offline(self) -> None:
        """Fill every client process up to its bound, one write each; a place that got free is filled at once."""
        account = self._account
        while self._next < len(account):
            worker = self._workers.least_loaded()
            if worker.in_flight >= self._settings.max_in_flight:
                break
            now_ns = time.monotonic_ns()
            account.sent_to_worker(self._next, now_ns)
            worker.collect(self._next, account.samples[self._next], now_ns)
            self._next += 1
        for worker in self._workers.all:
            worker.flush()

    def _complete(self, batch: list[tuple[Worker, Event]]) -> None:
        account, ids = self._account, self._account.ids
        account.peak_in_flight = max(account.peak_in_flight, account.in_flight)
        firsts: list[Any] = []
        answers: list[Any] = []
        alive: list[array[int]] = []  # LoadGen reads the buffers during the calls below
        for worker, event in batch:
            kind = event.kind
            if kind == _FIRST:
                account.first_token(event)
                firsts.append(loadgen.QuerySampleResponse(ids[event.order], *self._buffer(event.tail, alive, 1)))
                continue
            if kind not in _ENDS:
                continue
            failed = kind == _FAILED
            if failed and self._logs_tokens and not event.first_ns:
                # LoadGen (6.0.17) crashes where it logs the answer of a query that never had a first token.
                firsts.append(loadgen.QuerySampleResponse(ids[event.order], self._nothing_at, 1))
            worker.ended += 1
            account.end(event, event.tail.decode("utf-8", "replace") if failed else "")
            at, size = self._buffer(b"" if failed else event.tail, alive, 0)
            answers.append(loadgen.QuerySampleResponse(ids[event.order], at, size, event.output_tokens))
        if firsts:
            loadgen.FirstTokenComplete(firsts)
        if answers:
            loadgen.QuerySamplesComplete(answers)

    def _buffer(self, content: bytes, alive: list[array[int]], least_bytes: int) -> tuple[int, int]:
        """Address and size of a buffer with `content` for LoadGen, kept by `alive`."""
        if not content:
            return self._nothing_at, least_bytes
        kept = array("B", content)
        alive.append(kept)
        return kept.buffer_info()[0], len(kept)

    def _check_stuck(self, now_ns: int) -> None:
        if now_ns < self._check_ns:
            return  # this is asked after every event
        self._check_ns = now_ns + _CHECK_NS
        oldest_ns = self._account.oldest_waiting_ns()
        if oldest_ns is None:
            return
        waited_ns = now_ns - oldest_ns
        if waited_ns > self._spec.timeout_s * 1e9 + _STUCK_GRACE_NS:
            raise MeasureError(
                f"a client process neither answered nor failed a request {waited_ns / 1e9:.0f} s after its issue, "
                f"{self._spec.timeout_s:g} s being its deadline",
                "look at client_worker_*.log, and for a machine that was suspended",
            )

    # -- a thread of its own: a slow disk must not delay completions --

    def _report(self) -> None:
        try:
            self._write_progress()
            while not self._finished.wait(_PROGRESS_S):
                self._account.note_in_flight()
                self._write_progress()
        except OSError as error:
            self._give_up(f"progress.json cannot be written: {error}")

    def _give_up(self, problem: str) -> None:
        self._problem = problem
        self._finished.set()
        self._workers.wake()

    def _write_progress(self) -> None:
        detail = self._spec.out_dir / DETAIL
        if self._planned is None:
            self._planned = generated_queries(detail)
            if self._planned is not None and self._spec.audit_config and not audit_notice(detail):
                self._give_up(f"audit file not picked up: {detail} says nothing of {Path(AUDIT_CONFIG).resolve()}")
        expected = self._planned or expected_queries(self._settings)
        progress = self._account.progress(self._started_ns, time.monotonic_ns(), expected)
        progress["generated_queries"] = self._planned
        write_json(self._spec.out_dir / "progress.json", progress, durable=False)

    def write(self, ready: list[Event]) -> None:
        """End the client processes, then write `queries.csv` and, last, `client.json`."""
        wall_s = (time.monotonic_ns() - self._started_ns) / 1e9
        accounts = {name: json.loads(tail) for name, tail in self._workers.finish().items()}
        account, settings = self._account, self._settings
        self._write_progress()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own = {"name": "loadgen", "role": "loadgen", "cpu_s": round(usage.ru_utime + usage.ru_stime, 3)}
        counted = {"connections_opened", "retried_connections"}
        http = [
            {"name": name, "role": "http", **{key: value for key, value in entry.items() if key not in counted}}
            for name, entry in accounts.items()
        ]
        client: dict[str, Any] = {
            "requests": len(account),
            "failed": account.failures(),
            "issue_delay_ms": account.issue_delay_ms(),
            "processes": [own, *http],
            "max_in_flight": account.peak_in_flight,
            "in_flight_over_time": account.in_flight_over_time(),
            "limits": self._limits.to_json(),
            "in_flight_bound": settings.max_in_flight * self._spec.client_workers if self._offline else None,
            "warm_connections": sum(event.order for event in ready),
            "connections_opened": sum(entry["connections_opened"] for entry in accounts.values()),
            "retried_connections": sum(entry["retried_connections"] for entry in accounts.values()),
            "wall_s": round(wall_s, 3),
            "first_issue_t": self._epoch_s(account.first_issue_ns()),
        }
        client["client_limited"] = client_limit(client, settings)
        write_atomic(self._spec.out_dir / "queries.csv", account.queries_csv())
        write_json(self._spec.out_dir / "client.json", client)

    def write_cut(self) -> None:
        """Of a test that was stopped: `queries-cut.csv`, with what is known of each query."""
        write_atomic(self._spec.out_dir / CUT_FILE, self._account.queries_csv(CUT))

    def _epoch_s(self, at_ns: int | None) -> float | None:
        """Seconds since the epoch of a time on the monotonic clock."""
        return None if at_ns is None else round(time.time() - (time.monotonic_ns() - at_ns) / 1e9, 3)


def _nothing_to_flush() -> None:
    """LoadGen's flush: every query has been sent when its issue returns."""


def _nothing_to_load(_indices: list[int]) -> None:
    """LoadGen's load and unload: the bodies are mapped by the client processes."""


def prepare(spec: MeasureSpec) -> Limits:
    """Check that this can be a clean test, and write `user.conf`; return the limits that it was checked against.

    Raises:
        MeasureError: An `audit.config` that is not wanted (or is wanted and missing), an `out_dir` with logs, or more
            in flight than the operating system allows.
        ConfigError: The requests file is unreadable, or `user.conf` would not take effect.
    """
    audit = Path(AUDIT_CONFIG).resolve()
    if audit.exists() and not spec.audit_config:
        raise MeasureError(
            f"{audit} would change the settings of this run", "remove it, or start the run in another directory"
        )
    if spec.audit_config and not audit.is_file():
        raise MeasureError(
            f"audit file not picked up: {audit} is no file, and this compliance run needs it",
            "put the audit file there",
        )
    spec.out_dir.mkdir(parents=True, exist_ok=True)
    left = sorted([*spec.out_dir.glob("mlperf_log_*"), *spec.out_dir.glob("queries.csv")])
    if left:
        raise MeasureError(f"{spec.out_dir} already holds {left[0].name} of another test", "name an empty out_dir")
    samples = len(RequestsFile(spec.requests))
    if samples != spec.settings.dataset_samples:
        raise MeasureError(
            f"{spec.requests} holds {samples} requests, the settings say {spec.settings.dataset_samples}",
            "build the settings from the data set that the requests were made of",
        )
    limits = read_limits(spec)
    check_limits(spec, limits)
    text = user_conf(spec.settings)
    parse_user_conf(text, spec.settings)
    write_atomic(spec.out_dir / "user.conf", text)
    return limits


def measure(spec_path: Path, stop: StopFlag) -> None:
    """Run the test that the spec describes.

    Raises:
        DynamoMlperfError: It was stopped or could not be measured.
    """
    spec = read_spec(spec_path)
    limits = prepare(spec)
    workers = Workers(spec_path.resolve(), spec.out_dir, spec.client_workers)
    try:
        ready = workers.connect(stop.check)
        test = Test(spec, workers, stop, limits)
        try:
            test.run()
        except Stopped:
            test.write_cut()
            raise
        test.write(ready)
    finally:
        workers.kill()


def main(arguments: list[str]) -> int:
    """Run one test; the exit status says whether it was measured."""
    stop = StopFlag()
    stop.install()
    if len(arguments) != 1:
        print("usage: python -m dynamo_mlperf.load.loadgen_process SPEC.json", file=sys.stderr)  # noqa: T201
        return ExitCode.USAGE
    try:
        measure(Path(arguments[0]), stop)
    except DynamoMlperfError as error:
        print(str(error).replace("\n  Try: ", "; try: "), file=sys.stderr)  # noqa: T201 - the one line
        stopped = error.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        return error.exit_code if stopped else ExitCode.FAILED
    except OSError as error:
        print(f"the measurement stopped: {error}", file=sys.stderr)  # noqa: T201 - the one line
        return ExitCode.FAILED
    return ExitCode.DONE


if __name__ == "__main__":
    status: int = ExitCode.BUG
    try:
        status = main(sys.argv[1:])
    finally:
        if status == ExitCode.BUG:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # LoadGen's thread cannot be interrupted, and must not outlive a test that was stopped

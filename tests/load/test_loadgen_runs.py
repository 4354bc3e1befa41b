"""Real LoadGen against the oracle: what is measured is what the oracle did, and what fails is named."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.logs import read_logs
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.settings import LoadSettings, Mode, build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.user_conf import expected_effective
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import Verdict
from tests.fakes.oracle import FIRST_TOKEN_ID, Oracle, Script

pytestmark = pytest.mark.loadgen

QWEN = "qwen3-vl-235b-a22b"
ROOMY_MS = 60_000
"""A limit that a busy machine stays within, where the latency is not what a test is about."""


@dataclass(frozen=True)
class Load:
    """One load: samples, rate, duration, and which samples ask the oracle to misbehave."""

    scenario: str = "Server"
    name: str = QWEN
    qps: float = 80.0
    seconds: float = 0.8
    samples: int = 64
    limit_ms: float | None = ROOMY_MS
    timeout_s: float = 20.0
    workers: int = 1
    accuracy: bool = False
    token_ids: bool = False
    faults: Mapping[int, str] | None = None

    @property
    def settings(self) -> LoadSettings:
        limit = self.limit_ms if self.name == QWEN and self.scenario != "Offline" else None
        lowered = Reduction(self.seconds, self.samples, 90, limit)
        mode: Mode = "accuracy" if self.accuracy else "performance"
        return build_settings(
            benchmark(self.name), self.scenario, self.qps, self.samples, lowered, mode, self.timeout_s
        )


class Bench:
    """Prepares and runs tests in one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / "out"

    def start(self, load: Load, *ports: int, **settings: Any) -> subprocess.Popen[str]:
        """Start the LoadGen process; `settings` replaces some of the load's, `most_files` limits descriptors."""
        most_files = settings.pop("most_files", None)
        faults = load.faults or {}
        texts = (f"sample {n}" + (f" fault={faults[n]}" if n in faults else "") for n in range(load.samples))
        bodies = (chat_body("m", [{"role": "user", "content": text}], 50, token_ids=load.token_ids) for text in texts)
        write_requests(self.root / "requests.bin", bodies)
        chosen = replace(load.settings, **settings)
        frontends = tuple(("127.0.0.1", port) for port in ports)
        spec = MeasureSpec(
            chosen,
            self.root / "requests.bin",
            frontends,
            self.out,
            load.workers,
            keep_text=load.accuracy and not load.token_ids,
            keep_token_ids=load.token_ids,
        )
        (self.root / "spec.json").write_text(json.dumps(spec.to_json()))
        argv = [sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(self.root / "spec.json")]
        if most_files is not None:
            argv = ["sh", "-c", f'ulimit -n {most_files}; exec "$@"', "sh", *argv]
        return subprocess.Popen(argv, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, load: Load, *ports: int, **settings: Any) -> Verdict:
        """Run to the end, and judge."""
        with self.start(load, *ports, **settings) as process:
            out, err = process.communicate(timeout=180)
        assert (process.returncode, out, err) == (0, "", "")
        return judge(self.out, load.settings, None, "reduced", str(self.root))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def texts(verdict: Verdict) -> str:
    return "\n".join(reason.text() for reason in verdict.reasons)


@pytest.mark.parametrize("scenario", ["Server", "Interactive"])
def test_valid_run_measures_what_the_oracle_did(bench: Bench, scenario: str) -> None:
    load = Load(scenario, workers=2)
    with Oracle(Script(ttft_ms=40, tpot_ms=5, tokens=7, prompt_tokens=23)) as oracle:
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    assert verdict.requests == oracle.stats().answers == 64
    queries = read_queries(bench.out / "queries.csv")
    assert set(queries.output_tokens) == {7}
    assert set(queries.prompt_tokens) == {23}
    assert sorted(queries.samples) == list(range(64))
    assert queries.latencies_ms("ttft")[0] >= 40
    assert queries.latencies_ms("end_to_end")[0] >= 40 + 6 * 5
    assert queries.latencies_ms("tpot")[-1] >= 5  # a first token that comes late shortens single ones
    assert verdict.tokens_per_second == pytest.approx(64 * 7 / (verdict.duration_s or 0))
    ours_ms, theirs_ms = (
        verdict.latency_p99_ms["end_to_end"].plain,
        read_logs(bench.out).values["result_max_latency_ns"] / 1e6,
    )
    assert ours_ms <= theirs_ms + 1
    assert set(verdict.client["issued_late_ms"]) == {"p50", "p99", "max"}, "the schedule is LoadGen's to the nanosecond"


def test_valid_offline_run(bench: Bench) -> None:
    load = Load("Offline", qps=58, seconds=0.5, samples=32)
    with Oracle(Script(ttft_ms=3000)) as oracle:  # none is answered before all are sent
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, texts(verdict), verdict.requests) == ("VALID", "", 32)
    assert verdict.latency_p99_ms == {}
    assert oracle.stats().peak_in_flight == 32


def test_offline_keeps_its_bound_in_flight(bench: Bench) -> None:
    load = Load("Offline", qps=10, seconds=0.1, samples=40, workers=2)
    with Oracle(Script(ttft_ms=200)) as oracle:
        verdict = bench.run(load, oracle.port, max_in_flight=3)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    assert oracle.stats().peak_in_flight == 6
    issued = read_queries(bench.out / "queries.csv").issued_ms
    assert issued[39] > 6 * 200  # six at a time: the last ones waited for six answers before theirs


def test_ttft_and_tpot_reach_loadgen(bench: Bench) -> None:
    with Oracle(Script(ttft_ms=30, tpot_ms=4, tokens=6)) as oracle:
        verdict = bench.run(Load("Interactive", "gpt-oss-120b", seconds=0.5), oracle.port)
    values = read_logs(bench.out).values
    assert values["num_errors"] == 0
    assert values["result_first_token_min_latency_ns"] >= 30e6
    assert values["result_time_to_output_token_max"] >= 4e6  # a first token that comes late shortens single ones
    assert values["result_completed_tokens_per_second"] > 0
    assert set(verdict.latency_p99_ms) == {"ttft", "tpot"}


def test_late_first_token_is_invalid_for_ttft_and_total_time_is_not_judged(bench: Bench) -> None:
    load = Load("Interactive", "llama2-70b-99.9", seconds=0.5)
    with Oracle(Script(ttft_ms=500, tpot_ms=10, tokens=30)) as oracle:
        verdict = bench.run(load, oracle.port)
    assert verdict.verdict == "INVALID"
    assert "ttft within 450 ms: wanted at most 1 of 64 over, got 64 over" in texts(verdict)
    assert "LoadGen's result: wanted VALID" in texts(verdict)
    assert "end_to_end" not in texts(verdict)


def test_latency_over_the_limit_is_invalid(bench: Bench) -> None:
    with Oracle(Script(ttft_ms=60)) as oracle:
        verdict = bench.run(Load(limit_ms=50, seconds=0.5), oracle.port)
    assert verdict.verdict == "INVALID"
    assert "end_to_end within 50 ms: wanted at most 1 of 64 over, got 64 over" in texts(verdict)


def test_one_hangs_one_drops_one_fails_and_the_run_ends(bench: Bench) -> None:
    load = Load(samples=50, seconds=0.5, timeout_s=6, faults={7: "never", 21: "drop", 33: "500"})
    with Oracle() as oracle:
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, verdict.failed_requests, verdict.requests) == ("INVALID", 3, 50)
    failed = {
        entry["sample"]: entry["cause"] for entry in json.loads((bench.out / "client.json").read_text())["failed"]
    }
    assert set(failed) == {7, 21, 33}
    assert failed[7] == "no end within 6 s of issue, 0 bytes received"
    assert "connection lost after" in failed[21]
    assert failed[33].startswith("HTTP 500: ")
    for sample in failed:
        assert f"sample {sample}: " in texts(verdict)


def test_one_failure_in_a_thousand_is_invalid_and_named(bench: Bench) -> None:
    with Oracle(Script(tokens=2)) as oracle:
        verdict = bench.run(Load(samples=1000, qps=1000, seconds=0.5, faults={417: "500"}), oracle.port)
    assert (verdict.verdict, verdict.failed_requests, verdict.requests) == ("INVALID", 1, 1000)
    assert "sample 417: HTTP 500" in texts(verdict)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("error", "error in the stream"),
        ("error-event", "error in the stream"),
        ("zero", "zero tokens"),
        (None, "no connection"),
    ],
)
@pytest.mark.parametrize("name", [QWEN, "gpt-oss-120b"])
def test_all_failed_is_invalid_without_a_throughput(bench: Bench, fault: str | None, cause: str, name: str) -> None:
    load = Load(name=name, seconds=0.3, samples=32)
    with Oracle(Script(faults={"all": str(fault)})) as oracle:
        verdict = bench.run(load, oracle.port if fault else closed_port())
    assert (verdict.verdict, verdict.failed_requests, verdict.requests) == ("INVALID", 32, 32)
    assert (verdict.completed_qps, verdict.tokens_per_second, verdict.latency_p99_ms) == (None, None, {})
    assert f"{cause}" in texts(verdict)


def test_odd_but_whole_answers_are_good(bench: Bench) -> None:
    odd = {1: "no-done", 2: "no-end", 3: "silent", 4: "slow"}
    with Oracle() as oracle:
        verdict = bench.run(Load(faults=odd, seconds=0.5), oracle.port)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")


def test_connections_that_the_server_closed_are_replaced(bench: Bench) -> None:
    with Oracle(Script(close_idle_after=1)) as oracle:
        verdict = bench.run(Load(seconds=1.5, qps=120), oracle.port)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    assert oracle.stats().connections >= verdict.requests


def test_a_connection_closed_without_an_answer_is_retried_once_and_then_a_failure(bench: Bench) -> None:
    load = Load(faults={5: "close"}, seconds=0.5)
    with Oracle() as oracle:
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, verdict.failed_requests) == ("INVALID", 1)
    client = json.loads((bench.out / "client.json").read_text())
    assert [entry["sample"] for entry in client["failed"]] == [5]
    assert client["retried_connections"] == 1
    assert oracle.stats().requests == 65


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_are_spread_evenly_over_frontends(bench: Bench, workers: int) -> None:
    with Oracle() as first, Oracle() as second:
        bench.run(Load(seconds=0.5, workers=workers), first.port, second.port)
    assert abs(first.stats().requests - second.stats().requests) <= 2
    assert first.stats().requests + second.stats().requests == 64


def test_requests_are_spread_evenly_over_frontends_of_unequal_speed(bench: Bench) -> None:
    with Oracle() as one, Oracle(Script(ttft_ms=300)) as two, Oracle(Script(tokens=1)) as three, Oracle() as four:
        bench.run(Load(seconds=0.5, workers=2), one.port, two.port, three.port, four.port)
        counts = [oracle.stats().requests for oracle in (one, two, three, four)]
    assert sum(counts) == 64
    assert max(counts) - min(counts) <= 2  # one per client process


def test_300_held_requests_are_in_flight_at_once(bench: Bench) -> None:
    load = Load(qps=1000, seconds=0.3, samples=300, workers=2)
    with Oracle(Script(ttft_ms=5000, tokens=2)) as oracle:
        bench.run(load, oracle.port)
    assert oracle.stats().peak_in_flight == 300
    client = json.loads((bench.out / "client.json").read_text())
    assert client["max_in_flight"] == 300
    assert max(client["in_flight_over_time"]["values"]) == 300
    assert client["limits"]["planned_in_flight"] >= 300
    assert 0 < client["issue_delay_ms"]["p50"] <= client["issue_delay_ms"]["p99"] <= client["issue_delay_ms"]["max"]
    processes = {entry["name"]: entry for entry in client["processes"]}
    assert set(processes) == {"loadgen", "client worker 0", "client worker 1"}
    worker = processes["client worker 1"]
    assert 0 < worker["private_mb"] < 60
    assert 0 <= worker["loop_lag_ms"]["p50"] <= worker["loop_lag_ms"]["p99"] <= worker["loop_lag_ms"]["max"]


def test_more_in_flight_than_the_machine_allows_is_refused_before_anything_is_sent(bench: Bench) -> None:
    with Oracle() as oracle, bench.start(Load(qps=1000, samples=300), oracle.port, most_files=200) as process:
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out, oracle.stats().connections) == (4, "", 0)
    assert "open files each, and the limit is 200" in err


def test_three_probes_have_the_same_settings_and_no_error_entry(tmp_path: Path) -> None:
    logs = []
    with Oracle(Script(tokens=4)) as oracle:
        for number in range(3):
            directory = tmp_path / str(number)
            directory.mkdir()
            Bench(directory).run(Load("Server", "llama2-70b-99.9", seconds=0.3, samples=16), oracle.port)
            logs.append(read_logs(directory / "out"))
    keys = [*expected_effective(Load("Server", "llama2-70b-99.9", samples=16).settings)]
    shown = [{key: log.values[key] for key in keys} for log in logs]
    assert shown[0] == shown[1] == shown[2]
    assert [log.error_count for log in logs] == [0, 0, 0]
    assert shown[0]["requested_server_ttft_latency"] == 2_000_000_000


@pytest.mark.parametrize("name", [QWEN, "gpt-oss-120b"])
def test_accuracy_run_logs_the_text_of_every_sample(bench: Bench, name: str) -> None:
    load = Load(name=name, samples=20, accuracy=True)
    with Oracle(Script(tokens=3)) as oracle:
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    entries = json.loads((bench.out / "mlperf_log_accuracy.json").read_text())
    assert sorted(entry["qsl_idx"] for entry in entries) == list(range(20))
    assert {bytes.fromhex(entry["data"]).decode() for entry in entries} == {"ü€ " * 3}


@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_token_ids_of_the_engine_reach_the_accuracy_log(bench: Bench, scenario: str) -> None:
    """As TEST06 reads them: ids of every token, and in Server the first one's by itself."""
    load = Load(scenario, name="llama2-70b-99.9", samples=16, accuracy=True, token_ids=True)
    with Oracle(Script(tokens=5)) as oracle:
        verdict = bench.run(load, oracle.port)
    assert (verdict.verdict, texts(verdict)) == ("VALID", "")
    entries = json.loads((bench.out / "mlperf_log_accuracy.json").read_text())
    assert sorted(entry["qsl_idx"] for entry in entries) == list(range(16))
    ids = [FIRST_TOKEN_ID + number for number in range(5)]
    assert {tuple(array("i", bytes.fromhex(entry["data"]))) for entry in entries} == {tuple(ids)}
    if scenario == "Server":
        assert {tuple(array("i", bytes.fromhex(entry["token_data"]))) for entry in entries} == {(ids[0],)}


def test_progress_is_written_and_ends_complete(bench: Bench) -> None:
    with Oracle() as oracle:
        bench.run(Load(seconds=0.5), oracle.port)
    progress = json.loads((bench.out / "progress.json").read_text())
    counted = {key: progress[key] for key in ("issued", "completed", "failed", "in_flight", "expected_queries")}
    assert counted == {"issued": 64, "completed": 64, "failed": 0, "in_flight": 0, "expected_queries": 64}
    assert (progress["over_limit"], progress["over_limit_allowed"], progress["min_duration_s"]) == (0, 1, 0.5)
    assert progress["ttft_p50_ms"] < progress["p50_ms"] <= progress["p99_ms"]


def wait_until_under_way(bench: Bench, process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The client processes by their number, once requests are in flight."""
    while process.poll() is None:
        try:
            if json.loads((bench.out / "progress.json").read_text())["issued"]:
                return sorted(psutil.Process(process.pid).children(), key=lambda child: child.cmdline()[-2])
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_at_once_and_leaves_nothing(bench: Bench, number: signal.Signals, status: int) -> None:
    with Oracle(Script(ttft_ms=60_000)) as oracle, bench.start(Load(seconds=60, workers=2), oracle.port) as process:
        children = wait_until_under_way(bench, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (status, "", f"stopped by {number.name}\n")
    assert len(children) == 2
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert not (bench.out / "client.json").exists()
    verdict = judge(bench.out, Load(seconds=60).settings, None, "reduced", "x")
    assert (verdict.verdict, verdict.completed_qps) == ("FAILED", None)


def issued(bench: Bench) -> int:
    return int(json.loads((bench.out / "progress.json").read_text())["issued"])


def test_a_loadgen_process_that_was_held_up_issued_late_and_the_run_is_invalid(bench: Bench) -> None:
    """TTFT and TPOT tell nothing of it where they begin with the issue; the schedule does."""
    load = Load("Interactive", "llama2-70b-99.9", qps=60, seconds=8, samples=480)
    with Oracle(Script(ttft_ms=20, tpot_ms=1, tokens=3)) as oracle, bench.start(load, oracle.port) as process:
        while oracle.stats().requests < 5 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out, err) == (0, "", "")
    verdict = judge(bench.out, load.settings, None, "reduced", "x")
    assert "client-limited: wanted samples issued within 5 ms of their schedule (p99), got" in texts(verdict)
    assert verdict.client["issued_late_ms"]["max"] > 200
    assert verdict.latency_p99_ms["ttft"].plain > 200


@pytest.mark.parametrize("unread", [False, True], ids=["idle", "with queries that it has not read"])
def test_death_of_a_client_process_ends_the_run_and_is_named(bench: Bench, *, unread: bool) -> None:
    with Oracle(Script(ttft_ms=60_000)) as oracle, bench.start(Load(seconds=60, workers=2), oracle.port) as process:
        victim = wait_until_under_way(bench, process)[1]
        if unread:
            victim.suspend()
            seen = issued(bench)
            while process.poll() is None and issued(bench) < seen + 8:
                time.sleep(0.02)
        victim.kill()
        _, err = process.communicate(timeout=180)
    assert process.returncode == 4
    assert err.startswith("client worker 1 ended with status -9 during the measurement")
    assert err.count("\n") == 1


def test_death_of_the_loadgen_process_ends_the_client_processes(bench: Bench) -> None:
    with Oracle(Script(ttft_ms=60_000)) as oracle, bench.start(Load(seconds=60), oracle.port) as process:
        children = wait_until_under_way(bench, process)
        process.kill()
        process.communicate(timeout=180)
    assert not psutil.wait_procs(children, timeout=60)[1]


def refuse(bench: Bench, **settings: Any) -> str:
    with bench.start(Load(), closed_port(), **settings) as process:
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (4, "")
    assert err.count("\n") == 1
    return err


def test_audit_config_in_the_working_directory_is_refused(bench: Bench) -> None:
    (bench.root / "audit.config").write_text("*.*.mode = 2\n")
    assert f"{bench.root / 'audit.config'} would change the settings of this run" in refuse(bench)
    assert not bench.out.exists()


@pytest.mark.parametrize("name", ["mlperf_log_detail.txt", "queries.csv"])
def test_an_out_dir_with_logs_is_refused(bench: Bench, name: str) -> None:
    bench.out.mkdir()
    (bench.out / name).write_text("an older run")
    assert f"already holds {name} of another test" in refuse(bench)
    assert (bench.out / name).read_text() == "an older run"


def test_requests_of_another_data_set_are_refused(bench: Bench) -> None:
    assert "holds 64 requests, the settings say 65" in refuse(bench, dataset_samples=65)


def test_what_loadgen_itself_does_not_take_ends_the_run(bench: Bench) -> None:
    bench.out = bench.root / "no-utf-8-\udcff"
    with bench.start(Load(), closed_port()) as process:
        out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (4, "")
    assert err.startswith("Traceback (most recent call last):\n"), "what nobody foresaw shows where it came from"
    assert err.splitlines()[-1].startswith("LoadGen did not run: TypeError(")

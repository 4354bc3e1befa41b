"""The rate search inside a job, with real Dynamo, real LoadGen and simulated engines: probes, rest, resuming."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.serving.gauges import parse_gauges
from tests.job.chain import END_S, Place, Run, client_was_late

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

SLOW = {"args": {"max-num-seqs": 24, "speedup-ratio": 1}}
"""About 25 queries/s, where the requests of a run with 900 ms of service time wait for seats: slow enough for limits
within which a client may be late by as much as a busy machine makes it."""
SEARCHED: dict[str, dict[str, Any]] = {
    "measure": {"target_qps": None},
    "reduced": {"min_duration_s": 3, "latency_limit_ms": 3000},
    "search": {"low": 5, "high": 200, "start": 90, "tolerance": 0.2},
}
SEARCH_S = 900.0
"""Longest time of a search; it takes a fraction of that on a machine that does nothing else."""
SAME = (
    "effective_min_duration_ms",
    "effective_target_latency_ns",
    "effective_target_latency_percentile",
    "effective_qsl_rng_seed",
    "effective_sample_index_rng_seed",
    "effective_schedule_rng_seed",
    "effective_sample_concatenate_permutation",
    "effective_performance_sample_count",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("search"))


def _probes(run: Run) -> list[Path]:
    return sorted((run.paths.root / "search").glob("probe-*"))


def _wait_for_stream(run: Run, probe: str) -> None:
    stream = run.paths.root / "search" / probe / "stream.jsonl"
    until = time.monotonic() + END_S
    while not (stream.exists() and stream.read_text().count("\n") >= 2):
        assert run.process.poll() is None, run.stderr()
        assert time.monotonic() < until, run.stderr()
        time.sleep(0.05)


def test_a_killed_search_is_resumed_and_its_answer_is_a_run_like_any_other(place: Place) -> None:
    topology = place.topology(SEARCHED, role=SLOW)
    with place.run(topology) as killed:
        _wait_for_stream(killed, "probe-002")
        killed.send(signal.SIGKILL)
        killed.end()
        killed.assert_nothing_left()
    other = place.topology(SEARCHED, role={"args": {"max-num-seqs": 25, "speedup-ratio": 1}})
    refused = place.command("search", str(other), "--resume", str(killed.paths.root))
    assert refused.returncode == 2
    assert "roles.decode.args.max-num-seqs 24 there, 25 now" in refused.stderr
    again = place.root / "runs" / "resumed"
    words = ("search", str(topology), "--resume", str(killed.paths.root), "--run-dir", str(again), "--json")
    done = place.command(*words, timeout_s=SEARCH_S)
    verdict = json.loads(done.stdout)
    answer = verdict["search"]
    assert "resumed: 2 probes" in done.stderr
    assert answer["probes"][1]["ended"] == "interrupted"
    resumed = json.loads((again / "search" / "resumed.json").read_text())
    assert resumed["from"] == str(killed.paths.root / "search")
    _all_alike([again / "search" / f"probe-{number:03d}" for number in range(1, 1 + len(answer["probes"]))])
    _each_began_at_rest(again)
    if client_was_late(verdict):  # no answer, then, and the search says so
        assert (done.returncode, answer["confirmed"]) == (5, False), done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert (verdict["verdict"], answer["confirmed"]) == ("VALID", True)
    assert verdict["target_qps"] == answer["answer_qps"]
    _is_the_result(again, answer)
    judged = place.command("judge", str(again), "--json")
    assert (judged.returncode, json.loads(judged.stdout)["reasons"]) == (0, [])
    useless = place.command("search", str(topology), "--resume", str(again))
    assert useless.returncode == (2 if answer["located"] else 0)


def _is_the_result(root: Path, answer: dict[str, Any]) -> None:
    """The confirming probe's files are the run's, and its evidence stands beside the canary's."""
    folder = root / "search" / answer["confirmed_in"]
    for name in ("mlperf_log_detail.txt", "queries.csv", "client.json"):
        assert (root / "loadgen" / name).samefile(folder / "loadgen" / name)
    evidence = json.loads((root / "evidence.json").read_text())
    assert evidence["canary"]["requests"] == 2
    assert evidence["transfer"]["requests"] == answer["result"]["n"]
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "VALID"


def _all_alike(folders: list[Path]) -> None:
    """R02: a fresh process for each probe, so that all logs show the same settings and no error entry."""
    details = [_settings(folder) for folder in folders]
    assert len(details) > 2
    assert all(detail == details[0] for detail in details)
    assert details[0]["effective_min_duration_ms"] == 3000


def _settings(folder: Path) -> dict[str, Any]:
    text = (folder / "loadgen" / "mlperf_log_detail.txt").read_text()
    found = {}
    for line in text.split("\n")[:-1]:  # of a test that was stopped the last line may be cut
        entry = json.loads(line.removeprefix(":::MLLOG "))
        assert not entry["metadata"].get("is_error"), line
        if entry["key"] in SAME:
            found[entry["key"]] = entry["value"]
    assert set(found) == set(SAME), folder
    return found


def _each_began_at_rest(root: Path) -> None:
    """R35: what an aborted probe left is gone before the next begins, by the engines' own gauges."""
    first = json.loads((root / "search" / "probe-001" / "record.json").read_text())
    assert first["ended"] in {"cannot pass", "unlikely to pass"}
    assert first["samples"][-1][1] - first["samples"][-1][2] > 20, "the first probe was stopped with many in flight"
    pages = list((root / "search").glob("probe-*/metrics/before/*.prom"))
    seen = {(page.parents[2].name, page.stem): parse_gauges(page.read_text()) for page in pages}
    assert len(seen) > 4
    for page, gauges in seen.items():
        assert gauges.keys() >= {"in_flight", "queued"}, page
        assert max(gauges.values()) < 0.003, (page, gauges)
    assert {"running", "waiting", "kv_share"} <= seen["probe-002", "decode-0"].keys()


def test_workers_that_do_not_come_to_rest_are_restarted(place: Place) -> None:
    """Somebody's endless request keeps a worker busy: the search restarts the workers, says so and goes on."""
    edits = {**SEARCHED, "search": {**SEARCHED["search"], "rest_s": 6}}
    with place.run(place.topology(edits, role=SLOW)) as run:
        _wait_for_stream(run, "probe-001")
        with _endless_request(run):
            restarted = run.wait_for("workers_restarted")
            ended = run.end(SEARCH_S)
    assert restarted["workers"] == ["prefill-0", "decode-0"]
    assert ended.status == (5 if client_was_late(run.verdict()) else 0), ended.stderr
    rests = [json.loads((folder / "rest.json").read_text()) for folder in _probes(run)]
    events = [event["event"] for event in run.events()]
    # Once for that request; on a busy machine what a stopped probe left may take too long as well.
    assert 1 <= [rest["restarted"] for rest in rests].count(True) == events.count("workers_restarted")
    assert "they are restarted" in json.dumps([event for event in run.events() if event["event"] == "warning"])
    run.assert_nothing_left()


class _endless_request:  # noqa: N801 - used as a function is
    """A streamed request of many thousands of tokens through the job's frontend."""

    def __init__(self, run: Run) -> None:
        commands = run.commands()["frontend-0"]
        words = commands["argv"]
        self._at = f"http://127.0.0.1:{words[words.index('--http-port') + 1]}"
        self._thread = threading.Thread(target=self._send, daemon=True)

    def _send(self) -> None:
        with urllib.request.urlopen(f"{self._at}/v1/models", timeout=END_S) as answer:
            model = json.load(answer)["data"][0]["id"]
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 30000, "stream": True}
        request = urllib.request.Request(
            f"{self._at}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=END_S) as answer:
                answer.read()
        except OSError:
            return  # its worker was restarted

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(END_S)


def test_a_limit_that_no_rate_keeps_is_told(place: Place) -> None:
    edits = {**SEARCHED, "reduced": {"min_duration_s": 3, "latency_limit_ms": 600}}
    with place.run(place.topology(edits, role=SLOW)) as run:
        ended = run.end()
    assert ended.status == 5
    verdict = run.verdict()
    assert [reason["check"] for reason in verdict["reasons"]] == ["rate search"]
    assert "impossible" in verdict["reasons"][0]["got"]
    assert verdict["completed_qps"] is None
    assert not run.paths.load.exists()

"""The whole chain with endpoints as the load client: real Dynamo with simulated engines, real endpoints where it is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from dynamo_mlperf.load.endpoints_program import RELEASES
from dynamo_mlperf.load.queries import read_queries
from tests.job.chain import TOKEN, Place, Run, marked_processes

pytestmark = pytest.mark.dynamo

END_S = 400.0
"""It imports for seconds, in several processes, and other tests run beside this one."""
CLIENT = {"measure": {"client": "endpoints"}}
REAL = pytest.mark.endpoints


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("endpoints-chain"))


def _real_site(place: Place) -> str:
    return str(place.site(endpoints_python=os.environ["ENDPOINTS_PYTHON"]))


@REAL
def test_a_run_with_its_accuracy_phase_leaves_a_complete_record(place: Place) -> None:
    topology = place.topology({"measure": {"client": "endpoints", "accuracy": True}})
    with place.run(topology, "--site", _real_site(place)) as run:
        ended = run.end(END_S)
        verdict, root = run.verdict(), run.paths.root
        assert (verdict["verdict"], verdict["reasons"], ended.status) == ("VALID", [], 0), ended.stderr
        assert (verdict["class"], verdict["requests"], verdict["tests"]) == ("rehearsal", 88, {"accuracy": "VALID"})
        assert verdict["latency_p99_ms"]["end_to_end"]["over_limit_allowed"] == 1
        assert verdict["disaggregation"]["prefill_requests"] == 2 + 88 + 44, "warm-up, performance, accuracy"
        assert json.loads(run.paths.versions.read_text())["inference-endpoint"] == "0.1.0"
        queries = read_queries(root / "endpoints" / "queries.csv")
        assert sorted(queries.samples.tolist()) == sorted([*range(44)] * 2)
        for name in ("config.yaml", "accuracy/accuracy_results.json", "accuracy/result.json", "client.json"):
            assert (root / "endpoints" / name).stat().st_size > 0, name
        assert "name: rehearsal-" in (root / "endpoints" / "config.yaml").read_text()
        assert TOKEN not in "".join(p.read_text(errors="ignore") for p in root.rglob("*") if p.is_file())
        again = json.loads(place.command("judge", str(root), "--json").stdout)
        assert {key: again[key] for key in ("verdict", "class", "latency_p99_ms", "completed_qps")} == {
            key: verdict[key] for key in ("verdict", "class", "latency_p99_ms", "completed_qps")
        }
        assert "not there:" not in place.command("report", str(root)).stdout
        run.assert_nothing_left()


@REAL
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_it_measures_leaves_nothing(place: Place, number: signal.Signals) -> None:
    topology = place.topology({**CLIENT, "reduced": {"min_duration_s": 600}})
    with place.run(topology, "--site", _real_site(place)) as run:
        run.wait_for("process_started", END_S, process="endpoints")
        on_tmpfs = _when_it_measures(run)
        run.send(number)
        assert run.end(END_S).status == 128 + number
        run.assert_nothing_left()
        assert (run.verdict()["verdict"], run.verdict()["completed_qps"]) == ("FAILED", None)
    assert on_tmpfs
    assert not [path for path in on_tmpfs if path.exists()]


def _when_it_measures(run: Run) -> list[Path]:
    """Its directories on tmpfs, once the event log there holds something."""
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        assert run.process.poll() is None, run.stderr()
        for process in marked_processes(run.run_id):
            with contextlib.suppress(psutil.Error, ValueError):
                words = process.cmdline()
                logs, sockets = (Path(words[words.index(flag) + 1]) for flag in ("--log-dir", "--socket-dir"))
                if any(path.stat().st_size for path in logs.glob("*.jsonl")):
                    return [logs.parent, sockets]
        time.sleep(0.1)
    raise AssertionError(run.stderr())


def _fake(place: Place, when_run: str) -> str:
    """A program in the place of endpoints' Python: of the right release, and its run does as told."""
    told = json.dumps({"version": "0.1.0", "git_sha": RELEASES["v6.1"].commits[0][:7], "direct_url": None})
    return str(
        place.site(
            endpoints_python=str(
                place.program(
                    "python",
                    f'case "$*" in *get_version_info*) echo \'{told}\';; *endpoints_parquet.py*) touch "$3";; '
                    f"*validate-yaml*) exit 0;; *) {when_run};; esac",
                )
            )
        )
    )


def test_a_client_that_fails_is_told_by_its_last_lines(place: Place) -> None:
    with place.run(place.topology(CLIENT), "--site", _fake(place, "echo 'no such model: m' >&2; exit 3")) as run:
        ended = run.end()
        assert ended.status == 4, ended.stderr
        reason = run.verdict()["reasons"][0]
        assert "endpoints on node 0 (localhost) ended with status 3" in reason["got"]
        assert "no such model: m" in reason["got"]
        run.assert_nothing_left()


def test_a_client_that_says_it_is_done_and_left_nothing_has_not_measured(place: Place) -> None:
    with place.run(place.topology(CLIENT), "--site", _fake(place, "exit 0")) as run:
        assert run.end().status == 4
        assert "endpoints left no" in run.verdict()["reasons"][0]["got"]


def test_a_configuration_that_endpoints_refuses_is_told_in_its_words(place: Place) -> None:
    site = _fake(place, "exit 0").replace("\n", "")
    program = Path(site).read_text().split("endpoints_python: ")[1].strip()
    text = Path(program).read_text().replace("validate-yaml*) exit 0", "validate-yaml*) echo 'bad key: x' >&2; exit 2")
    Path(program).write_text(text)
    with place.run(place.topology(CLIENT), "--site", site) as run:
        assert run.end().status == 2
        assert "bad key: x" in run.verdict()["reasons"][0]["got"]

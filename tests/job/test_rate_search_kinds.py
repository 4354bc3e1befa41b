"""The rate search inside a job for what the others do not run: Offline, Server by token latencies, MLCommons endpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.load.logs import read_logs
from tests.job.chain import Place, client_was_late

pytestmark = pytest.mark.dynamo

SEARCH_S = 900.0
SLOW = {"args": {"max-num-seqs": 16, "speedup-ratio": 1}}
"""Sixteen answers of a second each at a time."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("search-kinds"))


def _searched(
    place: Place, edits: dict[str, Any], *words: str, role: Mapping[str, Any] = SLOW
) -> tuple[dict[str, Any], Path]:
    """The verdict and the run directory of a search."""
    topology = place.topology(edits, role=role)
    root = place.root / "runs" / topology.stem
    ended = place.command("search", str(topology), "--run-dir", str(root), "--json", *words, timeout_s=SEARCH_S)
    verdict: dict[str, Any] = json.loads(ended.stdout)
    if client_was_late(verdict):  # no answer, then, and the search says so
        assert (ended.returncode, verdict["search"]["confirmed"]) == (5, False), ended.stderr
        pytest.skip("the machine was too busy for the load client")
    assert (ended.returncode, verdict["verdict"]) == (0, "VALID"), ended.stderr
    return verdict, root


@pytest.mark.loadgen
def test_offline_is_answered_with_what_a_run_completes(place: Place) -> None:
    edits: dict[str, Any] = {
        "measure": {"scenario": "Offline", "target_qps": None},
        "reduced": {"percentile": None, "latency_limit_ms": None, "min_duration_s": 6},
        "search": {"low": 2, "high": 300, "start": 3},
    }
    verdict, root = _searched(place, edits)
    answer = verdict["search"]
    found = answer["result"]
    assert verdict["scenario"] == "Offline"
    assert found["seconds"] >= 6.0, "the expected rate was raised until the run was long enough"
    assert answer["answer_qps"] == pytest.approx(found["n"] / found["seconds"], rel=1e-3)
    assert verdict["completed_qps"] == pytest.approx(answer["answer_qps"], rel=1e-3)
    assert 3 < answer["answer_qps"] < 30, "sixteen at a time, each about a second"
    folder = root / "search" / answer["confirmed_in"] / "loadgen"
    assert (root / "loadgen" / "mlperf_log_detail.txt").samefile(folder / "mlperf_log_detail.txt")
    assert '"effective_scenario", "value": "Offline"' in (folder / "mlperf_log_detail.txt").read_text()


@pytest.mark.loadgen
def test_server_is_searched_by_the_token_limits_that_a_user_sets(place: Place) -> None:
    (place.root / "mine.conf").write_text("llama2-70b.Server.min_duration = 4000\n*.Server.ttft_latency = 1500\n")
    measure = {
        "benchmark": "llama2-70b-99.9",
        "scenario": "Server",
        "target_qps": None,
        "dataset": "assets/tiny-prompts",
        "user_conf": "mine.conf",
    }
    edits: dict[str, Any] = {
        "measure": measure,
        "reduced": {"latency_limit_ms": None},
        "search": {"low": 2, "high": 400, "start": 20, "tolerance": 0.2},
    }
    verdict, root = _searched(place, edits, role={"args": {"max-num-seqs": 16, "speedup-ratio": 20}})
    answer = verdict["search"]
    assert answer["binding_constraint"] in {"ttft", "tpot"}
    assert {name: entry["limit"] for name, entry in verdict["latency_p99_ms"].items()} == {"ttft": 1500, "tpot": 200}
    assert all(set(probe["over_limit"]) == {"ttft", "tpot"} for probe in answer["probes"] if probe["over_limit"])
    failed = [probe["target_qps"] for probe in answer["probes"] if any(probe["over_limit"].values())]
    assert max(failed) > answer["answer_qps"]
    values = read_logs(root / "loadgen").values
    assert values["requested_use_token_latencies"] is True


@pytest.mark.endpoints
def test_endpoints_is_searched_by_its_own_rule(place: Place) -> None:
    edits: dict[str, Any] = {
        "measure": {"scenario": "Server", "target_qps": None, "client": "endpoints"},
        "reduced": {"min_duration_s": 5, "latency_limit_ms": 4000},
        "search": {"low": 5, "high": 60, "start": 12, "tolerance": 0.2},
    }
    site = str(place.site(endpoints_python=os.environ["ENDPOINTS_PYTHON"]))
    verdict, root = _searched(place, edits, "--site", site)
    answer = verdict["search"]
    assert "inference-endpoint" in json.loads((root / "versions.json").read_text())
    assert answer["answer_qps"] == verdict["target_qps"]
    assert 5 < answer["answer_qps"] < 40, "sixteen at a time, each a second, and what waits for four"
    assert any(probe["ended"] != "complete" or not probe["valid"] for probe in answer["probes"]), "one above it failed"
    n, allowed = verdict["requests"], verdict["latency_p99_ms"]["end_to_end"]["over_limit_allowed"]
    assert allowed == allowed_over_limit(n, 0.9) - 1, "endpoints counts from the t-th highest"
    folder = root / "search" / answer["confirmed_in"] / "endpoints"
    assert (root / "endpoints" / "queries.csv").samefile(folder / "queries.csv")

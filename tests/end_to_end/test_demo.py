"""The demo's own topology on this machine: real vLLM on the CPU, real NIXL, real LoadGen; and what it must equal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psutil
import pytest

from dynamo_mlperf.process.command import RUN_VARIABLE
from tests.end_to_end.bench import Place, answers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.vllm, pytest.mark.dynamo, pytest.mark.loadgen]


def left_running(run_id: str) -> list[str]:
    """Processes that carry the run's mark."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            mark = process.environ().get(RUN_VARIABLE, "")
        except (psutil.Error, OSError):
            continue
        if mark.startswith(run_id):
            found.append(f"{process.pid} {process.info['name']}")
    return found


def test_the_demo_is_valid_and_proves_disaggregation(repository: Path, place: Place) -> None:
    file = place.write("demo.yaml", (repository / "topologies" / "demo.yaml").read_text())
    done = place.run(file, timeout_s=900)
    assert done.returncode == 0, done.stderr[-3000:]
    verdict = json.loads(done.stdout)
    assert (verdict["verdict"], verdict["class"], verdict["reasons"]) == ("VALID", "reduced", [])
    assert verdict["requests"] == verdict["remote_prefills"] == 64
    assert verdict["failed_transfers"] == verdict["failed_requests"] == 0
    moved = verdict["disaggregation"]
    assert moved["proof"] == "kv-counters"
    assert moved["external_tokens"] == moved["prompt_tokens"] > 64 * 100
    assert moved["local_tokens"] == 0
    # Two of keys and values, four layers, two KV heads of 64 in float32; blocks are whole, so at least this much moves.
    assert verdict["kv_bytes"] >= moved["prompt_tokens"] * 2 * 4 * 2 * 64 * 4
    latency = verdict["latency_p99_ms"]["end_to_end"]
    assert 0 < latency["early_stopping"] <= latency["limit"] == 10000
    run_dir = place.root / "runs" / verdict["run_dir"].rsplit("/", 1)[1]
    assert left_running(run_dir.name) == []
    assert (run_dir / "topology.yaml").read_bytes() == file.read_bytes()
    assert json.loads((run_dir / "verdict.json").read_text()) == verdict
    evidence = b"".join(path.read_bytes() for path in run_dir.rglob("*") if path.is_file())
    assert b"hf_never_recorded" not in evidence


def test_greedy_output_equals_an_aggregated_server(place: Place, aggregated: list[str]) -> None:
    (demo,) = sorted((place.root / "runs").glob("demo-2*"))
    assert answers(demo) == [aggregated]

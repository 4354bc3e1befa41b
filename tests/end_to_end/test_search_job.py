"""A rate search that loses its job in mid-search: to scancel, then to a power failure of its first node; and goes on."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.bench import Cluster, Place, topology
from tests.end_to_end.test_cluster import ended, engine_processes, wait_until
from tests.job.chain import machine_is_busy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slurm, pytest.mark.dynamo, pytest.mark.loadgen]
NAME = "search-on"


def searching(repository: Path, place: Place) -> Path:
    """About 25 queries per second on two nodes, searched from far above: the first probes end early, and there are several."""
    role = {"workers": 1, "args": {"max-num-seqs": 24, "speedup-ratio": 1}}
    text = topology(
        repository / "topologies" / "rehearse-search.yaml",
        name=NAME,
        roles={"prefill": role, "decode": role},
        search={"low": 5, "high": 200, "start": 90, "tolerance": 0.2, "time_budget_s": 60},
        reduced={"min_duration_s": 3, "samples": 44, "percentile": 90, "latency_limit_ms": 3000},
    )
    return place.write(f"{NAME}.yaml", text)


def standing(cluster: Cluster, job_id: str) -> dict[str, Any]:
    (found,) = json.loads(cluster.login("dynamo-mlperf", "status", job_id, "--json"))
    return dict(found)


def under_way(cluster: Cluster, job_id: str, run_dir: Path, number: int) -> bool:
    """Whether probe `number`, or a later one, has told something; a job that ends before that is no use."""
    assert not ended(cluster, job_id), (run_dir.parent.parent / f"slurm-{job_id}.out").read_text()[-3000:]
    streams = [path / "stream.jsonl" for path in (run_dir / "search").glob("probe-*") if int(path.name[6:]) >= number]
    return any(stream.exists() and stream.read_text().count("\n") >= 2 for stream in streams)


def whole(run_dir: Path) -> list[str]:
    """Probes that have their record."""
    return sorted(path.parent.name for path in (run_dir / "search").glob("probe-*/record.json"))


def test_a_search_goes_on_after_scancel_and_after_the_loss_of_its_first_node(
    repository: Path, place: Place, cluster: Cluster
) -> None:
    file = searching(repository, place)
    first = cluster.submit(file)
    cut = place.root / "runs" / f"{NAME}-{first}"
    wait_until(lambda: under_way(cluster, first, cut, 2), 240, "the second probe")
    assert standing(cluster, first)["phase"] == "search"
    cluster.login("scancel", first)
    wait_until(lambda: not engine_processes(cluster), 30, "the end of all processes")
    wait_until(lambda: ended(cluster, first), 30, "the end of the job")
    assert json.loads((cut / "verdict.json").read_text())["reasons"][0]["check"] == "interrupted"
    assert whole(cut)[0] == "probe-001"
    stood = standing(cluster, first)
    assert (stood["outcome"]["word"], stood["outcome"]["exit_code"]) == ("CANCELLED", 143)

    resumed = ("dynamo-mlperf", "submit", file.name, "--json", "--resume")
    second = json.loads(cluster.login(*resumed, f"runs/{NAME}-{first}"))["job_id"]
    dark = place.root / "runs" / f"{NAME}-{second}"
    wait_until(lambda: under_way(cluster, second, dark, 3), 240, "the third probe")
    assert json.loads((dark / "search" / "resumed.json").read_text())["from"] == str(cut / "search")
    assert (dark / "search" / "probe-001" / "record.json").samefile(cut / "search" / "probe-001" / "record.json")
    head = json.loads((dark / "plan.json").read_text())["binding"][0]["host"]
    cluster.call("node-kill", head)  # the controller, etcd, frontend and client are there
    try:
        wait_until(lambda: not engine_processes(cluster), 30, "the end of all processes on the other node")
        wait_until(lambda: ended(cluster, second), 60, "the end of the job")
        stood = standing(cluster, second)
        assert (stood["outcome"]["word"], stood["outcome"]["success"]) == ("NODE_FAIL", False)
        assert stood["verdict"] is None
        recorded = whole(dark)
        assert recorded[0] == "probe-001"

        third = json.loads(cluster.login(*resumed, f"runs/{NAME}-{second}"))["job_id"]
        run_dir = place.root / "runs" / f"{NAME}-{third}"
        wait_until(lambda: ended(cluster, third), 400, "the end of the search")
        log = (place.root / f"slurm-{third}.out").read_text()
        counted = re.search(r"resumed: ([0-9]+) probes", log)
        assert counted, log[-3000:]
        # One that was cut counts as far as its stream had told, which may be nothing.
        assert len(recorded) <= int(counted[1]) <= len(recorded) + 1
        assert set(recorded) <= set(whole(run_dir))
        verdict = json.loads((run_dir / "verdict.json").read_text())
        # On a busy machine there may be no rate that holds, and the search says so.
        assert verdict["verdict"] == "VALID" or machine_is_busy(), log[-3000:]
        expected = ("VALID", 0) if verdict["verdict"] == "VALID" else ("INVALID", 5)
        stood = standing(cluster, third)
        assert (stood["outcome"]["word"], stood["outcome"]["exit_code"]) == expected, log[-3000:]
        assert engine_processes(cluster) == {}
    finally:
        cluster.call("node-boot", head)

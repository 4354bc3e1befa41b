from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.report.layout import read_layout
from dynamo_mlperf.report.run_data import read_run
from tests.report.run_builder import build_run, plan

if TYPE_CHECKING:
    from pathlib import Path


def test_a_whole_run_lacks_nothing(tmp_path: Path) -> None:
    run = read_run(build_run(tmp_path / "run", queries=800).root)
    assert (run.missing, run.damaged) == ((), ())
    assert run.layout is not None
    assert (run.layout.split, run.layout.gpus, run.layout.idle_gpus) == ("4P8D", 16, 0)
    assert [command.process for command in run.commands[:2]] == ["prefill-0", "prefill-1"]
    assert run.queries is not None
    assert len(run.queries) == 800
    assert run.counters["decode-0"]["vllm:request_success_total"] == 100.0


@pytest.mark.parametrize("kept", ["topology.yaml", "plan.json", "events.jsonl", "verdict.json"])
def test_one_file_is_enough_and_the_others_are_named(tmp_path: Path, kept: str) -> None:
    whole = build_run(tmp_path / "whole", queries=800)
    (tmp_path / "early").mkdir()
    shutil.copy(whole.root / kept, tmp_path / "early" / kept)
    run = read_run(tmp_path / "early")
    names = {
        "topology.yaml", "plan.json", "versions.json", "events.jsonl", "commands.jsonl", "evidence.json",
        "verdict.json", "loadgen/client.json", "loadgen/queries.csv",
    }  # fmt: skip
    assert set(run.missing) == names - {kept}


def test_any_other_directory_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError) as caught:
        read_run(tmp_path)
    assert "lacks all of topology.yaml, plan.json, events.jsonl, verdict.json" in caught.value.what
    assert caught.value.action


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(ConfigError, match="is not a directory"):
        read_run(tmp_path / "verdict.json")


def test_damage_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    paths.verdict.write_text(paths.verdict.read_text()[:200])
    paths.plan.write_text("[1, 2]")
    paths.versions.write_bytes(b"\xff\xfe{")
    with paths.events.open("a") as events:
        events.write('17\n{"t": 1, "event": "pro')
    (paths.load / "queries.csv").write_text("latency\n12\n")
    run = read_run(paths.root)
    assert run.damaged == (
        "verdict.json is not whole JSON",
        "plan.json holds no JSON object",
        "versions.json is not whole JSON",
        "events.jsonl: 2 unreadable lines",
        f"{paths.load / 'queries.csv'} is cut or garbled",
    )
    assert (run.verdict, run.layout, run.queries) == (None, None, None)
    assert len(run.timeline.phases) == 10


def test_a_layout_names_hosts_gpus_and_idle_ones() -> None:
    written = json.loads(json.dumps(plan()))
    del written["workers"][-1]
    layout = read_layout(written)
    assert layout.idle_gpus == 1
    assert layout.where(layout.workers[1]) == "gb200-002 GPU 0-1"
    assert layout.node_name("3") == "gb200-004"
    assert layout.node_name("head") == "head"


def test_a_worker_over_two_nodes_and_scattered_gpus() -> None:
    ranks = [{"node": 0, "gpu": g} for g in (0, 1, 3)] + [{"node": 1, "gpu": 2}]
    layout = read_layout(
        {
            "nodes": [{"position": 0, "gpus": [0, 1, 2, 3]}, {"position": 1, "gpus": 4}],
            "workers": [{"role": "aggregated", "index": 0, "ranks": ranks}],
        }
    )
    assert layout.where(layout.workers[0]) == "node 0 GPU 0-1,3, node 1 GPU 2"
    assert (layout.gpus, layout.idle_gpus, layout.split) == (8, 4, "")


@pytest.mark.parametrize("nodes", [None, 4, [4], {"position": 0}, [{"position": "0", "gpus": "four"}]])
def test_a_plan_of_another_form_does_not_stop_a_report(nodes: object) -> None:
    assert read_layout({"nodes": nodes, "workers": "none", "split": 3, "binding": [None]}).gpus == 0

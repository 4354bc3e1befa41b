"""The end of a measurement whose holder is gone, told by who had asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dynamo_mlperf.cli.attach_held import _gone
from dynamo_mlperf.errors import ExitCode, ServingError, SetupError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import EventLog, Verdict, read_events, read_verdict, write_verdict
from dynamo_mlperf.slurm.runs import read_run
from dynamo_mlperf.topology.spec import Topology, parse_topology
from tests.job.chain import TEMPLATE


@pytest.fixture
def topology() -> Topology:
    return parse_topology(yaml.safe_dump({**TEMPLATE, "name": "second"}))


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "runs" / "second")
    paths.root.mkdir(parents=True)
    EventLog(paths).add("job_begin", run="second", place="engines held by first", held_by=str(_holder(paths)))
    return paths


def _holder(paths: RunPaths) -> Path:
    """The directory of the run that held the engines; it has outlived it."""
    holder = paths.root.parent / "first"
    holder.mkdir(exist_ok=True)
    return holder


def test_a_holder_that_died_after_the_verdict_takes_nothing_from_it(topology: Topology, paths: RunPaths) -> None:
    write_verdict(paths, Verdict("INVALID", "rehearsal", "qwen3-vl-235b-a22b", "Interactive", str(paths.root)))
    for _once_more in range(2):
        assert _gone(_holder(paths), topology, paths.root, as_json=False) is ExitCode.INVALID
    ends = [event for event in read_events(paths) if event["event"] == "job_end"]
    assert [event["exit_code"] for event in ends] == [ExitCode.INVALID], "said once, since the holder could not"
    assert read_run(paths.root).complete


def test_a_holder_that_died_before_the_verdict_leaves_a_failed_run(topology: Topology, paths: RunPaths) -> None:
    assert _gone(_holder(paths), topology, paths.root, as_json=False) is ExitCode.FAILED
    verdict = read_verdict(paths)
    assert verdict is not None
    assert (verdict["verdict"], verdict["reasons"][0]["got"]) == (
        "FAILED",
        "run first, which held the engines, is gone",
    )
    assert read_run(paths.root).complete


def test_what_is_no_verdict_is_never_one(topology: Topology, paths: RunPaths) -> None:
    for text in ("", "{", "7", "[]", "{}", '{"verdict": "VALID"}', "[" * 100_000):
        paths.verdict.write_text(text)
        with pytest.raises(ServingError, match=r"verdict\.json is no verdict: "):
            _gone(_holder(paths), topology, paths.root, as_json=False)
        assert not read_run(paths.root).complete


def test_no_run_is_made_up_where_none_began(topology: Topology, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is gone, and no measurement began") as error:
        _gone(tmp_path, topology, tmp_path / "none", as_json=False)
    assert "events.jsonl" in error.value.action
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_gone_with_the_holder_is_named_and_nobody_is_sent_there(
    topology: Topology, tmp_path: Path
) -> None:
    first = tmp_path / "runs" / "first"
    with pytest.raises(SetupError) as error:
        _gone(first, topology, tmp_path / "none", as_json=False)
    assert error.value.what == (
        f"run first, which held the engines, is gone, and so is its directory {first}, and no measurement began"
    )
    assert error.value.action == "start engines anew: `dynamo-mlperf run FILE --hold`"

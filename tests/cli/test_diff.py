"""`diff` as a person calls it: on runs that were really made, and on what is no run."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dynamo_mlperf.cli.diff import command
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.report.run_data import read_run
from tests.job.chain import Place
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def diff(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_runs_are_named_as_for_report_and_the_page_is_written_beside(runs: Path) -> None:
    build_run(runs / "slow-1", "invalid", queries=800)
    build_run(runs / "fast-1", queries=800)
    result = diff("slow", "runs/fast-1", "--html", "diff.html")
    assert result.exception is None
    assert (result.exit_code, result.stderr) == (0, "diff.html: written\n")
    assert result.stdout.startswith("A  INVALID [reduced]  qwen3-vl-235b-a22b Interactive  4P8D  39.85 queries/s\n")
    assert "verdict" in result.stdout
    assert (runs.parent / "diff.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs", "r"), "is no run directory: it lacks all of"),
        (("r", "nothing"), "no run 'nothing'"),
    ],
)
def test_what_is_no_run_is_refused(runs: Path, words: tuple[str, str], said: str) -> None:
    build_run(runs / "r", "running")
    result = diff(*words)
    assert isinstance(result.exception, ConfigError)
    assert said in result.exception.what
    assert result.exception.action
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("target", "kind"), [("runs", ConfigError), ("none/d.html", ConfigError), ("/proc/d", SetupError)]
)
def test_a_page_that_cannot_be_written_is_refused(runs: Path, target: str, kind: type[Exception]) -> None:
    build_run(runs / "r", "running")
    assert isinstance(diff("r", "r", "--html", target).exception, kind)


def test_what_json_has_no_number_for_is_a_word_and_equal_to_itself(runs: Path) -> None:
    odd = {"class": "official", "verdict": "VALID", "disaggregation": {"kv_bytes": float("nan"), "x": float("-inf")}}
    for name, extra in (("a", 1e-300), ("b", 1e300)):
        paths = build_run(runs / name, "running")
        paths.topology.write_text(paths.topology.read_text() + "extra: {x: .nan, y: .inf}\n")
        paths.load.mkdir(exist_ok=True)
        (paths.load / "client.json").write_text(json.dumps({"wall_s": float("nan"), "grown": extra}))
        paths.verdict.write_text(json.dumps({**odd, "completed_qps": 10**400, "target_qps": extra}))
        paths.events.write_text('{"t": 1, "event": "job_begin", "laid_over": {"nodes": NaN}}\n')
    paths.topology.write_text(paths.topology.read_text().replace("x: .nan", "x: -.inf"))
    text = diff("a", "b", "--json").stdout
    sections = {one["name"]: one for one in json.loads(text, parse_constant=pytest.fail)["sections"]}
    (row,) = sections["topology"]["rows"]
    assert row == {"key": "extra.x", "a": "nan", "b": "-inf", "change_percent": None}
    assert sections["disaggregation"]["equal"]
    assert [row["key"] for row in sections["client"]["rows"]] == ["grown"]
    assert diff("a", "b").exit_code == 0


def test_a_page_takes_no_place_of_what_a_run_left(runs: Path) -> None:
    build_run(runs / "a", "failed")
    build_run(runs / "b", "failed")
    (runs / "a" / "report.html").write_text("<!DOCTYPE html>\n<title>FAILED</title>")
    (runs.parent / "beside").symlink_to(runs / "a" / "events.jsonl")
    (runs.parent / "hidden.html").symlink_to(runs / "b" / "plan.json")
    kept = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    for target in (
        "runs/a/verdict.json", "runs/a/verdict.json/", "runs/b/../b/plan.json", "beside", "hidden.html",
        "runs/a/report.html", "runs/b/client.json",
    ):  # fmt: skip
        problem = diff("a", "b", "--html", target).exception
        assert isinstance(problem, ConfigError), target
        assert problem.action == "--html diff.html"
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == kept
    for _ in range(2):  # its own page is made anew
        assert diff("a", "b", "--html", "runs/a/diff.html").exit_code == 0
    assert diff("b", "a", "--html", "elsewhere.txt").exit_code == 0


def test_a_run_that_cannot_be_read_at_all_is_refused_with_a_way_out() -> None:
    """As another user, where this one reads everything; below a folder that others may enter."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        root = build_run(place / "closed", "failed").root
        root.chmod(0)
        if before == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(SetupError, match="closed cannot be read: Permission denied"):
                read_run(root)
        finally:
            os.seteuid(before)
            root.chmod(0o755)


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_runs_of_one_file_differ_in_what_was_changed_and_in_results_alone(tmp_path: Path) -> None:
    """Two real runs and one that fails: what the file says is told, ports, nonces and paths are not."""
    place = Place(tmp_path)
    file = place.topology()
    changed = place.topology({"roles": {"decode": {"args": {"max-num-seqs": 32}}}, "measure": {"target_qps": 12}})
    changed.write_text(changed.read_text().replace(changed.stem, file.stem))
    bad = place.topology({"roles": {"decode": {"args": {"planner-profile-data": "/nowhere"}}}})
    for path, name in ((file, "first"), (file, "again"), (changed, "other"), (bad, "bad")):
        with place.run(path, run_dir=tmp_path / "runs" / name) as run:
            run.end(120)
    same = {one["name"]: one for one in json.loads(diff("first", "again", "--json").stdout)["sections"]}
    told_equal = {name for name, one in same.items() if one["equal"]}
    assert told_equal >= {"topology", "plan", "commands", "versions", "asked", "effective", "disaggregation"}
    assert min(one["compared"] for name, one in same.items() if name in told_equal) > 5
    everything = {one["name"]: one for one in json.loads(diff("first", "again", "--all", "--json").stdout)["sections"]}
    noise = {row["key"] for row in everything["commands"]["rows"]}
    assert {"decode $DYN_SYSTEM_PORT", "decode $DYN_NAMESPACE", "prefill --model-name", "frontend --http-port"} <= noise
    other = {one["name"]: one for one in json.loads(diff("first", "other", "--json").stdout)["sections"]}
    assert other["topology"]["rows"] == [
        {"key": "roles.decode.args.max-num-seqs", "a": 64, "b": 32, "change_percent": -50.0},
        {"key": "measure.target_qps", "a": 14, "b": 12, "change_percent": -14.286},
    ]
    assert [row["key"] for row in other["commands"]["rows"]] == ["decode --max-num-seqs"]
    assert [row["key"] for row in other["asked"]["rows"]] == ["target_qps"]
    assert "target_qps" in {row["key"] for row in other["effective"]["rows"]}
    assert "end-to-end p99" in {row["key"] for row in other["latency"]["rows"]}
    failed = diff("first", "bad")
    assert "FAILED" in failed.stdout
    assert "Only A has on record: Latency, ms" in failed.stdout

"""`status`: the table, one run alone, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.cli.run_directory import run_directory
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.slurm.runs import find_run, list_runs, read_run
from dynamo_mlperf.slurm.standing import standings
from dynamo_mlperf.slurm.submission import RECORD, RECORDS
from tests.fakes.slurm_programs import NO_ACCOUNTING, FakeSlurm
from tests.slurm.test_outcome import make_run

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli", "status")


def status(place: Path, *words: str, fake: FakeSlurm) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("env", f"PATH={fake.path}", *PROGRAM, *words),
        cwd=place,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def two_runs(tmp_path: Path) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    fake.directory.mkdir()
    fake.script("sacct", NO_ACCOUNTING)
    fake.answers(
        "scontrol",
        "JobId=42 JobState=COMPLETED Reason=None ExitCode=0:0 DerivedExitCode=1:0 NodeList=n[1-2]\n"
        "JobId=43 JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0 DerivedExitCode=0:0 NodeList=n[1-2]\n",
    )
    make_run(tmp_path / "runs", "42")
    make_run(tmp_path / "runs", "43", verdict=None, code=None)
    return fake


def test_all_runs_by_default_with_one_question(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    done = status(tmp_path, fake=fake)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["RUN", "JOB", "STANDS", "PHASE", "WORKERS", "REMARKS"]
    assert lines[1].split()[:4] == ["r-42", "42", "VALID", "-"]
    assert lines[1].endswith(
        "  1 ended, 1 never started  "
        "4.50 completed per second; warning: a step of the job ended with 1 (Slurm's derived exit code)"
    )
    assert "NODE_FAIL" in lines[2]
    assert lines[2].endswith("lost a node (NodeDown)")
    assert len(fake.calls("scontrol")) == 1


def test_one_run_alone_has_its_workers(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    done = status(tmp_path, "43", fake=fake)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0] == "r-43  NODE_FAIL"
    assert "  job      43 NODE_FAIL, NodeDown on n[1-2] (by scontrol)" in shown
    assert "  worker   decode-0  ready  n1" in shown
    assert "  worker   decode-1  planned  n2" in shown


def test_a_sweep_that_was_cut_says_how_it_goes_on(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    for name in ("r-42", "r-43"):
        (tmp_path / "runs" / name / "sweep").mkdir()
        (tmp_path / "runs" / name / "sweep" / "summary.json").write_text('{"state": "running"}')
    assert "  go on    `dynamo-mlperf sweep FILE --resume runs/r-43`" in status(tmp_path, "43", fake=fake).stdout
    assert "go on" not in status(tmp_path, "42", fake=fake).stdout, "it is VALID"


def test_workers_of_a_run_that_came_to_its_end_were_stopped(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    path = tmp_path / "runs" / "r-42" / "events.jsonl"
    events = path.read_text().splitlines(keepends=True)
    stop = json.dumps({"t": 1008.0, "event": "phase_begin", "phase": "stop"}) + "\n"
    path.write_text("".join([*events[:-2], stop, *events[-2:]]))
    assert "  worker   decode-0  stopped  n1" in status(tmp_path, "42", fake=fake).stdout.splitlines()
    assert "  1 never started, 1 stopped  " in status(tmp_path, fake=fake).stdout


def test_json_carries_everything(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    one, two = json.loads(status(tmp_path, "--json", fake=fake).stdout)
    assert (one["run"], one["job_id"], one["verdict"], one["outcome"]["success"]) == ("r-42", "42", "VALID", True)
    assert (two["job"]["state"], two["outcome"]["word"], two["phase"]) == ("NODE_FAIL", "NODE_FAIL", "measure")


def test_no_runs_and_unknown_runs(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    (tmp_path / "empty").mkdir()
    assert status(tmp_path / "empty", fake=fake).stdout.startswith("no runs below runs/")
    refused = status(tmp_path, "r-44", fake=fake)
    assert (refused.returncode, "Try: name r-4" in refused.stderr) == (2, True)


def test_watching_ends_when_all_have_ended(tmp_path: Path) -> None:
    assert "NODE_FAIL" in status(tmp_path, "--watch", fake=two_runs(tmp_path)).stdout


BEGIN = {"event": "job_begin", "t": 1.0, "place": "this machine"}


@pytest.mark.parametrize(
    ("events", "files"),
    [
        ([{**BEGIN, "t": "x"}], {}),
        ([BEGIN, {"event": "phase_begin", "phase": "measure", "t": None}], {}),
        ([BEGIN], {"plan.json": {"workers": [1], "binding": 7}}),
        ([BEGIN], {"plan.json": {"workers": [{"ranks": [{"node": [1]}]}], "binding": [{"position": [1]}]}}),
        ([BEGIN, {"event": "job_end", "exit_code": 5}], {"verdict.json": {"verdict": "INVALID", "reasons": {"a": 1}}}),
        ([BEGIN], {"verdict.json": {"verdict": ["VALID"]}}),
    ],
)
def test_a_damaged_run_does_not_hide_the_others(
    tmp_path: Path, events: list[dict[str, object]], files: dict[str, object]
) -> None:
    fake = two_runs(tmp_path)
    damaged = tmp_path / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + "[" * 100_000 + "\n")
    for name, value in files.items():
        (damaged / name).write_text(json.dumps(value))
    if "verdict.json" not in files:
        os.mkfifo(damaged / "verdict.json")
    done = status(tmp_path, fake=fake)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"r-42", "r-43", "damaged"}


def test_progress_that_is_no_progress_is_left_out(tmp_path: Path) -> None:
    fake = two_runs(tmp_path)
    fake.answers("scontrol", "JobId=43 JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n1\n")
    events = ({**BEGIN, "place": "Slurm job 43 on n1"}, {"event": "phase_begin", "phase": "measure", "t": 2})
    (tmp_path / "runs" / "r-43" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "runs" / "r-43" / "loadgen").mkdir(exist_ok=True)
    (tmp_path / "runs" / "r-43" / "loadgen" / "progress.json").write_text('{"completed": 3}')
    done = status(tmp_path, "43", fake=fake)
    assert (done.returncode, done.stderr) == (0, "")
    assert "RUNNING" in done.stdout


@pytest.mark.parametrize("word", ["x" * 300, "y" * 300 + "/z", "./circle"])
def test_a_word_that_can_be_no_run_is_a_usage_error(tmp_path: Path, word: str) -> None:
    fake = two_runs(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    done = status(tmp_path, word, fake=fake)
    assert done.returncode == 2, done.stderr


def test_a_live_rehearsal_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run directory lies inside the directory that it made, beside topology, profiles and prompts."""
    outer = tmp_path / "runs" / "rehearse-x-20261129-1"
    make_run(outer, "9").rename(outer / "run")
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    assert list_runs(runs) == [], "some folder of that name is no run"
    (outer / "original.yaml").write_text("schema: 1\n")
    (found,) = list_runs(runs)
    assert (found.name, found.root) == (outer.name, runs / outer.name / "run")
    for word in (outer.name, "rehearse-x", str(outer), str(outer / "run")):
        assert find_run(word, runs).root.resolve() == outer / "run"
        assert run_directory(word).resolve() == outer / "run"


@pytest.mark.parametrize(
    "place", ["this machine, 1 virtual node", "Slurm job 42 on 2 nodes, attached as step 42.4", ""]
)
def test_a_run_that_ends_while_it_is_asked_after_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    fake = two_runs(tmp_path)
    fake.script("squeue", "true")
    monkeypatch.setenv("PATH", fake.path)
    path = tmp_path / "runs" / "r-42" / "events.jsonl"
    *rest, end = [json.loads(line) for line in path.read_text().splitlines()]
    rest[0]["place"] = place or rest[0]["place"]
    path.write_text("".join(json.dumps(event) + "\n" for event in rest))
    before = read_run(path.parent)
    with path.open("a") as out:
        out.write(json.dumps(end) + "\n")
    (found,), problem = standings([before])
    assert (found.outcome.word, problem) == ("VALID", "")


def test_any_beginning_of_just_one_run_does_and_of_several_the_newest_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for number in range(8):
        root = runs / f"demo-20261130-15370{number}-a7f172"
        root.mkdir(parents=True)
        (root / "events.jsonl").write_text(json.dumps({**BEGIN, "t": 100.0 + number}) + "\n")
    make_run(runs, "17").rename(runs / "17b-0")
    monkeypatch.chdir(tmp_path)
    for word in ("demo-20261130-153707", "demo-20261130-153707-a7", "demo-20261130-153707-"):
        assert find_run(word, Path("runs")).name == "demo-20261130-153707-a7f172"
        assert run_directory(word).name == "demo-20261130-153707-a7f172"
    for word in ("demo", "dem", "demo-20261130-15370"):
        with pytest.raises(ConfigError) as refused:
            run_directory(word)
        said = str(refused.value)
        assert f"{word} names 8 runs: demo-20261130-153707-a7f172, demo-20261130-153706-a7f172, " in said
        assert " and 3 more" in said
        assert "such as demo-20261130-153707-a7f172" in said
    assert find_run("1", Path("runs")).job_id == "1", "a number is a job"


def early_end(tmp_path: Path, printed: str) -> FakeSlurm:
    """Job 44 was submitted here and ended before it made its run directory."""
    fake = two_runs(tmp_path)
    fake.answers("scontrol", "JobId=44 JobState=FAILED Reason=NonZeroExitCode ExitCode=2:0 NodeList=n1\n")
    job = {
        "job_id": "44",
        "name": "r",
        "run_dir": str(tmp_path / "runs" / "r-44"),
        "file": "r.yaml",
        "submitted_t": 9.0,
    }
    record = tmp_path / "runs" / RECORDS / "44" / RECORD
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(job))
    (tmp_path / "slurm-44.out").write_text(printed)
    return fake


def test_a_job_that_ended_before_its_run_began_gives_its_reason(tmp_path: Path) -> None:
    fake = early_end(tmp_path, "warning: first\nerror: assets/x: No such file\n  Try: make it\n")
    done = status(tmp_path, "44", fake=fake)
    told = "  ended with an exit code that is not 0; exit code 2; assets/x: No such file"
    assert told in done.stdout.splitlines(), done.stdout
    assert done.stdout.endswith("/runs/r-44 (none were made)\n")
    assert json.loads(status(tmp_path, "44", "--json", fake=fake).stdout)[0]["error"] == "assets/x: No such file"


def test_a_job_that_gave_no_reason_has_its_output_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = early_end(tmp_path, "nothing of use\n")
    assert "exit code 2; `dynamo-mlperf logs 44` shows what it printed\n" in status(tmp_path, "44", fake=fake).stdout
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="job 44 has made no run directory: ") as refused:
        run_directory("44")
    assert "`logs 44` what it printed" in refused.value.action

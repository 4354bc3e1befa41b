"""Which runs count as a success: R39's table, by recorded answers of sacct and of scontrol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from dynamo_mlperf.slurm.outcome import outcome_of
from dynamo_mlperf.slurm.runs import find_run, list_runs, read_run
from dynamo_mlperf.slurm.standing import Standing, standings
from dynamo_mlperf.slurm.submission import RECORD, RECORDS
from tests.fakes.slurm_programs import NO_ACCOUNTING, NO_CONTROLLER, NO_SUCH_JOB, FakeSlurm

if TYPE_CHECKING:
    from collections.abc import Callable


def make_run(runs: Path, job: str = "42", verdict: str | None = "VALID", code: int | None = 0) -> Path:
    root = runs / f"r-{job}"
    (root / "loadgen").mkdir(parents=True)
    events = [
        {"t": 1000.0, "event": "job_begin", "run": root.name, "place": f"Slurm job {job} on 2 nodes (n1, n2)"},
        {"t": 1001.0, "event": "phase_begin", "phase": "start"},
        {"t": 1002.0, "event": "process_started", "process": "decode-0", "node": 1},
        {"t": 1003.0, "event": "process_ready", "process": "decode-0"},
        {"t": 1004.0, "event": "phase_begin", "phase": "measure"},
    ]
    if code is not None:
        events += [{"t": 1009.0, "event": "process_exited", "process": "decode-0", "status": -9}]
        events += [{"t": 1010.0, "event": "job_end", "exit_code": code}]
    (root / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    workers = [{"role": "decode", "index": index, "ranks": [{"node": index, "gpu": 0}]} for index in (0, 1)]
    binding = [{"position": position, "host": f"n{position + 1}"} for position in (0, 1)]
    (root / "plan.json").write_text(json.dumps({"workers": [*reversed(workers)], "binding": binding}))
    if verdict is not None:
        reasons = [] if verdict == "VALID" else [{"check": "duration", "got": "20 s"}]
        value = {"verdict": verdict, "reasons": reasons, "completed_qps": 4.5 if verdict == "VALID" else None}
        (root / "verdict.json").write_text(json.dumps(value))
    return root


def stands(slurm: FakeSlurm, runs: Path, state: str, code: str, derived: str = "0:0", *, by: str = "sacct") -> Standing:
    slurm.script("sacct", NO_ACCOUNTING)
    slurm.script("scontrol", NO_SUCH_JOB)
    if by == "sacct":
        slurm.script("scontrol", NO_CONTROLLER)
        slurm.answers("sacct", f"42|42|{state}|{code}|{derived}|n[1-2]|None|1|2|3\n")
    else:
        name, _, who = state.partition(" by ")
        slurm.answers(
            "scontrol",
            f"JobId=42 JobState={name} Reason={who or 'None'} ExitCode={code} DerivedExitCode={derived} NodeList=n1\n",
        )
    (found,), problem = standings(list_runs(runs))
    assert problem == ""
    return found


Left = tuple[str | None, int | None]


class Case(NamedTuple):
    """What Slurm says and what the run left, and what both together mean."""

    state: str
    code: str
    derived: str
    left: Left
    word: str
    success: bool | None
    exit_code: int | None
    said: str


GOOD, BAD = True, False
CASES = [
    Case("COMPLETED", "0:0", "0:0", ("VALID", 0), "VALID", GOOD, 0, "4.50 completed per second"),
    Case("COMPLETED", "0:0", "1:0", ("VALID", 0), "VALID", GOOD, 0, "4.50 completed per second"),
    Case("FAILED", "0:0", "0:0", ("VALID", 0), "FAILED", BAD, 4, "its verdict says VALID, which does not count"),
    Case("OUT_OF_MEMORY", "0:125", "0:0", ("VALID", 0), "OUT_OF_MEMORY", BAD, 4, "ran out of memory; its verdict"),
    Case("CANCELLED by 1000", "0:0", "0:0", ("VALID", 0), "CANCELLED", BAD, 143, "was cancelled"),
    Case("NODE_FAIL", "0:0", "0:0", (None, None), "NODE_FAIL", BAD, 4, "lost a node"),
    Case("TIMEOUT", "0:0", "0:0", (None, None), "TIMEOUT", BAD, 143, "reached its time limit"),
    Case("TIMEOUT", "0:15", "0:0", (None, None), "TIMEOUT", BAD, 143, "reached its time limit"),
    Case("FAILED", "4:0", "0:125", ("FAILED", 4), "FAILED", BAD, 4, "20 s"),
    Case("PREEMPTED", "0:0", "0:0", ("VALID", None), "PREEMPTED", BAD, 4, "was preempted"),
    Case("COMPLETED", "0:0", "0:0", (None, None), "FAILED", BAD, 4, "holds no verdict"),
    Case("COMPLETED", "0:0", "0:0", ("VALID", None), "FAILED", BAD, 4, "no end of its controller"),
    Case("COMPLETED", "0:0", "0:0", ("INVALID", 0), "FAILED", BAD, 4, "its verdict is INVALID"),
    Case(
        "COMPLETED", "0:0", "0:0", ("VALID", 4), "FAILED", BAD, 4, "verdict is VALID, but its controller ended with 4"
    ),
    Case("SOMETHING_NEW", "0:0", "0:0", ("VALID", 4), "FAILED", None, 4, "but its controller ended with 4"),
    Case("FAILED", "5:0", "0:0", ("INVALID", 5), "INVALID", BAD, 5, "duration: 20 s"),
    Case("FAILED", "4:0", "0:0", ("FAILED", 4), "FAILED", BAD, 4, "20 s"),
    Case("FAILED", "3:0", "0:0", (None, None), "FAILED", BAD, 3, "exit code 3"),
    Case("SOMETHING_NEW", "0:0", "0:0", ("VALID", 0), "VALID", None, 0, "Slurm does not know it any more"),
    Case("RUNNING", "0:0", "0:0", (None, None), "RUNNING", None, None, ""),
    Case("COMPLETING", "0:0", "0:0", ("VALID", 0), "RUNNING", None, None, "some of its processes still run"),
]


@pytest.mark.parametrize("by", ["sacct", "scontrol"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.state}-{case.code}-{case.left[0]}-{case.left[1]}")
def test_only_a_clean_job_with_a_complete_result_is_a_success(
    slurm: FakeSlurm, tmp_path: Path, by: str, case: Case
) -> None:
    make_run(tmp_path, verdict=case.left[0], code=case.left[1])
    outcome = stands(slurm, tmp_path, case.state, case.code, case.derived, by=by).outcome
    assert (outcome.word, outcome.success, outcome.exit_code) == (case.word, case.success, case.exit_code)
    assert case.said in outcome.text
    told = {"1:0": "ended with 1", "0:125": "ran out of memory"}.get(case.derived)
    assert outcome.warnings == ((f"a step of the job {told} (Slurm's derived exit code)",) if told else ())


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: '{"verdict": "INVALID", ' + text[1:]])
def test_a_verdict_that_is_cut_short_or_says_two_things_is_none(
    slurm: FakeSlurm, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    root = make_run(tmp_path)
    (root / "verdict.json").write_text(damage((root / "verdict.json").read_text()))
    assert stands(slurm, tmp_path, "COMPLETED", "0:0").outcome.success is False


def test_workers_and_phase_are_read_from_the_directory(tmp_path: Path) -> None:
    make_run(tmp_path, verdict=None, code=None)
    run = find_run("42", tmp_path)
    assert [(worker.name, worker.host, worker.state, worker.status) for worker in run.workers] == [
        ("decode-1", "n2", "planned", None),
        ("decode-0", "n1", "ready", None),
    ]
    assert (run.phase, run.phase_t, run.finished, run.complete) == ("measure", 1004.0, None, False)
    make_run(tmp_path / "other")
    (ended,) = [worker for worker in find_run("r-42", tmp_path / "other").workers if worker.name == "decode-0"]
    assert (ended.state, ended.status) == ("ended", -9)


def test_a_worker_that_ends_when_all_are_ended_is_stopped(tmp_path: Path) -> None:
    root = make_run(tmp_path)
    events = (root / "events.jsonl").read_text().splitlines(keepends=True)
    stop = json.dumps({"t": 1008.0, "event": "phase_begin", "phase": "stop"}) + "\n"
    (root / "events.jsonl").write_text("".join([*events[:-2], stop, *events[-2:]]))
    (stopped,) = [worker for worker in find_run("42", tmp_path).workers if worker.name == "decode-0"]
    assert (stopped.state, stopped.status) == ("stopped", -9)


@pytest.mark.parametrize(
    ("check", "word", "said"),
    [("interrupted", "CANCELLED", "interrupted by SIGTERM (cancelled)"), ("run", "FAILED", "stopped by SIGTERM")],
)
def test_a_run_that_was_asked_to_end_is_cancelled(
    slurm: FakeSlurm, tmp_path: Path, check: str, word: str, said: str
) -> None:
    root = make_run(tmp_path, verdict="FAILED", code=143)
    reasons = [{"check": check, "got": "stopped by SIGTERM"}]
    (root / "verdict.json").write_text(json.dumps({"verdict": "FAILED", "reasons": reasons}))
    found = stands(slurm, tmp_path, "FAILED", "143:0")
    assert (found.outcome.word, found.outcome.text, found.outcome.exit_code) == (word, said, 143)
    assert found.as_json()["verdict"] == "FAILED"
    events = (root / "events.jsonl").read_text()
    (root / "events.jsonl").write_text(events.replace("Slurm job 42 on 2 nodes (n1, n2)", "this machine, 2 nodes"))
    (local,), _ = standings(list_runs(tmp_path))
    assert (local.job, local.outcome) == (None, found.outcome)


def test_a_submitted_run_is_known_before_it_has_a_directory(slurm: FakeSlurm, tmp_path: Path) -> None:
    record = tmp_path / RECORDS / "42" / RECORD
    record.parent.mkdir(parents=True)
    value = {"job_id": "42", "name": "r", "run_dir": str(tmp_path / "r-42"), "file": "/x", "submitted_t": 5.0}
    record.write_text(json.dumps(value))
    (tmp_path / RECORDS / "43").mkdir()
    (tmp_path / RECORDS / "43" / RECORD).write_text("{")
    found = stands(slurm, tmp_path, "PENDING", "0:0")
    assert (found.run.name, found.run.present, found.outcome.word, found.outcome.text) == (
        "r-42",
        False,
        "WAITING",
        "waits for nodes",
    )
    slurm.answers("scontrol", "JobId=42 JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n4 ExitCode=0:0\n")
    (found,), _ = standings(list_runs(tmp_path))
    assert found.outcome.text == "ReqNodeNotAvail,_UnavailableNodes:n4"
    assert find_run(str(tmp_path / "r-42"), tmp_path).job_id == "42"


def test_a_silent_slurm_leaves_the_directory_to_speak(slurm: FakeSlurm, tmp_path: Path) -> None:
    make_run(tmp_path)
    slurm.script("sacct", NO_ACCOUNTING)
    slurm.script("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    (found,), problem = standings(list_runs(tmp_path))
    assert "Unable to contact slurm controller" in problem
    assert (found.outcome.word, found.outcome.success) == ("VALID", None)


def test_a_local_run_whose_controller_is_gone_is_lost(tmp_path: Path) -> None:
    root = make_run(tmp_path, verdict=None, code=None)
    events = root / "events.jsonl"
    events.write_text(events.read_text().replace("Slurm job 42 on 2 nodes (n1, n2)", "this machine, 2 virtual nodes"))
    (found,), problem = standings(list_runs(tmp_path))
    assert (found.job, found.outcome.word, found.outcome.success, problem) == (None, "LOST", False, "")


def test_names_that_mean_no_run_or_several_are_refused(tmp_path: Path) -> None:
    make_run(tmp_path, "42")
    make_run(tmp_path, "43")
    with pytest.raises(Exception, match="r names 2 runs: r-43, r-42"):
        find_run("r", tmp_path)
    with pytest.raises(Exception, match="no run 'r-24'") as error:
        find_run("r-24", tmp_path)
    assert error.value.action in {"name r-42", "name r-43"}  # type: ignore[attr-defined]
    assert find_run("r-43", tmp_path).job_id == "43"
    make_run(tmp_path / "x", "44").rename(tmp_path / "rest-44")
    make_run(tmp_path / "x", "45").rename(tmp_path / "alone-45")
    with pytest.raises(Exception, match=r"r names 2 runs: r-43, r-42\n"):
        find_run("r", tmp_path)
    assert find_run("alone", tmp_path).job_id == "45"
    assert find_run("99", tmp_path).job_id == "99"


def test_a_run_whose_accuracy_test_is_invalid_is_valid_and_no_success(slurm: FakeSlurm, tmp_path: Path) -> None:
    root = make_run(tmp_path / "runs", code=5)
    verdict = json.loads((root / "verdict.json").read_text())
    (root / "verdict.json").write_text(json.dumps({**verdict, "tests": {"accuracy": "INVALID", "TEST06": "VALID"}}))
    for found in (
        outcome_of(read_run(root), None),
        stands(slurm, tmp_path / "runs", "FAILED", "5:0").outcome,
    ):
        assert (found.word, found.success, found.exit_code) == ("VALID", False, 5)
        assert found.text == "4.50 completed per second, accuracy INVALID"


HELD = [
    {"t": 1005.0, "event": "phase_begin", "phase": "hold"},
    {"t": 1005.0, "event": "hold_begin", "idle_s": 3600.0},
    {"t": 1006.0, "event": "held_measurement", "run": "second", "run_dir": "/w/runs/second"},
]


def with_events(root: Path, *events: dict[str, object]) -> None:
    path = root / "events.jsonl"
    lines = path.read_text().splitlines()
    last = [line for line in lines if "job_end" in line]
    kept = [line for line in lines if line not in last]
    path.write_text("".join(f"{line}\n" for line in [*kept, *map(json.dumps, events), *last]))


@pytest.mark.parametrize("by", ["sacct", "scontrol"])
def test_a_hold_that_slurm_ended_leaves_the_result_as_it_was(slurm: FakeSlurm, tmp_path: Path, by: str) -> None:
    root = make_run(tmp_path / "runs")
    with_events(root, *HELD, {"t": 1007.0, "event": "hold_end", "what": "stopped by SIGTERM", "measurements": 2})
    found = stands(slurm, tmp_path / "runs", "CANCELLED by 0", "0:15", by=by).outcome
    assert (found.word, found.success, found.exit_code) == ("VALID", True, 0)
    assert found.text == "4.50 completed per second; held for 2 measurements, until stopped by SIGTERM"
    assert found.warnings[-1] == "the hold of its engines was ended by Slurm: CANCELLED"


def test_a_hold_that_was_killed_did_not_come_to_its_end(slurm: FakeSlurm, tmp_path: Path) -> None:
    with_events(make_run(tmp_path / "runs", code=None), *HELD)
    found = stands(slurm, tmp_path / "runs", "NODE_FAIL", "0:0").outcome
    assert (found.word, found.success) == ("NODE_FAIL", False)


def test_a_run_that_holds_its_engines_says_what_it_does(slurm: FakeSlurm, tmp_path: Path) -> None:
    root = make_run(tmp_path / "runs", code=None)
    with_events(root, *HELD)
    slurm.answers("scontrol", "JobId=42 JobState=RUNNING Reason=None ExitCode=0:0 NodeList=n[1-2]\n")
    second = tmp_path / "runs" / "second"
    second.mkdir()
    place = "engines held by Slurm job 7"  # however a person calls the holder
    begin = {"t": 1006.0, "event": "job_begin", "run": "second", "place": place, "held_by": str(root)}
    (second / "events.jsonl").write_text(json.dumps(begin) + "\n")
    holder, run = standings(list_runs(tmp_path / "runs"))[0]
    assert holder.outcome.text == "measured VALID; its engines are held, 2 measurements, now second"
    assert (holder.outcome.word, run.outcome.word, run.run.job_id) == ("RUNNING", "RUNNING", "")
    with_events(root, {"t": 1008.0, "event": "held_measurement_end", "run": "second", "exit_code": 0})
    assert standings([read_run(root)])[0][0].outcome.text.endswith("2 measurements")
    slurm.answers("scontrol", "JobId=42 JobState=CANCELLED Reason=None ExitCode=0:15 NodeList=n[1-2]\n")
    lost = standings([read_run(second)])[0][0].outcome
    assert (lost.word, lost.text) == ("LOST", "run r-42, which held its engines, is gone, and there is no verdict")


def test_a_run_that_says_it_is_its_own_holder_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "runs" / "x"
    root.mkdir(parents=True)
    begin = {"t": 1006.0, "event": "job_begin", "run": "x", "place": "engines held by x", "held_by": str(root)}
    (root / "events.jsonl").write_text(json.dumps(begin) + "\n")
    assert standings([read_run(root)])[0][0].outcome.word == "LOST"

"""`search` end to end: real probe programs, real signals; answers, reasons, faults, resuming."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dynamo_mlperf.tuning.probe_command import stall_limit_s

PROBE = f"{sys.executable} -m tests.fakes.probe"
RANGE = ("--low", "10", "--high", "90", "--duration-s", "200")


def _search(repository: Path, probe: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = _argv(probe, *arguments)
    return subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=False, timeout=600)


def _argv(probe: str, *arguments: str | Path) -> list[str]:
    words = [str(argument) for argument in arguments]
    return [sys.executable, "-m", "dynamo_mlperf.cli", "search", "--probe-command", f"{PROBE} {probe}", *words]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_answer_is_confirmed_and_cheap(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    probe = f"--capacity 40 --log {log}"
    done = _search(repository, probe, *RANGE, "--record-dir", tmp_path / "records", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["confirmed"]
    assert answer["valid"]
    assert answer["located"]
    assert answer["binding_constraint"] == "latency"
    assert 36.0 < answer["answer_qps"] < 40.0
    assert answer["full_run_s"] == 200.0
    confirmed = answer["probes"][answer["confirmed_by"]]
    assert (confirmed["ended"], confirmed["target_qps"], confirmed["seconds"]) == (
        "complete",
        answer["answer_qps"],
        200,
    )
    assert answer["result"]["n"] > 0.9 * 200 * answer["answer_qps"]
    # Each probe was asked for a full run, and those not needed to the end got SIGTERM.
    calls = [line for line in _lines(log) if "rate" in line]
    assert [call["rate"] for call in calls] == [probe["target_qps"] for probe in answer["probes"]]
    assert {call["seconds"] for call in calls} == {200.0}
    stopped = [probe for probe in answer["probes"] if probe["ended"] != "complete"]
    assert stopped
    assert len([line for line in _lines(log) if "terminated" in line]) == len(stopped)
    # The same command again answers from the records, without a probe.
    again = _search(repository, probe, *RANGE, "--record-dir", tmp_path / "records")
    assert (again.returncode, again.stdout) == (0, f"{answer['answer_qps']:.5g}\n")
    assert len([line for line in _lines(log) if "rate" in line]) == len(calls)
    other = _search(repository, probe, *RANGE[:4], "--record-dir", tmp_path / "records")
    assert other.returncode == 2
    assert "duration_s 200.0 there, 600.0 now" in other.stderr


@pytest.mark.parametrize("habit", ["", " --forgetful"])
def test_a_program_that_simulates_hours_in_a_second_is_stopped_where_it_was_judged(
    repository: Path, tmp_path: Path, habit: str
) -> None:
    """Whether it flushes its lines or not: it can be no further than the line after the next one."""
    log, records = tmp_path / "log", tmp_path / "records"
    probe = f"--capacity 40 --pace 0 --line-s 1 --log {log}{habit}"
    done = _search(repository, probe, *RANGE, "--record-dir", records, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    stopped = [index for index, each in enumerate(answer["probes"]) if each["ended"] != "complete"]
    judged_s = [_judged_s(records / f"probe-{index + 1:03}" / "record.json") for index in stopped]
    got_to_s = [line["t_s"] for line in _lines(log) if "terminated" in line]
    assert len(stopped) > 1
    assert len(got_to_s) == len(stopped)
    for judged, got_to in zip(judged_s, got_to_s, strict=True):
        assert judged <= got_to <= judged + 2.0
        assert judged < 190.0
    whole_s = 200.0 * (len(answer["probes"]) - len(stopped))
    assert answer["engine_seconds"] == pytest.approx(whole_s + sum(got_to_s), abs=2.0 * len(stopped))


def _judged_s(record: Path) -> float:
    """Time of the last line that was judged, in s."""
    last: float = json.loads(record.read_text())["samples"][-1][0]
    return last


def test_an_interrupted_search_goes_on_where_it_was(repository: Path, tmp_path: Path) -> None:
    records, log = tmp_path / "records", tmp_path / "log"
    argv = _argv(f"--pace 0.1 --log {log}", *RANGE, "--record-dir", records, "--json")
    running = subprocess.Popen(argv, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (records / "probe-002" / "stream.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.05)
    while (records / "probe-002" / "stream.jsonl").stat().st_size == 0 and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=240)
    assert running.returncode == 130, told
    assert "Try: the same command again: it goes on with the probes in its --record-dir" in told
    kept = json.loads((records / "probe-001" / "record.json").read_text())
    second = json.loads((records / "probe-002" / "record.json").read_text())
    assert second["ended"] == "interrupted"
    done = _search(repository, f"--pace 0.1 --log {log}", *RANGE, "--record-dir", records, "--json")
    assert done.returncode == 0, done.stderr
    probes = json.loads(done.stdout)["probes"]
    assert [probe["target_qps"] for probe in probes[:2]] == [kept["rate"], second["rate"]]
    assert "resumed: 2 probes" in done.stderr


def test_impossible_at_any_rate(repository: Path) -> None:
    done = _search(repository, "--base 0.9 --constraint ttft", "--duration-s", "200", "--json")
    assert done.returncode == 5
    answer = json.loads(done.stdout)
    assert (answer["answer_qps"], answer["confirmed"], answer["kind"]) == (None, False, "impossible")
    assert answer["binding_constraint"] == "ttft"
    assert "error: no answer (impossible)" in done.stderr


def test_too_few_queries_are_not_too_fast(repository: Path) -> None:
    done = _search(repository, "--capacity 0.6", "--json")
    assert done.returncode == 5
    answer = json.loads(done.stdout)
    assert answer["kind"] == "too few queries"
    assert "459 queries" in answer["reason"]
    assert "--duration-s" in answer["action"]


def test_the_budget_is_kept_and_said(repository: Path) -> None:
    done = _search(repository, "--capacity 40", *RANGE, "--time-budget-s", "150", "--json")
    assert done.returncode == 5
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["probes"]) == ("budget", [])
    tight = _search(repository, "--capacity 40 --pace 0.1", *RANGE, "--time-budget-s", "450", "--json")
    answer = json.loads(tight.stdout)
    assert tight.returncode == 0, tight.stderr
    assert answer["confirmed"]
    assert answer["engine_seconds"] <= 450


def test_the_binding_constraint_is_named(repository: Path) -> None:
    done = _search(repository, "--constraint ttft --ceiling 1", *RANGE, "--json")
    assert json.loads(done.stdout)["binding_constraint"] == "ttft"


def test_runs_that_are_invalid_for_another_reason_end_the_search(repository: Path) -> None:
    done = _search(repository, "--refuse", *RANGE, "--json")
    assert done.returncode == 5
    assert json.loads(done.stdout)["kind"] == "invalid"


@pytest.mark.parametrize("serves", ["2000", "80", "12"])
def test_offline(repository: Path, serves: str) -> None:
    """A run ends when all is done: a system far faster than expected ends it within seconds, which is no fault."""
    words = ("--scenario", "Offline", "--start", "50", "--json")
    done = _search(repository, f"--serves {serves} --pace 0.002", *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["answer_qps"] == pytest.approx(float(serves), rel=0.01)
    assert answer["result"]["seconds"] >= 600
    assert [probe["ended"] for probe in answer["probes"][1:]] == ["complete"]


def test_offline_within_a_range_and_a_budget(repository: Path) -> None:
    words = ("--scenario", "Offline", "--start", "50", "--json")
    low = _search(repository, "--serves 2000 --pace 0.002", *words, "--high", "100")
    assert low.returncode == 5
    assert json.loads(low.stdout)["kind"] == "too few queries"
    assert "give a higher --high" in low.stderr
    short = _search(repository, "--serves 2000 --pace 0.002", *words, "--time-budget-s", "620")
    assert short.returncode == 5
    answer = json.loads(short.stdout)
    assert (answer["kind"], len(answer["probes"])) == ("budget", 1)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (
            "crash",
            "it ended with exit status 7 without the line that says done; its stderr ends: CUDA error: out of memory",
        ),
        ("garbage", "line 1 of its stdout is no JSON: 'Loading model ...'"),
        ("killed", "it ended with SIGKILL without the line that says done"),
        ("quits", "it ended with exit status 0 without the line that says done"),
        ("hang", "it hangs: no line for 8 s after 5 s of the run"),
        ("silent", "it hangs: no line for 4 s after 0 s of the run"),
        ("short", "it said done after 10 s; it was asked to run for 200 s"),
        ("more", "at 11 s it says 501 completed of 500 issued"),
        ("over", "at 11 s it says 501 over latency of 400 completed"),
        ("'takes back'", "at 7 s it says 19 over latency; at 6 s it said 20, 20 of them in flight"),
    ],
)
def test_a_probe_that_does_not_measure_is_named_after_a_repeat(repository: Path, fault: str, named: str) -> None:
    stall_s = {"hang": "8", "silent": "4"}.get(fault, "120")
    done = _search(repository, f"--fault {fault}", *RANGE, "--start", "30", "--stall-s", stall_s)
    assert done.returncode == 4, done.stderr
    assert done.stdout == ""
    assert f"did not measure, twice: {named}" in done.stderr
    assert f"run it by itself: {sys.executable} -m tests.fakes.probe --fault {fault} --target-qps 30 " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_probe_that_fails_once_is_repeated(repository: Path, tmp_path: Path) -> None:
    done = _search(repository, f"--fault crash --fault-file {tmp_path / 'once'}", *RANGE)
    assert done.returncode == 0, done.stderr
    assert "probe-001: did not measure" in done.stderr


def test_a_probe_that_is_slow_to_end_and_says_little_is_no_fault(repository: Path) -> None:
    """A line each 30 s; after SIGTERM it goes on for a while, says nonsense and ends with a status of its own."""
    done = _search(repository, "--fault deaf --line-s 30 --pace 0.1 --capacity 40", *RANGE[:4], "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert 36.0 < answer["answer_qps"] < 40.5
    assert any(probe["ended"] in {"too low", "cannot pass", "unlikely to pass"} for probe in answer["probes"])
    assert "did not measure" not in done.stderr


@pytest.mark.parametrize("habit", ["", " --forgetful"])
def test_what_a_stopped_program_sums_up_is_no_whole_run(repository: Path, habit: str) -> None:
    """Its last line says that the run is not valid, has no queries, and lasted as long as it did or as was asked."""
    done = _search(repository, f"--fault 'sums up' --capacity 40{habit}", *RANGE, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert 36.0 < answer["answer_qps"] < 40.5
    assert any(probe["ended"] != "complete" for probe in answer["probes"])
    assert "did not measure" not in done.stderr


def test_an_exit_status_may_say_that_a_run_was_not_valid(repository: Path) -> None:
    done = _search(repository, "--fault 'says so' --refuse", *RANGE, "--json")
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["kind"] == "invalid"
    assert "did not measure" not in done.stderr


@pytest.mark.parametrize("left_out", ["settled", "cold"])
def test_a_program_may_leave_its_ramp_up_out_of_the_last_line(repository: Path, left_out: str) -> None:
    done = _search(repository, f"--fault {left_out} --capacity 31 --pace 0", *RANGE)
    assert done.returncode == 0, done.stderr
    assert 27.0 < float(done.stdout) < 32.0


def test_a_program_that_says_little_is_not_taken_for_hung() -> None:
    """A line each 30 s is slow, and a short run is no reason to want them sooner."""
    assert [stall_limit_s(planned_s) for planned_s in (20.0, 60.0, 400.0, 3600.0)] == [45.0, 45.0, 100.0, 150.0]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("exits", "it ended with exit status 3 after the line that says done"),
        ("few", "its last line says 200 queries, and 30 QPS for 200 s are about 6000"),
        ("forgets", "its last line says 0 over latency; at 200 s it said "),
    ],
)
def test_a_probe_that_contradicts_itself_at_its_end_has_not_measured(repository: Path, fault: str, named: str) -> None:
    done = _search(repository, f"--fault {fault} --capacity 31 --pace 0", *RANGE, "--start", "30")
    assert done.returncode == 4, done.stderr
    assert f"did not measure, twice: {named}" in done.stderr


def test_what_a_probe_leaves_in_a_session_of_its_own_is_killed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGOTTEN", str(tmp_path / "pid"))
    done = _search(repository, "--fault detached", *RANGE, "--json")
    assert done.returncode == 0, done.stderr
    assert not _runs(int((tmp_path / "pid").read_text()))


def _runs(pid: int) -> bool:
    """A killed one may wait for its new parent to take note."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--probe-command", "no-such-program-here"), "no-such-program-here is no program on PATH"),
        (("--probe-command", "'open"), "cannot be split"),
        (("--probe-command", " "), "'--probe-command': it is empty"),
        (("--probe-command", "true", "--low", "5", "--high", "4"), "--low 5 is not below --high 4"),
        (("--probe-command", "true", "--low", "5", "--start", "4"), "--start 4 is outside"),
        ((), "--probe-command"),
        (("x.yaml", "--probe-command", "true"), "one of the two"),
        (("x.yaml", "--duration-s", "5"), "--duration-s does not go with FILE"),
        (("--probe-command", "true", "--resume", "x"), "repeat the same command with the --record-dir of then"),
    ],
)
def test_what_cannot_be_searched_is_refused(repository: Path, arguments: tuple[str, ...], told: str) -> None:
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "search", *arguments]
    done = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_script_that_names_no_interpreter_cannot_be_started(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "probe.py"
    script.write_text("print()\n")
    script.chmod(0o755)
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "search", "--probe-command", str(script)]
    done = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 4, done.stderr
    assert "Exec format error" in done.stderr
    assert "Try: name its interpreter first, as in --probe-command 'python3 probe.py'" in done.stderr


def test_no_shell_sees_the_command(repository: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    done = _search(repository, f"--refuse ; touch {trap}", *RANGE)
    assert done.returncode == 4
    assert not trap.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--high", "nan"),
        ("--low", "nan"),
        ("--high", "inf"),
        ("--tolerance", "nan"),
        ("--percentile", "nan"),
        ("--percentile", "99.99999999"),
        ("--duration-s", "inf"),
        ("--min-queries", "9" * 23),
        ("--high", "1e-9"),
    ],
)
def test_numbers_that_no_search_can_use_are_refused(repository: Path, arguments: tuple[str, str]) -> None:
    done = _search(repository, "--capacity 40", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert arguments[0] in done.stderr

"""`logs`: last lines, following, names."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dynamo_mlperf.cli.logs import _more, _tail

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli", "logs")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run on this machine that has ended."""
    root = tmp_path / "runs" / "r-1"
    (root / "logs").mkdir(parents=True)
    begin = {"t": 1.0, "event": "job_begin", "place": "this machine, 1 virtual node"}
    events = (begin, {"t": 2.0, "event": "job_end", "exit_code": 0})
    (root / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (root / "logs" / "decode-0.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (root / "logs" / "prefill-0.log").write_text("\x1b[32mgreen\x1b[0m \x07\nlast without end")
    (root / "verdict.json").write_text("secret")
    return root


def logs(run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*PROGRAM, *words), cwd=run_dir.parent.parent, text=True, capture_output=True, check=False, timeout=240
    )


def test_last_lines_of_one_process(run_dir: Path) -> None:
    assert logs(run_dir, "r-1", "decode-0", "-n", "2").stdout == "line 98\nline 99\n"
    assert len(logs(run_dir, "r-1", "decode-0").stdout.splitlines()) == 20


def test_all_logs_have_their_names_and_no_colour_or_bell(run_dir: Path) -> None:
    shown = logs(run_dir, "runs/r-1", "-n", "1").stdout
    assert shown == "==> decode-0 <==\nline 99\n==> prefill-0 <==\nlast without end\n"
    assert logs(run_dir, "r-1", "prefill-0").stdout == "green \N{REPLACEMENT CHARACTER}\nlast without end\n"


@pytest.mark.parametrize("name", ["../verdict.json", "../verdict", "/etc/passwd", "decode-0.log"])
def test_a_name_is_no_path(run_dir: Path, name: str) -> None:
    refused = logs(run_dir, "r-1", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "there are decode-0, prefill-0" in refused.stderr


def test_the_nearest_name_is_suggested(run_dir: Path) -> None:
    assert "Try: dynamo-mlperf logs r-1 prefill-0" in logs(run_dir, "r-1", "prefil-0").stderr


def test_json_gives_the_paths(run_dir: Path) -> None:
    found = json.loads(logs(run_dir, "r-1", "--json").stdout)
    assert found == {name: str(run_dir / "logs" / f"{name}.log") for name in ("decode-0", "prefill-0")}


def test_following_a_run_that_has_ended_shows_its_rest_and_ends(run_dir: Path) -> None:
    assert logs(run_dir, "r-1", "decode-0", "-n", "0", "-f").stdout == ""
    assert logs(run_dir, "r-1", "decode-0", "-n", "1", "-f").stdout == "line 99\n"


AT_STOP = "2026-11-30T18:52:01.686297Z ERROR dynamo_runtime::component::client: monitor_instance_source: The Sender is dropped: channel closed, endpoint=x/backend/generate\n"
STOP_T = 1796064721.586


@pytest.mark.parametrize(
    ("stop", "followed", "told"),
    [
        ({"event": "phase_begin", "phase": "stop", "t": STOP_T}, False, True),
        ({"event": "phase_begin", "phase": "stop", "t": STOP_T}, True, True),
        ({"event": "process_stopped", "process": "frontend-0", "t": STOP_T}, False, True),
        ({"event": "process_stopped", "process": "frontend-1", "t": STOP_T}, False, False),
        ({"event": "phase_begin", "phase": "stop", "t": STOP_T + 60}, False, False),
        ({"event": "phase_begin", "phase": "measure", "t": STOP_T}, False, False),
    ],
)
def test_what_every_stop_writes_is_called_harmless_and_the_same_before_it_is_not(
    run_dir: Path, stop: dict[str, object], *, followed: bool, told: bool
) -> None:
    with (run_dir / "events.jsonl").open("a") as events:
        events.write(json.dumps(stop) + "\n")
    (run_dir / "logs" / "frontend-0.log").write_text(AT_STOP * 2 + "ERROR something else\n")
    shown = logs(run_dir, "r-1", "frontend-0", *(["-f"] if followed else []))
    assert shown.stdout == AT_STOP * 2 + "ERROR something else\n", "no line is hidden"
    note = "note: frontend-0: 2 lines look like faults and are none: a frontend that stops closes its own lists of models and workers\n"
    assert shown.stderr == (note if told else "")


def test_an_empty_log_is_said_to_be_empty(run_dir: Path) -> None:
    (run_dir / "logs" / "loadgen.log").touch()
    shown = logs(run_dir, "r-1", "loadgen")
    assert (shown.stdout, shown.stderr) == ("", "the log of loadgen is empty\n")
    assert logs(run_dir, "r-1", "loadgen", "-f").stderr == "the log of loadgen is empty so far\n"
    assert logs(run_dir, "r-1", "decode-0", "-n", "0", "-f").stderr == ""
    for log in (run_dir / "logs").iterdir():
        log.unlink()
    assert logs(run_dir, "r-1").stderr == "no process has written anything\n"


def test_following_shows_what_comes_and_new_logs(run_dir: Path) -> None:
    events = run_dir / "events.jsonl"
    begun, ended = (
        events.read_text().replace("this machine, 1 virtual node", "Slurm job 5 on 1 nodes (n1)").splitlines()
    )
    events.write_text(begun + "\n")
    (run_dir.parent.parent / "slurm-5.out").touch()  # Slurm need not be asked for it before the logs are read
    asked = run_dir / "asked"  # by then the ends of the logs are known
    state = run_dir / "state"
    state.write_text("RUNNING")
    for name, body in (("sacct", "exit 1"), ("scontrol", f"touch {asked}; echo JobId=5 JobState=$(cat {state})")):
        (run_dir / name).write_text(f"#!/bin/sh\n{body}\n")
        (run_dir / name).chmod(0o755)

    def write() -> None:
        while not asked.exists():
            time.sleep(0.05)
        with (run_dir / "logs" / "decode-0.log").open("a") as log:
            log.write("half a ")
            log.flush()
            time.sleep(0.5)
            log.write("line\n")
        (run_dir / "logs" / "late.log").write_text("the newcomer")
        with events.open("a") as log:
            log.write(ended + "\n")
        time.sleep(1.5)
        with (run_dir / "logs" / "late.log").open("a") as log:
            log.write(", and more after the end\n")
        (run_dir / "state.next").write_text("COMPLETED")
        (run_dir / "state.next").rename(state)

    writer = threading.Thread(target=write, daemon=True)
    argv = ("env", f"PATH={run_dir}:/usr/bin:/bin", *PROGRAM, "r-1", "-n", "0", "-f")
    writer.start()
    done = subprocess.run(argv, cwd=run_dir.parent.parent, text=True, capture_output=True, check=True, timeout=240)
    writer.join()
    assert done.stdout == "==> decode-0 <==\nhalf a line\n==> late <==\nthe newcomer, and more after the end\n"


def test_a_tail_reads_far_enough_and_a_log_begun_anew_is_read_from_its_top(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"{number} {'x' * 1000}\n" for number in range(500)))
    text, end = _tail(log, 200)
    assert [line.split()[0] for line in text.splitlines()] == [str(number) for number in range(300, 500)]
    assert end == log.stat().st_size
    log.write_text("anew\n")
    assert _more(log, end, whole=False) == ("anew\n", 5)
    assert _tail(tmp_path / "none", 5) == ("", 0)

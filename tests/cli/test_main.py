"""The command line's frame: every verb documented, every way to end with its exit code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dynamo_mlperf.cli import VERBS
from dynamo_mlperf.errors import ExitCode

PROGRAM = (sys.executable, "-m", "dynamo_mlperf.cli")


def run(*argv: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*PROGRAM, *argv), text=True, capture_output=True, check=False, cwd=cwd)


def test_exit_codes_are_pinned() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "BUG": 1,
        "USAGE": 2,
        "SETUP": 3,
        "FAILED": 4,
        "INVALID": 5,
        "CHECK_FAILED": 6,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }


def test_help_names_every_verb_and_imports_none() -> None:
    script = "import sys; from dynamo_mlperf.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(sorted(m for m in ('pydantic', 'numpy', 'rich', 'yaml') if m in sys.modules))"
    done = subprocess.run((sys.executable, "-c", script), text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"\n  {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    command: click.Command = importlib.import_module(f"dynamo_mlperf.cli.{verb}").command
    assert command.name == verb
    assert command.help
    done = run(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: dynamo-mlperf " + verb)


def test_an_unknown_verb_is_a_usage_error() -> None:
    done = run("pln")
    assert done.returncode == ExitCode.USAGE
    assert "pln" in done.stderr
    assert done.stdout == ""


def test_a_missing_file_is_an_error_without_traceback() -> None:
    done = run("run", "no-such-file.yaml")
    assert done.returncode == ExitCode.USAGE
    assert "no-such-file.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_job_outside_slurm_says_what_to_use() -> None:
    done = subprocess.run(
        (*PROGRAM, "job", "x.yaml"), text=True, capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == ExitCode.SETUP
    assert "dynamo-mlperf run FILE" in done.stderr


def test_a_bug_ends_with_1_and_asks_for_a_report() -> None:
    script = (
        "import dynamo_mlperf.cli as c, click\n"
        "@c.root.command('x')\ndef x(): 1 / 0\n"
        "c.VERBS.clear(); c._Verbs.get_command = lambda self, ctx, name: x\n"
        "c.main(['x'])"
    )
    done = subprocess.run((sys.executable, "-c", script), text=True, capture_output=True, check=False)
    assert done.returncode == ExitCode.BUG
    assert "ZeroDivisionError" in done.stderr
    assert "this is a bug" in done.stderr


@pytest.mark.parametrize("argv", [("schema",), ("plan", "topologies/demo.yaml", "--json"), ("--help",)])
def test_a_reader_that_has_seen_enough_is_no_bug(argv: tuple[str, ...], repository: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        (*PROGRAM, *argv), stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=repository
    )
    os.close(write)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)


def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run((*PROGRAM, "schema"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitCode.SETUP
    assert done.stderr == "error: the answer could not be written: no space left where stdout goes\n"


def test_the_doctor_tries_what_a_deployment_starts(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'async_timeout'\" >&2\nexit 1\n")
    broken.chmod(0o755)
    site = tmp_path / "site.yaml"
    site.write_text(f"engine_python: {broken}\nlocal_path: {tmp_path}\n")
    done = run("doctor", "--site", str(site))
    assert done.returncode == ExitCode.SETUP
    assert "MISSING vLLM worker  does not start: ModuleNotFoundError: No module named 'async_timeout'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not ready")

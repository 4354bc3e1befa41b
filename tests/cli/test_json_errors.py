"""With `--json` every verb answers with one JSON value, when it refuses as well, and its exit code is in it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from dynamo_mlperf.cli import VERBS, main
from dynamo_mlperf.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

REFUSED: dict[str, tuple[str, ...]] = {
    "plan": ("nowhere.yaml",),
    "run": ("nowhere.yaml",),
    "submit": ("nowhere.yaml", "--dry-run"),
    "status": ("nothing",),
    "logs": ("nothing",),
    "cancel": ("nothing",),
    "job": ("nowhere.yaml",),
    "measure": ("http://127.0.0.1:1", "--model", "m"),
    "search": (),
    "rehearse": (),
    "sweep": ("nowhere.yaml", "--all"),
    "dataset": ("nowhere", "--benchmark", "deepseek-r1", "--out", "out"),
    "profile": (),
    "stage copy": ("nowhere.yaml",),
    "stage manifest": ("nowhere", "-o", "m.yaml"),
    "stage verify": ("nowhere",),
    "judge": ("nowhere",),
    "score": ("nowhere",),
    "report": ("nothing",),
    "diff": ("nothing", "nothing"),
    "package": ("nowhere", "--system", "system.yaml", "--submitter", "ACME", "--out", "tree"),
    "check": ("nowhere",),
    "doctor": ("--site", "nowhere"),
    "schema": ("site", "--round", "v6.1"),
}
"""By verb: a call of it that is refused."""


def commands() -> dict[str, click.Command]:
    """Every command that takes `--json`, by its words."""
    found: dict[str, click.Command] = {}
    for verb in VERBS:
        command: click.Command = importlib.import_module(f"dynamo_mlperf.cli.{verb}").command
        below = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{verb} {name}": one for name, one in below.items()} if below else {verb: command}
    return {name: one for name, one in found.items() if any("--json" in param.opts for param in one.params)}


def answer_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object], str]:
    """Exit code, the one JSON value on stdout, and what stderr says."""
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr()
    return int(end.value.code or 0), json.loads(said.out), said.err


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "DYNAMO_MLPERF_SITE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_every_verb_that_answers_in_json_is_looked_at() -> None:
    assert set(REFUSED) == set(commands())


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_a_json_object_with_its_exit_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, told = answer_of([*name.split(), *REFUSED[name], "--json"], capsys)
    error = answer["error"]
    assert isinstance(error, dict)
    assert set(error) == {"what", "action", "exit_code"}
    assert error["exit_code"] == code != 0
    assert code in set(ExitCode) - {ExitCode.BUG}
    assert error["what"]
    assert error["action"]
    assert error["what"].splitlines()[0] in told
    assert "Traceback" not in told


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_in_the_call_is_one_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _told = answer_of([*name.split(), "--json", "--no-such-option"], capsys)
    action = f"dynamo-mlperf {name} --help"
    what = "No such option '--no-such-option'."
    assert (code, answer) == (2, {"error": {"what": what, "action": action, "exit_code": 2}})


def test_without_json_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["submit", "nowhere.yaml", "--dry-run", "--", "--json"])  # sbatch's, if anybody's
    assert capsys.readouterr().out == ""


def test_a_bug_is_told_on_stdout_as_well() -> None:
    script = (
        "import dynamo_mlperf.cli as cli, dynamo_mlperf.cli.schema as schema\n"
        "def broken(**_): raise RuntimeError('odd')\n"
        "schema.command.callback = broken\ncli.main(['schema', '--json'])"
    )
    done = subprocess.run((sys.executable, "-c", script), text=True, capture_output=True, check=False)
    assert done.returncode == ExitCode.BUG
    assert json.loads(done.stdout)["error"]["what"] == "a bug: RuntimeError: odd"
    assert "Traceback" in done.stderr

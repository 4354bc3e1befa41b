"""The command line's frame: every verb documented, every way to end with its exit code."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from dynamo_mlperf.cli import VERBS, main
from dynamo_mlperf.cli.given import Given
from dynamo_mlperf.errors import ExitCode
from tests.fakes.slurm_programs import NO_CONFIGURATION, FakeSlurm

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
    assert "No such verb 'pln'. Did you mean 'plan'?" in done.stderr
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


@pytest.mark.parametrize(
    "argv", [("init", "there"), ("init", "there", "--assets", "there/assets"), ("plan", "no.yaml"), ("pln",)]
)
@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_a_verb_ends_its_work_quietly_without_readers(
    argv: tuple[str, ...], streams: tuple[str, ...], tmp_path: Path, repository: Path
) -> None:
    read, write = os.pipe()
    os.close(read)
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **dict.fromkeys(streams, write)}
    env = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(
        (*PROGRAM, *argv), stdout=ends["stdout"], stderr=ends["stderr"], text=True, check=False, cwd=tmp_path, env=env
    )
    os.close(write)
    assert done.returncode == (0 if argv[0] == "init" else ExitCode.USAGE)
    assert "Traceback" not in (done.stderr or "")
    assert (tmp_path / "there" / "topologies" / "demo.yaml").is_file() == (argv[0] == "init")
    assert (tmp_path / "there" / "staging").is_dir() == (argv[0] == "init"), "nothing half-copied"


def test_a_run_goes_on_when_nobody_reads_its_notes() -> None:
    script = (
        "import click, os, sys\nfrom dynamo_mlperf.cli.output import lasting_stderr\nlasting_stderr()\n"
        "[click.echo('x' * 100000, err=True) for _ in range(3)]\nos.write(2, b'x')\nprint('done')"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run((sys.executable, "-c", script), stdout=subprocess.PIPE, stderr=write, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_notes_that_have_no_room_change_no_exit_code(repository: Path) -> None:
    """A batch job's standard error is a file, and what waits for the job looks at how it ended."""
    argv = (*PROGRAM, "plan", "topologies/rehearse-search.yaml")
    script = (
        "from dynamo_mlperf.cli.output import lasting_stderr\nlasting_stderr()\nimport sys\nprint('x', file=sys.stderr)"
    )
    for words, code in (
        (argv, 0),
        ((*PROGRAM, "plan", "no.yaml"), ExitCode.USAGE),
        ((sys.executable, "-c", script), 0),
    ):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, check=False, cwd=repository)
        assert done.returncode == code, words


def texts_of(verb: str) -> list[tuple[str, click.Parameter]]:
    """Every parameter of a verb that takes a path or a text, with the words that lead to it."""
    command: click.Command = importlib.import_module(f"dynamo_mlperf.cli.{verb}").command
    found, todo = [], [(verb, command)]
    while todo:
        words, one = todo.pop()
        todo += [(f"{words} {name}", sub) for name, sub in getattr(one, "commands", {}).items()]
        kinds = (click.Path, type(click.STRING), Given)
        found += [(words, param) for param in one.params if isinstance(param.type, kinds)]
    return found


@pytest.mark.parametrize("empty", ["", "  "])
@pytest.mark.parametrize("verb", VERBS)
def test_no_path_or_text_may_be_empty(verb: str, empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume "$RUN"` without a RUN is not the current directory; nor is any other option of any verb."""
    for words, param in texts_of(verb):
        option = next((name for name in param.opts if name.startswith("--")), None)
        with pytest.raises(SystemExit) as ended:
            main([*words.split(), *((f"{option}={empty}",) if option else (empty,))])
        assert ended.value.code == ExitCode.USAGE
        said = capsys.readouterr().err
        assert "it is empty; give one" in said or (option is None and "Missing" in said), (words, param.opts, said)


def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run((*PROGRAM, "schema"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitCode.SETUP
    assert done.stderr == "error: the answer could not be written: no space left where stdout goes\n"


def test_a_place_that_this_user_may_not_see_is_no_bug(tmp_path: Path, repository: Path) -> None:
    """As root does with its privileges dropped: what a folder of somebody else's holds is not to be seen."""
    topology = tmp_path / "demo.yaml"
    text = (repository / "topologies" / "demo.yaml").read_text()
    topology.write_text(text.replace("staging/tiny-qwen3-vl-moe.yaml", f"{tmp_path}/closed/weights.yaml"))
    (tmp_path / "closed").mkdir(mode=0)
    as_user = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    argv = (*as_user, *PROGRAM, "plan", str(topology), "--json")
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert done.stderr == (
        f"error: Permission denied: {tmp_path}/closed/weights.yaml\n"
        "  Try: another path, or chmod and chown it so that this user may use it\n"
    )
    assert (done.returncode, json.loads(done.stdout)["error"]["exit_code"]) == (ExitCode.USAGE, 2)


def test_a_full_disk_is_no_bug_and_destroys_nothing(mount_small: Callable[[str], Path], repository: Path) -> None:
    small = mount_small("16k")
    text = (repository / "topologies" / "demo.yaml").read_text().replace("--nodes=2", "--nodes=3")
    (small / "demo.yaml").write_text(text)
    with contextlib.suppress(OSError), (small / "fill").open("wb", buffering=0) as out:
        while True:
            out.write(b"x" * 4096)
    done = run("plan", str(small / "demo.yaml"), "--fix-batch", cwd=str(repository))
    assert done.stderr.splitlines()[-2:] == [
        f"error: No space left on device: {small}/demo.yaml",
        "  Try: make room there, or name another place",
    ]
    assert (done.returncode, (small / "demo.yaml").read_text()) == (ExitCode.SETUP, text)


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


@pytest.mark.dynamo
@pytest.mark.loadgen
@pytest.mark.vllm
def test_the_doctor_does_not_call_a_cluster_ready_that_it_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.directory.mkdir()
    slurm.script("scontrol", NO_CONFIGURATION)
    monkeypatch.setenv("PATH", slurm.path)
    (tmp_path / "raid").write_text("")
    site = tmp_path / "site.yaml"
    site.write_text(
        f"local_path: {tmp_path}/raid/dmp\ninterface: ib9\ncontainer: {{runtime: apptainer, image: /images/x.sif}}\n"
    )
    done = run("doctor", "--site", str(site))
    assert f"absent  local_path   {tmp_path}/raid/dmp: {tmp_path}/raid is no directory  -> correct the" in done.stdout
    assert "absent  interface    no address on ib9  -> correct the site file" in done.stdout
    assert done.stdout.splitlines()[-1] == "this machine is ready; the cluster was not looked at"
    assert (done.returncode, "Slurm does not answer here" in done.stderr) == (0, True)
    site.write_text(site.read_text().replace("raid/dmp", "disk/dmp").replace("ib9", "lo"))
    assert run("doctor", "--site", str(site)).stdout.splitlines()[-1] == "ready", "a site of this machine alone"
    site.write_text(site.read_text().replace("interface: lo\n", ""))
    done = run("doctor", "--site", str(site))
    assert f"ok      local_path   {tmp_path}/disk/dmp can be made\n" in done.stdout
    assert "interface" not in done.stdout

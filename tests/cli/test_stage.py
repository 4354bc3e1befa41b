"""`stage`: exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from dynamo_mlperf.cli import main
from dynamo_mlperf.staging.manifest import load_manifest


def _run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base directory with a source of two files and its manifest."""
    source = tmp_path / "models" / "m"
    source.mkdir(parents=True)
    (source / "a.bin").write_bytes(b"a" * 3000)
    (source / "b.bin").write_bytes(b"b" * 1000)
    assert _run("stage", "manifest", source, "--base", tmp_path, "-o", tmp_path / "m.yaml") == 0
    return tmp_path


def test_manifest_to_a_file(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "manifest", base / "models" / "m", "--base", base, "-o", base / "m.yaml") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"{base / 'm.yaml'}: 2 files, 4000 bytes\n"
    manifest = load_manifest(base / "m.yaml")
    assert (manifest.source, manifest.name, manifest.kind) == ("models/m", "m", "model")


def test_manifest_to_stdout(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    arguments = ("--base", base, "--name", "other", "--kind", "dataset")
    assert _run("stage", "manifest", base / "models" / "m", *arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(
        "schema: 1\nname: other\nkind: dataset\nsource: models/m\ndestination: other\nfiles:\n- path: a.bin\n"
    )


def test_manifest_of_a_source_elsewhere_names_it_absolutely(
    base: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    capsys.readouterr()
    assert _run("stage", "manifest", base / "models" / "m", "--base", tmp_path_factory.mktemp("base")) == 0
    assert f"source: {base / 'models' / 'm'}\n" in capsys.readouterr().out


def test_copy_answers_on_stdout(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk") == 0
    out, err = capsys.readouterr()
    path = Path(out.strip())
    assert path.parent == base / "disk"
    assert sorted(file.name for file in path.iterdir()) == [".staged.json", "a.bin", "b.bin"]
    assert err.splitlines()[-2] == "m: 0.0 of 0.0 MiB"
    assert err.splitlines()[-1].startswith("m: 0.0 MiB copied, ")


def test_copy_as_json_twice(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for _ in range(2):
        capsys.readouterr()
        assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk", "--json") == 0
        answers.append(json.loads(capsys.readouterr().out))
    seconds = [answer.pop("seconds") for answer in answers]
    assert all(isinstance(each, float) and each >= 0 for each in seconds)
    path = answers[0]["path"]
    assert answers == [
        {"path": path, "bytes_copied": 4000, "bytes_reused": 0, "reused": False},
        {"path": path, "bytes_copied": 0, "bytes_reused": 4000, "reused": True},
    ]


def test_copy_goes_where_the_site_says(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "here.yaml").write_text(f"name: here\nlocal_path: {base / 'nvme'}\n")
    monkeypatch.setenv("DYNAMO_MLPERF_SITE", str(base / "here.yaml"))
    capsys.readouterr()
    assert _run("stage", "copy", base / "m.yaml", "--base", base) == 0
    assert Path(capsys.readouterr().out.strip()).parent == base / "nvme"


def test_a_changed_source_is_a_set_up_error(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "models" / "m" / "a.bin").write_bytes(b"a")
    capsys.readouterr()
    assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk", "--json") == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"error: {base / 'models/m/a.bin'} is 1 bytes; the manifest of m says 3000\n"
        "  Try: write the manifest anew if the change is meant: dynamo-mlperf stage manifest\n"
    )


def test_a_bad_manifest_is_a_usage_error(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "m.yaml").write_text("schema: 9\n")
    capsys.readouterr()
    assert _run("stage", "copy", base / "m.yaml", "--to", base / "disk") == 2
    assert f"error: {base / 'm.yaml'}: schema: Input should be 1 (and 5 more)\n" in capsys.readouterr().err


def test_verify_names_what_is_missing(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert _run("stage", "verify", base / "models" / "m") == 3
    assert capsys.readouterr().err.startswith(f"error: {base / 'models/m/config.json'} is missing\n")


def test_verify_warns_and_passes(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = base / "models" / "m"
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    empty = b"\x02\0\0\0\0\0\0\0{}"
    (model / "model.safetensors").write_bytes(empty)
    (model / "extra.safetensors").write_bytes(empty)
    capsys.readouterr()
    assert _run("stage", "verify", model) == 0
    out, err = capsys.readouterr()
    assert out == f"{model}: complete\n"
    assert err.startswith(f"warning: {model / 'extra.safetensors'} is a shard")


def test_a_bar_on_a_terminal(base: Path, repository: Path) -> None:
    controller, terminal = pty.openpty()
    program = [sys.executable, "-c", "from dynamo_mlperf.cli import main; main()", "stage", "copy"]
    ended = subprocess.run(
        [*program, base / "m.yaml", "--base", base, "--to", base / "disk"],
        cwd=repository,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        check=True,
    )
    shown = os.read(controller, 100_000).decode()
    os.close(controller)
    os.close(terminal)
    assert Path(ended.stdout.decode().strip()).is_dir()
    assert "━" in shown
    assert "4.0/4.0 kB" in shown


def test_the_help_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "--help") == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == ["copy", "manifest", "verify"]
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)

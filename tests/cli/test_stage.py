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


@pytest.mark.parametrize("wait", ["nan", "-5", "inf", "soon"])
def test_a_wait_that_is_no_time_is_refused(base: Path, wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "node", "--wait", wait) == 2
    assert "--wait" in capsys.readouterr().err
    assert not (base / "node").exists()
    assert _run("cancel", "nothing", "--timeout", wait) == 2
    assert "--timeout" in capsys.readouterr().err


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
        {
            "path": path,
            "bytes_copied": 4000,
            "bytes_reused": 0,
            "bytes_from_store": 4000,
            "bytes_from_peers": 0,
            "reused": False,
            "notices": [],
        },
        {
            "path": path,
            "bytes_copied": 0,
            "bytes_reused": 4000,
            "bytes_from_store": 0,
            "bytes_from_peers": 0,
            "reused": True,
            "notices": [],
        },
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
    assert json.loads(out)["error"]["exit_code"] == 3
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
    with subprocess.Popen(
        [*program, base / "m.yaml", "--base", base, "--to", base / "disk"],
        cwd=repository,
        env={**os.environ, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as running:
        os.close(terminal)
        shown = _all_that_comes(controller).decode()
        out, _ = running.communicate()
    assert running.returncode == 0
    assert Path(out.decode().strip()).is_dir()
    assert "━" in shown
    assert "4.0/4.0 kB" in shown


def _all_that_comes(controller: int) -> bytes:
    """What is written to the other end until nobody holds that any more; a terminal keeps no more than some kB."""
    shown = b""
    with open(controller, "rb", buffering=0) as screen:
        while True:
            try:
                shown += screen.read(4096)
            except OSError:  # pty(7): the end of a terminal is an input/output error
                return shown


def test_the_help_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "--help") == 0
    lines = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == ["copy", "manifest", "verify"]
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


def test_a_single_file_is_an_image_of_its_own(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = base / "models" / "m" / "a.bin"
    arguments = ("--base", base, "--kind", "image", "-o", base / "image.yaml")
    assert _run("stage", "manifest", image, *arguments, "--json") == 0
    manifest = load_manifest(base / "image.yaml")
    assert (manifest.kind, manifest.source, [file.path for file in manifest.files]) == ("image", "models/m", ["a.bin"])
    capsys.readouterr()
    assert _run("stage", "copy", base / "image.yaml", "--base", base, "--to", base / "disk") == 0
    staged = Path(capsys.readouterr().out.strip())
    assert staged.name.startswith("a.bin-")
    assert (staged / "a.bin").read_bytes() == image.read_bytes()
    assert not (staged / "b.bin").exists()


def test_manifest_as_json_needs_a_file(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "manifest", base / "models" / "m", "--json") == 2
    capsys.readouterr()
    assert _run("stage", "manifest", base / "models" / "m", "--json", "-o", base / "m.yaml") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["digest"] == load_manifest(base / "m.yaml").digest
    assert (answer["name"], answer["kind"], answer["files"], answer["bytes"]) == ("m", "model", 2, 4000)


def test_a_dry_run_copies_nothing(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk", "--dry-run")
    capsys.readouterr()
    assert _run(*arguments, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["needed_bytes"], answer["evictable"]) == (4000, {})
    assert answer["free_bytes"] > 4000
    assert _run(*arguments) == 0
    assert capsys.readouterr().out.startswith("4.0 kB needed, ")
    assert not (base / "disk").exists()


def test_a_dry_run_that_does_not_fit_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (base / "m.yaml").read_text().replace("bytes: 3000", f"bytes: {1 << 60}")
    (base / "m.yaml").write_text(text)
    capsys.readouterr()
    assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk", "--dry-run") == 3
    assert f"m needs {(1 << 60) + 1000} bytes on {base / 'disk'}; " in capsys.readouterr().err


def test_verify_full_reads_every_byte(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "copy", base / "m.yaml", "--base", base, "--to", base / "disk") == 0
    [staged] = (base / "disk").glob("m-*")
    capsys.readouterr()
    assert _run("stage", "verify", staged, "--full") == 0
    assert capsys.readouterr().out == f"{staged}: complete, 4000 bytes read\n"
    (staged / "b.bin").write_bytes(b"c" * 1000)
    assert _run("stage", "verify", staged, "--manifest", base / "m.yaml") == 3
    assert f"error: {staged}: 1 of 2 files are not as staged: b.bin: digest " in capsys.readouterr().err


def test_the_words_between_nodes_are_not_shown_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", "copy", "--help") == 0
    shown = capsys.readouterr().out
    assert "--evict" in shown
    assert "--peers" not in shown


def test_a_wrong_list_of_peers_is_a_usage_error(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "peers.json").write_text("{}")
    assert _run("stage", "copy", base / "m.yaml", "--to", base / "disk", "--peers", base / "peers.json") == 2
    assert "no list of peers" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["pipe", "none/m.yaml", "models"])
def test_a_manifest_takes_the_place_of_no_device_and_no_directory(
    base: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(base / "pipe")
    assert _run("stage", "manifest", base / "models" / "m", "-o", base / where) == 2
    assert "-o" in capsys.readouterr().err
    assert (base / "pipe").is_fifo()


def test_a_name_that_is_no_utf8_is_refused_when_the_manifest_is_made(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(os.fsdecode(os.fsencode(base / "models" / "m" / "bad") + b"\x80")).write_text("x")
    assert _run("stage", "manifest", base / "models" / "m", "-o", base / "bad.yaml") == 2
    assert "has to be UTF-8" in capsys.readouterr().err
    assert not (base / "bad.yaml").exists()


@pytest.mark.parametrize("verb", ["manifest", "verify"])
def test_a_path_that_is_too_long_is_a_usage_error(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("stage", verb, "x" * 300) == 2
    assert "too long" in capsys.readouterr().err

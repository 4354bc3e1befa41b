"""`init`: examples copied without harm to what is there; the tiny assets made once."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dynamo_mlperf.cli import init, main
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.manifest import load_manifest


def _run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", *(str(argument) for argument in arguments)])
    return int(ended.value.code or 0)


def _examples(repository: Path) -> list[str]:
    folders = ("topologies", "slurm/sites", "slurm/systems", "staging")
    found = [path for each in folders for path in sorted((repository / each).glob("*.yaml"))]
    found += sorted((repository / "slurm" / "systems").glob("*.md"))
    found += sorted((repository / "benchmarks").rglob("README.md"))
    return [path.relative_to(repository).as_posix() for path in found]


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("init") / "deep" / "assets"
    assert _run("--assets", directory) == 0
    return directory


def test_list_names_every_example_and_writes_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run("--list") == 0
    assert capsys.readouterr().out.splitlines() == _examples(repository)
    assert list(tmp_path.iterdir()) == []


def test_copies_are_exact_and_keep_their_mode(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path / "mine") == 0
    names = _examples(repository)
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "mine" / name) for name in names]
    for name in names:
        copy, original = tmp_path / "mine" / name, repository / name
        assert copy.read_bytes() == original.read_bytes()
        assert copy.stat().st_mode == original.stat().st_mode
    assert len([path for path in (tmp_path / "mine").rglob("*") if path.is_file()]) == len(names)


def test_here_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _run() == 0
    assert (tmp_path / "topologies" / "demo.yaml").is_file()
    assert "\nNext:\n  dynamo-mlperf init --assets assets\n" in capsys.readouterr().err


def test_a_second_time_changes_nothing(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(tmp_path) == 0
    capsys.readouterr()
    assert _run(tmp_path) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"0 examples copied, {len(_examples(repository))} were there already\n"
        "Next:\n"
        f"  cd {tmp_path}\n"
        "  dynamo-mlperf init --assets assets\n"
        "  dynamo-mlperf run topologies/demo.yaml\n"
    )


def test_your_own_file_stays(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "topologies" / "demo.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert _run(tmp_path) == 2
    assert capsys.readouterr().err == (
        f"error: 1 files in {tmp_path} differ from the examples: topologies/demo.yaml\n"
        "  Try: name an empty directory, or overwrite them with --force\n"
    )
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert _run(tmp_path, "--force") == 0
    assert mine.read_bytes() == (repository / "topologies" / "demo.yaml").read_bytes()


def test_assets_alone_copy_no_examples(assets: Path) -> None:
    names = ["tiny-product-catalogue", "tiny-prompts", "tiny-qwen3-vl-moe"]
    assert sorted(path.name for path in assets.iterdir()) == names
    assert list(assets.parent.iterdir()) == [assets]
    assert len(list((assets / "tiny-product-catalogue" / "images").iterdir())) == 64


def test_assets_match_the_shipped_manifest(assets: Path, repository: Path, tmp_path: Path) -> None:
    manifest = load_manifest(repository / "staging" / "tiny-qwen3-vl-moe.yaml")
    assert stage(manifest, assets.parent / manifest.source, tmp_path).bytes_copied == manifest.total_bytes


def test_assets_are_made_once(assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = assets / "tiny-qwen3-vl-moe" / "config.json"
    before = config.stat()
    assert _run("--assets", assets) == 0
    assert config.stat() == before
    out, err = capsys.readouterr()
    names = ["tiny-qwen3-vl-moe", "tiny-product-catalogue", "tiny-prompts"]
    assert out.splitlines() == [str(assets / name) for name in names]
    assert err.splitlines() == [f"{name}: there already" for name in names]


@pytest.fixture
def quick_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of one file: what is tested here is the directory around it."""

    def write(directory: Path) -> None:
        directory.mkdir()
        (directory / "config.json").write_text("tiny")

    monkeypatch.setattr("dynamo_mlperf.benchmark.tiny_model.write_tiny_model", write)


@pytest.mark.usefixtures("quick_assets")
def test_assets_of_an_older_generator_are_made_anew(tmp_path: Path) -> None:
    model = tmp_path / init.TINY_MODEL
    model.mkdir()
    (model / init.MADE_BY).write_text("older")
    (model / "old.bin").write_text("old")
    assert _run("--assets", tmp_path) == 0
    assert sorted(path.name for path in model.iterdir()) == [init.MADE_BY, "config.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        init.TINY_CATALOGUE,
        init.TINY_PROMPTS,
        init.TINY_MODEL,
    ]


@pytest.mark.usefixtures("quick_assets")
def test_a_directory_of_your_own_is_not_taken_for_an_asset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / init.TINY_MODEL
    model.mkdir()
    (model / "mine.bin").write_text("mine")
    assert _run("--assets", tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"error: {model} holds files that dynamo-mlperf did not make\n")
    assert [path.name for path in model.iterdir()] == ["mine.bin"]
    assert _run("--assets", tmp_path, "--force") == 0
    assert not (model / "mine.bin").exists()


def test_a_marker_that_is_no_text_is_that_of_another_generator(tmp_path: Path) -> None:
    assert _run("--assets", tmp_path) == 0
    marker = tmp_path / init.TINY_PROMPTS / init.MADE_BY
    made = marker.read_bytes()
    marker.write_bytes(b"\xff\xfe")
    assert _run("--assets", tmp_path) == 0
    assert marker.read_bytes() == made


def test_a_failed_writer_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(directory: Path) -> None:
        directory.mkdir()
        (directory / "half").write_text("")
        raise OSError(28, "No space left on device", str(directory))

    monkeypatch.setattr("dynamo_mlperf.benchmark.tiny_model.write_tiny_model", fail)
    assert _run("--assets", tmp_path / "assets") == 3
    assert (
        "No space left on device\n  Try: name another directory that you can write, with room\n"
        in capsys.readouterr().err
    )
    assert list((tmp_path / "assets").iterdir()) == []


def test_examples_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = tmp_path / "dynamo_mlperf" / "shipped" / "slurm" / "sites"
    sites.mkdir(parents=True)
    (sites / "x.yaml").write_text("name: x\n")
    monkeypatch.setattr(init, "_PACKAGE", tmp_path / "dynamo_mlperf")
    assert _run(tmp_path / "mine") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'mine/slurm/sites/x.yaml'}\n"
    assert (tmp_path / "mine" / "slurm" / "sites" / "x.yaml").read_text() == "name: x\n"


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True)
    (built,) = into.glob("*.whl")
    return built


def test_a_wheel_carries_every_example_and_batch_files_stay_executable(wheel: Path, repository: Path) -> None:
    prefix = "dynamo_mlperf/shipped/"
    with zipfile.ZipFile(wheel) as archive:
        modes = {each.filename.removeprefix(prefix): each.external_attr >> 16 for each in archive.infolist()}
    examples = _examples(repository)
    assert set(examples) <= set(modes)
    executable = {name for name in examples if modes[name] & 0o111}
    assert executable == {name for name in examples if os.access(repository / name, os.X_OK)}
    assert "topologies/demo.yaml" in executable


def test_a_wheel_works_without_a_checkout(wheel: Path, repository: Path, tmp_path: Path) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    marked = site / "dynamo_mlperf" / "shipped" / "topologies" / "demo.yaml"
    marked.write_text(marked.read_text() + "# from the wheel\n")  # proves that no file comes from the checkout

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "dynamo_mlperf.cli", *arguments],
            cwd=here,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(here)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    assert run("init", "--list").splitlines() == _examples(repository)
    assert run("init", "mine").splitlines() == [f"mine/{name}" for name in _examples(repository)]
    assert (here / "mine" / "topologies" / "demo.yaml").read_text().endswith("# from the wheel\n")
    assert "by workers  1P1D" in run("plan", "mine/topologies/demo.yaml", "--site", "laptop")

"""What cannot run is refused before anything is started, with the item that is in the way and the right exit code."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.catalogue import load_catalogue
from tests.job.chain import Ended, Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

ENGINES = {"etcd", "prefill-0", "decode-0", "frontend-0", "loadgen"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("refusals"))


def refused(place: Place, topology: Path, *flags: str) -> Ended:
    """A run that is refused before it has a directory: exit 2, nothing on stdout, no traceback."""
    before = set(place.root.glob("runs/*"))
    with place.run(topology, *flags) as run:
        ended = run.end()
    assert (ended.status, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("error: "), ended.stderr
    assert "\n  Try: " in ended.stderr
    assert set(place.root.glob("runs/*")) == before
    return ended


def failed_at_set_up(run: Run) -> Ended:
    """A run that ends with 3 and a FAILED verdict before any service was started."""
    ended = run.end()
    verdict = run.verdict()
    assert (ended.status, verdict["verdict"]) == (3, "FAILED"), ended.stderr
    assert verdict["completed_qps"] is None
    assert "Traceback" not in ended.stderr
    assert run.commands().keys() & ENGINES == set()
    run.assert_nothing_left()
    return ended


def test_an_unknown_key_names_the_nearest_one(place: Place) -> None:
    ended = refused(place, place.topology({"measure": {"target_qp": 4}}))
    assert "target_qp" in ended.stderr
    assert "target_qps" in ended.stderr


def test_seventeen_gpus_on_sixteen_gives_both_numbers(place: Place) -> None:
    roles = {"prefill": {"workers": 8}, "decode": {"workers": 9}}
    ended = refused(place, place.topology({"nodes": {"count": 4, "gpus": 4}, "roles": roles}))
    assert "17" in ended.stderr
    assert "16" in ended.stderr


def test_a_missing_data_set_is_named(place: Place) -> None:
    ended = refused(place, place.topology({"measure": {"dataset": "assets/no-such-catalogue"}}))
    assert "assets/no-such-catalogue" in ended.stderr


def test_a_data_set_smaller_than_the_rules_ask_for_gives_both_numbers(place: Place) -> None:
    ended = refused(place, place.topology({"reduced": None}))
    assert "8000" in ended.stderr
    samples = len(load_catalogue(place.root / "assets" / "tiny-product-catalogue"))
    assert str(samples) in ended.stderr


def test_an_existing_run_directory_is_not_touched(place: Place, tmp_path: Path) -> None:
    (tmp_path / "verdict.json").write_text("precious")
    ended = refused(place, place.topology(), "--run-dir", str(tmp_path))
    assert str(tmp_path) in ended.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("verdict.json", "precious")]


def test_lines_that_nobody_completed_are_told_before_anything_starts(place: Place, tmp_path: Path) -> None:
    """Of both files, as `submit` tells them."""
    topology, site = place.topology(), place.root / "unfinished.yaml"
    topology.write_text(topology.read_text() + "# FILL IN: a rate\n")
    site.write_text(f"local_path: {place.local}\n# interface: ib0   # FILL IN: ip address\n")
    with place.run(topology, "--site", str(site), run_dir=tmp_path) as run:  # that is there, so that nothing starts
        told, action = run.end().stderr.partition("error: ")[0].splitlines(), "complete what is meant, then take"
    assert [line.partition(action)[0] for line in told] == [
        f"warning: FILL IN still stands in line {len(topology.read_text().splitlines())}: ",
        f"warning: {site}: FILL IN still stands in line 2: ",
    ]


def test_a_missing_weights_manifest_is_named(place: Place) -> None:
    ended = refused(place, place.topology({"model": {"weights": {"stage": "staging/no-such.yaml"}}}))
    assert "staging/no-such.yaml" in ended.stderr


def test_a_run_directory_that_cannot_be_made_is_a_set_up_error(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with place.run(place.topology(), run_dir=tmp_path / "file" / "run") as run:
        ended = run.end()
    assert ended.status == 3
    assert str(tmp_path / "file") in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_checkpoint_without_a_shard_is_refused_by_its_name(place: Place) -> None:
    whole = place.root / "assets" / "tiny-qwen3-vl-moe"
    cut = place.root / "cut-model"
    shutil.copytree(whole, cut)
    shard = sorted(cut.glob("*.safetensors"))[1]
    shard.unlink()
    with place.run(place.topology({"model": {"weights": {"stage": None, "path": "cut-model"}}})) as run:
        ended = failed_at_set_up(run)
    assert shard.name in ended.stderr


def test_a_port_range_that_is_taken_names_port_and_holder(place: Place) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        low = min(port, 65535 - 24)
        site = place.site(port_range=[low, low + 24], local_path=str(place.local))
        with place.run(place.topology(), "--site", str(site)) as run:
            failed_at_set_up(run)
            reason = run.verdict()["reasons"][0]["text"]
    assert f"{port} (node 0, pid {os.getpid()})" in reason


def test_a_missing_engine_python_is_named(place: Place) -> None:
    missing = str(place.root / "no-such-python")
    with place.run(place.topology(), "--site", str(place.site(engine_python=missing))) as run:
        failed_at_set_up(run)
        assert missing in run.verdict()["reasons"][0]["text"]
        assert "engine_python" in run.verdict()["reasons"][0]["text"]


@pytest.fixture
def small_disk(mount_small: Callable[[str], Path]) -> Path:
    """A file system of 2 MiB of its own."""
    return mount_small("2m")


def fill(where: Path) -> None:
    """Leave no byte free below `where`."""
    with (where / "filler").open("ab", buffering=0) as out:
        for size in (65536, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


def test_a_disk_that_is_full_from_the_start(place: Place, small_disk: Path) -> None:
    fill(small_disk)
    with place.run(place.topology(), run_dir=small_disk / "run") as run:
        ended = run.end()
    assert ended.status == 3, ended.stderr
    assert "No space left on device" in ended.stderr
    assert str(small_disk) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_disk_that_fills_up_while_measuring(place: Place, small_disk: Path) -> None:
    with place.run(place.topology({"reduced": {"min_duration_s": 20}}), run_dir=small_disk / "run") as run:
        run.wait_until_measuring()
        fill(small_disk)
        ended = run.end()
        assert ended.status == 3, ended.stderr
        assert "No space left on device" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert not run.paths.verdict.exists() or run.verdict()["verdict"] == "FAILED"
        run.assert_nothing_left()

"""Held engines where files are not as they were: directories that vanish, records that were edited, disks that fill."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynamo_mlperf.job.held import ANSWER, HELD_DIR, spooled
from tests.faults.test_run_refusals import fill
from tests.job.chain import END_S, Place, Run, client_was_late, listening, marked_processes, wait_until

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

LONG = {"reduced": {"min_duration_s": 300}}
SOME_SECONDS = {"reduced": {"min_duration_s": 15}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("held-damage"))


@pytest.fixture(scope="module")
def holder(place: Place) -> Iterator[Run]:
    with place.holding() as run:
        yield run


def assert_still_measures(place: Place, holder: Run) -> None:
    with place.run(place.topology(), "--attach", str(holder.paths.root)) as run:
        ended = run.end()
        verdict = run.verdict()
        assert client_was_late(verdict) or (ended.status, verdict["reasons"]) == (0, []), ended.stderr


def assert_let_go(holder: Run, run_id: str, ports: range) -> None:
    """The hold has ended by itself, since its directory is gone, and has left nothing."""
    ended = holder.end()
    assert ended.status in {0, 5}, ended.stderr  # by its own measurement, for which a busy client may be late
    assert f"engines are let go: {holder.paths.root / HELD_DIR} is gone, and nobody can ask any more" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not marked_processes(run_id)
    assert not set(listening()) & set(ports)
    assert not holder.paths.root.exists()


@contextmanager
def measuring_for_a_lost_holder(place: Place, file: Mapping[str, object]) -> Iterator[tuple[Run, str, range, Run]]:
    """A holder, its run id and ports, and a run that it measures, once the holder's directory is gone."""
    with place.holding() as holder:
        run_id, ports = holder.run_id, holder.ports()
        with place.run(place.topology(file), "--attach", str(holder.paths.root)) as run:
            run.wait_until_measuring()
            shutil.rmtree(holder.paths.root)
            yield holder, run_id, ports, run


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def no_lines(path: Path) -> None:
    path.write_text("")


def another_version(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "python": "2.7.18"}))


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("plan.json", truncated, "is damaged: JSONDecodeError("),
        ("versions.json", as_directory, "is damaged: IsADirectoryError("),
        ("commands.jsonl", circle, "does not say any more how decode-0, prefill-0 was started"),
        ("commands.jsonl", no_lines, "does not say any more how decode-0, prefill-0 was started"),
        (
            "versions.json",
            another_version,
            "versions have changed since the engines were started: python 2.7.18 there, ",
        ),
    ],
)
def test_records_that_are_not_the_holders_any_more_are_taken_over_by_nobody(
    place: Place, holder: Run, name: str, damage: Callable[[Path], None], told: str
) -> None:
    path, kept = holder.paths.root / name, place.root / f"kept-{name}"
    shutil.copyfile(path, kept)
    try:
        damage(path)
        done = place.command("run", str(place.topology()), "--attach", str(holder.paths.root))
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        shutil.copyfile(kept, path)
    assert done.returncode == 3, done.stderr
    assert told in done.stderr
    assert "Try: start engines anew" in done.stderr
    assert "Traceback" not in done.stderr
    assert holder.process.poll() is None, holder.stderr()


def test_a_run_directory_that_vanishes_costs_its_measurement_alone(place: Place, holder: Run) -> None:
    with place.run(place.topology(LONG), "--attach", str(holder.paths.root)) as run:
        run.wait_until_measuring()
        shutil.rmtree(run.paths.root)
        ended = run.end()
    assert ended.status == 3, ended.stderr
    assert f"{run.paths.root}/" in ended.stderr
    assert "No such file or directory" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert_still_measures(place, holder)


def test_a_disk_that_fills_up_is_named_to_who_measures_there(
    place: Place, holder: Run, mount_small: Callable[[str], Path]
) -> None:
    disk = mount_small("2m")
    with place.run(place.topology(LONG), "--attach", str(holder.paths.root), run_dir=disk / "run") as run:
        run.wait_until_measuring()
        fill(disk)
        ended = run.end()
        assert ended.status == 3, ended.stderr
        assert f"error: {run.paths.verdict}: No space left on device" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert not run.paths.verdict.exists()
    assert_still_measures(place, holder)


def test_an_answer_that_a_full_disk_keeps_back_comes_once_there_is_room(
    place: Place, mount_small: Callable[[str], Path]
) -> None:
    disk = mount_small("2m")
    with place.holding(run_dir=disk / "holder") as holder:
        with place.run(place.topology(), "--attach", str(disk / "holder")) as run:
            run.wait_until_measuring()
            fill(disk)
            run.wait_for("job_end")
            assert not list((disk / "holder" / HELD_DIR).glob(f"*/{ANSWER}"))
            assert run.process.poll() is None
            (disk / "filler").unlink()
            ended = run.end()
            assert ended.status == run.events()[-1]["exit_code"], ended.stderr
            assert "Traceback" not in ended.stderr + holder.stderr()
        assert_still_measures(place, holder)


def test_a_hold_whose_directory_vanishes_ends(place: Place) -> None:
    with place.holding() as holder:
        run_id, ports = holder.run_id, holder.ports()
        shutil.rmtree(holder.paths.root)
        assert_let_go(holder, run_id, ports)


def test_a_measurement_whose_holder_loses_its_directory_comes_to_its_verdict(place: Place) -> None:
    with measuring_for_a_lost_holder(place, SOME_SECONDS) as (holder, run_id, ports, run):
        ended, verdict = run.end(), run.verdict()
        assert client_was_late(verdict) or (ended.status, verdict["reasons"]) == (0, []), ended.stderr
        assert f"{holder.paths.root} is gone: what run {holder.paths.root.name} measures goes on to its" in ended.stderr
        assert f"`kill {holder.process.pid}` ends it with the engines" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert holder.stderr().count("who asked for it sees no progress any more: No such file") == 1
        assert_let_go(holder, run_id, ports)
        run.assert_nothing_left()


def test_a_request_that_vanishes_with_the_holders_directory_is_no_run(place: Place) -> None:
    with place.holding() as holder:
        run_id, ports = holder.run_id, holder.ports()
        holder.send(signal.SIGSTOP)  # so that it does not begin
        with place.run(place.topology(), "--attach", str(holder.paths.root)) as run:
            wait_until(lambda: bool(spooled(holder.paths.root / HELD_DIR)), END_S)
            shutil.rmtree(holder.paths.root)
            holder.send(signal.SIGCONT)
            ended = run.end()
        assert (ended.status, ended.stdout) == (3, ""), ended.stderr
        assert f"error: run {holder.paths.root.name}, which held the engines, is gone, and so is its" in ended.stderr
        assert "and no measurement began\n  Try: start engines anew: `dynamo-mlperf run FILE --hold`\n" in ended.stderr
        assert not run.paths.root.exists()
        assert_let_go(holder, run_id, ports)


def test_what_no_file_can_stop_any_more_ends_as_it_is_told(place: Place) -> None:
    with measuring_for_a_lost_holder(place, LONG) as (holder, run_id, ports, run):
        wait_until(lambda: f"`kill {holder.process.pid}` ends it" in run.stderr(), END_S)
        run.send(signal.SIGINT)
        wait_until(lambda: "cannot be asked to end the measurement: No such file" in run.stderr(), END_S)
        holder.send(signal.SIGTERM)
        ended, verdict = run.end(), run.verdict()
        assert (verdict["verdict"], ended.status) == ("FAILED", 4), ended.stderr
        assert "which holds the engines, was stopped by SIGTERM" in verdict["reasons"][0]["got"]
        holder.end()
        assert "Traceback" not in ended.stderr + holder.stderr()
        assert not marked_processes(run_id)
        assert not set(listening()) & set(ports)
        run.assert_nothing_left()

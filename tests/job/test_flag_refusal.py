"""A flag that the engine does not know: the run says so at once, and the next one before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.chain import Ended, Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]


def assert_refused(ended: Ended) -> None:
    """By the unknown flag, with the one that was meant."""
    assert ended.status == 2, ended.stderr
    assert "speedup-rato" in ended.stderr
    assert "write speedup-ratio" in ended.stderr


def refused(run: Run) -> None:
    """Ended by the unknown flag, and nothing left."""
    assert_refused(run.end())
    run.assert_nothing_left()


def engines(place: Place, before: str) -> str:
    """A site whose engines begin with some lines of shell; the `question` for flags is told by its own words."""
    script = f'case "$*" in *format_help*) what=question;; *--disaggregation-mode*) what=worker;; esac\n{before}'
    program = place.program("python", f'{script}\nexec $PYTHON "$@"')
    return str(place.site(engine_python=str(program), local_path=str(place.local)))


def test_a_worker_that_dies_of_an_unknown_flag_ends_the_run_by_name(tmp_path: Path) -> None:
    place = Place(tmp_path)
    site = engines(place, '[ "$what" != question ] || exit 1')  # an engine that lists no flags
    with place.run(place.topology(role={"args": {"speedup-rato": 10}}), "--site", site) as run:
        refused(run)
        assert run.commands().keys() >= {"prefill-0", "engine-flags"}


def test_the_engines_own_answer_ends_the_run_and_later_ones_before_there_is_a_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    known, asked = place.local / ".engine-flags", tmp_path / "asked"
    first = f'if [ "$what" = question ] && mkdir {asked} 2>/dev/null; then exit 1; fi'  # before there is a run
    site = engines(place, f'{first}\nwhile [ "$what" = worker ] && ! ls {known}/*.json; do sleep 0.1; done')
    topology = place.topology(role={"args": {"speedup-rato": 10}})
    with place.run(topology, "--site", site) as run:
        refused(run)
        assert "engine-flags" in run.commands()
    assert list(known.glob("*.json"))
    with place.run(topology, "--site", site) as run:
        assert_refused(run.end())
        assert not run.paths.root.exists()


def test_a_typo_in_a_flag_of_the_mocker_makes_no_run_directory(tmp_path: Path) -> None:
    place = Place(tmp_path)
    site, leaves = str(place.site(local_path=str(place.local))), tmp_path / "leaves"
    leaves.mkdir()
    topology = place.topology(role={"args": {"speedup-rato": 10}})
    with place.run(topology, "--site", site, env={"TMPDIR": str(leaves)}) as run:
        assert_refused(run.end())
        assert not run.paths.root.exists()
    assert "asking mocker for its flags" in run.stderr()
    assert list(leaves.iterdir()) == []

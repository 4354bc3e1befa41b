"""A flag that the engine does not know: the run says so at once, and the next one before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.chain import Ended, Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]


def refused(run: Run) -> Ended:
    """Ended by the unknown flag, with the one that was meant, and nothing left."""
    ended = run.end()
    assert ended.status == 2, ended.stderr
    assert "speedup-rato" in ended.stderr
    assert "write speedup-ratio" in ended.stderr
    run.assert_nothing_left()
    return ended


def engines(place: Place, before: str) -> str:
    """A site whose engines begin with some lines of shell; the `question` for flags is told by its own words."""
    script = f'case "$*" in *format_help*) what=question;; *--disaggregation-mode*) what=worker;; esac\n{before}'
    program = place.program("python", f'{script}\nexec $PYTHON "$@"')
    return str(place.site(engine_python=str(program), local_path=str(place.local)))


def test_a_worker_that_dies_of_an_unknown_flag_ends_the_run_by_name(tmp_path: Path) -> None:
    place = Place(tmp_path)
    site = engines(place, '[ "$what" != question ] || exec sleep 600')  # who dies first is not left to chance
    with place.run(place.topology(role={"args": {"speedup-rato": 10}}), "--site", site) as run:
        refused(run)
        assert run.commands().keys() >= {"prefill-0", "engine-flags"}


def test_the_engines_own_answer_ends_the_run_and_later_ones_before_any_worker(tmp_path: Path) -> None:
    place = Place(tmp_path)
    known = place.local / ".engine-flags"
    site = engines(place, f'while [ "$what" = worker ] && ! ls {known}/*.json; do sleep 0.1; done')
    topology = place.topology(role={"args": {"speedup-rato": 10}})
    with place.run(topology, "--site", site) as run:
        refused(run)
        assert "engine-flags" in run.commands()
    assert list(known.glob("*.json"))
    with place.run(topology, "--site", site) as run:
        refused(run)
        assert not {"prefill-0", "decode-0", "engine-flags"} & run.commands().keys()

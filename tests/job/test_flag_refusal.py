"""A flag that the engine does not know: the run says so at once, and the next one before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job.chain import Place

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]
MOST_RUNS = 4


def test_an_unknown_flag_ends_the_run_by_name_and_later_runs_before_any_worker(tmp_path: Path) -> None:
    place = Place(tmp_path)
    topology = place.topology(role={"args": {"speedup-rato": 10}})
    known = place.local / "dynamo-mlperf" / ".engine-flags"
    for _ in range(MOST_RUNS):
        asked_before = list(known.glob("*.json"))
        with place.run(topology) as run:
            ended = run.end()
            assert ended.status == 2, ended.stderr
            assert "speedup-rato" in ended.stderr
            assert "write speedup-ratio" in ended.stderr
            run.assert_nothing_left()
            if asked_before:
                assert not {"prefill-0", "decode-0", "engine-flags"} & run.commands().keys()
                return
    # A worker may die of the flag before the engine has answered, but not every time.
    pytest.fail("the engine's answer was never kept")

"""How a hold ends, asked for or not: with truth on record for the holder and for who measures, and nothing left."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.job.chain import Place, Run

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

LONG = {"reduced": {"min_duration_s": 300}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("held-faults"))


def name_of(run: Run) -> str:
    return run.paths.root.name


def outcome(place: Place, run: Run) -> dict[str, Any]:
    (found,) = json.loads(place.command("status", name_of(run), "--json").stdout)
    return dict(found["outcome"])


def hold_end(run: Run) -> dict[str, Any]:
    return run.wait_for("hold_end")


def test_nobody_asks_and_the_engines_are_let_go(place: Place) -> None:
    with place.run(place.topology({"hold": {"idle_s": 600}}), "--hold-for", "1") as run:
        ended = run.end()
        assert (ended.status, run.verdict()["verdict"]) == (0, "VALID"), ended.stderr
        assert hold_end(run)["what"] == "nobody has measured for 1 s"
        assert run.events()[0]["laid_over"] == {"hold": {"idle_s": 1.0}}
        run.assert_nothing_left()
        assert outcome(place, run)["word"] == "VALID"
        assert "held for 1 measurement, until nobody has measured for 1 s" in outcome(place, run)["text"]
        late = place.command("run", str(place.topology()), "--attach", name_of(run))
        assert (late.returncode, "holds no engines: it did, until nobody has measured" in late.stderr) == (2, True)


def test_a_worker_that_dies_while_held_ends_the_hold_and_not_the_result(place: Place) -> None:
    with place.holding() as run:
        os.kill(run.pid_of("decode-0"), signal.SIGKILL)
        ended = run.end()
        assert (ended.status, run.verdict()["verdict"]) == (0, "VALID"), ended.stderr
        assert hold_end(run)["what"] == "decode-0 on node 1 (localhost) was killed by SIGKILL"
        assert "engines are let go: decode-0 on node 1 (localhost) was killed by SIGKILL" in ended.stderr
        run.assert_nothing_left()
        assert "until decode-0 on node 1 (localhost) was killed" in outcome(place, run)["text"]


def test_a_worker_that_dies_while_others_measure_fails_their_run(place: Place) -> None:
    with place.holding() as holder:
        with place.run(place.topology(LONG), "--attach", name_of(holder)) as run:
            run.wait_until_measuring()
            os.kill(holder.pid_of("prefill-0"), signal.SIGKILL)
            ended = run.end()
            verdict = run.verdict()
            assert (ended.status, verdict["verdict"], verdict["completed_qps"]) == (4, "FAILED", None), ended.stderr
            assert verdict["reasons"][0]["got"].startswith("prefill-0 on node 0 (localhost) was killed by SIGKILL")
            assert f"engines held by run {name_of(holder)}" in verdict["notes"][0]
            assert outcome(place, run)["word"] == "FAILED"
        done = holder.end()
        assert (done.status, holder.verdict()["verdict"]) == (0, "VALID"), done.stderr
        assert hold_end(holder)["what"].startswith("prefill-0 on node 0")
        holder.assert_nothing_left()


def test_a_holder_that_is_stopped_says_so_to_who_measures(place: Place) -> None:
    with place.holding() as holder:
        with place.run(place.topology(LONG), "--attach", name_of(holder)) as run:
            run.wait_until_measuring()
            (cancelled,) = json.loads(place.command("cancel", name_of(holder), "--json").stdout)
            assert (cancelled["state"], cancelled["left"]) == ("ended: VALID", [])
            ended = run.end()
            reason = run.verdict()["reasons"][0]
            assert (ended.status, reason["check"]) == (143, "interrupted"), ended.stderr
            assert reason["got"] == f"run {name_of(holder)}, which holds the engines, was stopped by SIGTERM"
            assert outcome(place, run)["word"] == "CANCELLED"
        assert holder.end().status == 0
        holder.assert_nothing_left()


def test_a_holder_that_is_killed_ends_the_measurement_as_failed(place: Place) -> None:
    with place.holding() as holder:
        with place.run(place.topology(LONG), "--attach", name_of(holder)) as run:
            run.wait_until_measuring()
            holder.send(signal.SIGKILL)
            holder.process.wait()
            ended = run.end()
            verdict = run.verdict()
            assert (ended.status, verdict["verdict"], verdict["completed_qps"]) == (4, "FAILED", None), ended.stderr
            told = f"run {name_of(holder)}, which held the engines, is gone"
            assert verdict["reasons"][0]["got"] == told
            assert f"error: {told}" in ended.stderr
            assert outcome(place, run)["word"] == "FAILED"
        with place.run(place.topology(LONG), "--attach", name_of(holder)) as late:
            ended = late.end()
            assert (ended.status, "it did, and is LOST now" in ended.stderr) == (2, True), ended.stderr


def test_a_measurement_whose_two_sides_died_is_lost(place: Place) -> None:
    with place.holding() as holder, place.run(place.topology(LONG), "--attach", name_of(holder)) as run:
        run.wait_until_measuring()
        run.process.kill()
        holder.send(signal.SIGKILL)
        holder.process.wait()
        lost = outcome(place, run)
        assert (lost["word"], lost["exit_code"]) == ("LOST", 4)
        assert f"run {name_of(holder)}, which held its engines, is gone" in lost["text"]

"""The loop of a hold, turn by turn: what a request, a disk or a worker does to it, without any engine."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from dynamo_mlperf.errors import ExitCode
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.job.held import ANSWER, HELD_DIR, Answer, HeldRequest, Spooled, post
from dynamo_mlperf.job.held_measurement import Served
from dynamo_mlperf.job.holding import Holder
from dynamo_mlperf.process.signals import stopped_by
from dynamo_mlperf.record import EventLog, read_events
from tests.job.chain import TEMPLATE


class Turns:
    """A supervisor that does one thing on each turn, and is asked to stop after the last."""

    def __init__(self, *things: Callable[[], object]) -> None:
        self._things = list(things)

    def watch(self, look: Callable[[], None]) -> None:
        """Nothing is measured here, so that there is nothing to look at."""

    def pause(self, _seconds: float) -> None:
        if not self._things:
            raise stopped_by(signal.SIGTERM)
        self._things.pop(0)()


class Hold:
    """A hold of nothing."""

    def __init__(self, root: Path, *things: Callable[[], object]) -> None:
        self.paths = RunPaths(root / "runs" / "holder")
        self.paths.root.mkdir(parents=True)
        self.deployment = SimpleNamespace(whole=True)
        self.said: list[str] = []
        job = SimpleNamespace(
            paths=self.paths,
            topology=SimpleNamespace(hold=None),
            events=EventLog(self.paths),
            progress=SimpleNamespace(note=self.said.append, say=self.said.append),
            supervisor=Turns(*things),
            allocation=SimpleNamespace(describe=lambda: "this machine"),
        )
        self.holder = Holder(cast("Any", Served)(job, self.deployment, None, None, 0.0))

    def ask(self, name: str) -> Spooled:
        file = self.paths.root.parent / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**TEMPLATE, "name": name}))
        place = str(self.paths.root.parent / name)
        return post(self.paths.root, HeldRequest(run_id=name, file=str(file), base_dir="/", run_dir=place), file)


def nothing() -> None:
    """A turn on which nothing happens."""


def test_a_bug_that_a_request_meets_is_told_and_costs_no_engines(tmp_path: Path) -> None:
    hold = Hold(tmp_path, nothing, nothing)
    asked = [hold.ask(name) for name in ("first", "second")]
    assert hold.holder.until_end() == "stopped by SIGTERM"
    for one in asked:
        answer = one.answered()
        assert answer is not None
        refusal = answer.refusal()
        assert refusal is not None
        assert (answer.exit_code, refusal.exit_code) == (ExitCode.BUG, ExitCode.BUG)
        assert refusal.what.startswith("a bug: AttributeError: ")  # this holder has no site
        assert refusal.action == f"please report {one.root / 'traceback.txt'}"
        assert "held_measurement.py" in (one.root / "traceback.txt").read_text()
    kinds = [event["event"] for event in read_events(hold.paths)]
    assert kinds == ["hold_begin", "held_refused", "held_refused", "hold_end"]
    assert read_events(hold.paths)[-1]["measurements"] == 1, "its own alone"


def test_an_answer_that_could_not_be_written_is_given_on_a_later_turn(tmp_path: Path) -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.append((asked.root / ANSWER).exists())

    def make_room() -> None:
        look()
        write.undo()

    def no_room(*_words: object) -> None:
        raise OSError(28, "No space left on device")

    hold = Hold(tmp_path, nothing, look, make_room, look, nothing)
    asked = hold.ask("first")
    write = pytest.MonkeyPatch()
    write.setattr(Spooled, "answer", no_room)
    try:
        hold.holder.until_end()
    finally:
        write.undo()
    assert seen == [False, False, True]
    assert isinstance(asked.answered(), Answer)


@pytest.mark.parametrize("gone", [HELD_DIR, "."])
def test_a_hold_that_nobody_can_ask_any_more_ends(tmp_path: Path, gone: str) -> None:
    hold = Hold(tmp_path, nothing, lambda: shutil.rmtree(hold.paths.root / gone))
    spool = hold.paths.root / HELD_DIR
    assert hold.holder.until_end() == f"{spool} is gone, and nobody can ask any more"


def test_a_hold_of_workers_that_did_not_come_up_again_ends(tmp_path: Path) -> None:
    hold = Hold(tmp_path, nothing, lambda: setattr(hold.deployment, "whole", False), nothing)
    assert hold.holder.until_end() == "workers that had to be restarted did not come up again"

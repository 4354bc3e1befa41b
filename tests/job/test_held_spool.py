"""The directory through which held engines are asked for measurements: what is whole, what is answered, whose it is."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.errors import ConfigError, ExitCode, ServingError, SetupError
from dynamo_mlperf.job.held import (
    ANSWER,
    HELD_DIR,
    PROGRESS,
    REQUEST,
    Answer,
    HeldRequest,
    called,
    is_gone,
    open_spool,
    post,
    request_of,
    spooled,
)
from dynamo_mlperf.record import ConstraintLatency, Reason, TransferEvidence, Verdict, verdict_from_json

GOOD: dict[str, Any] = {"run_id": "second-1", "file": "/f.yaml", "base_dir": "/", "run_dir": "/runs/second-1"}


def asked(run_dir: Path, **keys: object) -> HeldRequest:
    request = HeldRequest(**{**GOOD, **keys})
    file = run_dir.parent / "file.yaml"
    file.write_text("schema: 1\n")
    post(run_dir, request, file)
    return request


def test_a_request_comes_whole_and_is_open_until_it_is_answered(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    run_dir.mkdir(parents=True)
    spool = open_spool(run_dir)
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    (spool / ".half-made.17").mkdir()
    request = asked(run_dir, blocks={"search": {"low": 1.5, "start": None}}, site="é ☃ 🚀", nodes=4)
    (found,) = spooled(spool)
    assert found.read() == request
    assert found.topology.read_text() == "schema: 1\n"
    assert (found.asked_to_stop(), found.answered(), found.told(0)) == (None, None, [])
    found.tell(phase="rest")
    found.tell(say="x")
    with (found.root / "progress.jsonl").open("a") as out:
        out.write('{"say": "half')
    assert (found.told(0), found.told(1)) == ([{"phase": "rest"}, {"say": "x"}], [{"say": "x"}])
    request_of(run_dir, "second-1").stop(signal.SIGINT)
    assert found.asked_to_stop() is signal.SIGINT
    found.answer(3, SetupError("what", "action"))
    said = found.answered()
    assert said == Answer(ExitCode.SETUP, "what", "action")
    assert isinstance(said.refusal(), SetupError)
    assert spooled(spool) == []


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"run_id": "../first"}, "run_id: wanted lower-case letters"),
        ({"run_id": "other"}, "asks for a run other, and lies in second-1"),
        ({"base_dir": "here"}, "base_dir: wanted an absolute path"),
        ({"run_dir": "/runs/\0"}, "run_dir: wanted a path"),
        ({"nodes": "4; id"}, "nodes: wanted a whole number"),
        ({"blocks": {"measure": 7}}, "blocks.measure: wanted keys and values"),
        ({"shell": "id"}, "shell: no such key"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    spool = open_spool(tmp_path)
    root = spool / "second-1"
    root.mkdir()
    (root / REQUEST).write_text(json.dumps({**GOOD, **keys}))
    (found,) = spooled(spool)
    with pytest.raises(ConfigError) as refused:
        found.read()
    assert told in refused.value.what


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_damaged_requests_are_refused(tmp_path: Path, text: str) -> None:
    root = open_spool(tmp_path) / "second-1"
    root.mkdir()
    (root / REQUEST).write_text(text)
    with pytest.raises(ConfigError, match=r"is no JSON|holds no object"):
        spooled(tmp_path / HELD_DIR)[0].read()


def as_nothing(path: Path) -> None:
    path.mkdir()


def as_text(text: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(text)

    return write


@pytest.mark.parametrize(
    "damage",
    [
        as_nothing,
        *map(as_text, ("", "{", "7", "[]", "{}", '{"exit_code": "0"}', '{"exit_code": 77}', "[" * 100_000)),
        lambda path: path.symlink_to(path),
        os.mkfifo,
    ],
)
def test_an_answer_that_is_none_is_called_that(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    run_dir = tmp_path / "runs" / "first"
    run_dir.mkdir(parents=True)
    open_spool(run_dir)
    asked(run_dir)
    found = request_of(run_dir, "second-1")
    damage(found.root / ANSWER)
    with pytest.raises(ServingError, match="is no answer: ") as told:
        found.answered()
    assert (told.value.action, told.value.exit_code) == (
        "`dynamo-mlperf status second-1` says how it ended",
        ExitCode.FAILED,
    )


def test_damaged_lines_of_progress_hide_no_others(tmp_path: Path) -> None:
    found = request_of(tmp_path, "x")
    found.root.mkdir(parents=True)
    (found.root / PROGRESS).write_text('{"say": "a"}\nnonsense\n[]\n' + "[" * 100_000 + '\n{"say": 7}\n')
    assert found.told(0) == [{"say": "a"}, {}, {}, {}, {"say": "7"}]


def test_a_file_that_vanishes_meanwhile_leaves_no_half_made_request(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    run_dir.mkdir(parents=True)
    spool = open_spool(run_dir)
    with pytest.raises(SetupError, match="cannot be written: No such file or directory"):
        post(run_dir, HeldRequest(**GOOD), tmp_path / "gone.yaml")
    assert list(spool.iterdir()) == []


def test_a_spool_is_gone_only_where_it_is(tmp_path: Path) -> None:
    assert not is_gone(tmp_path)
    assert is_gone(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert not is_gone(tmp_path / "loop"), "a fault of the disk says nothing"


def test_nobody_can_ask_where_nothing_is_held(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be written: No such file or directory"):
        asked(tmp_path / "no-run")
    assert spooled(tmp_path / HELD_DIR) == []
    assert not (tmp_path / ANSWER).exists()


def test_a_run_is_called_as_other_verbs_find_it() -> None:
    assert called(Path("/w/runs/demo-17")) == "demo-17"
    assert called(Path("/elsewhere/demo")) == "/elsewhere/demo"


def test_a_verdict_comes_back_from_its_record_as_it_was() -> None:
    whole = Verdict(
        "INVALID",
        "reduced",
        "llama2-70b-99.9",
        "Server",
        "/runs/x",
        (Reason("duration", "600 s", "20 s", "run longer"),),
        ("a note",),
        4.0,
        3.5,
        100.25,
        44,
        1,
        12.5,
        {"ttft": ConstraintLatency(1.0, 2.0, None, 3.0, 0.99, 0, -1)},
        TransferEvidence(disaggregated=True, proof="kv-counters", requests=44, kv_bytes=7),
        {"requests": 44},
        "m",
        {"accuracy": "VALID"},
    )
    bare = Verdict("FAILED", "official", "b", "Offline", "/runs/y")
    for verdict in (whole, bare):
        assert verdict_from_json(json.loads(json.dumps(verdict.as_json()))) == verdict

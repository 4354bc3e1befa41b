"""The event log of endpoints as lines: what counts as measured, as over a limit, as failed; and what is no log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.endpoints_events import NO_END, NO_TEXT, EventBook, EventFollower, read_events
from dynamo_mlperf.load.queries import read_queries

LIMITS = {"end_to_end": 100.0, "ttft": 30.0, "tpot": 5.0}
STREAMED = ["TextModelOutput", ["a", "b"], None, None]


def _line(kind: str, at_ms: float, sample: str = "", **more: Any) -> bytes:
    event = {"event_type": kind, "timestamp_ns": int(at_ms * 1e6), "sample_uuid": sample, "data": None, **more}
    return json.dumps(event).encode() + b"\n"


def _answer(sample: str, issued_ms: float, first_ms: float | None, done_ms: float, **more: Any) -> list[bytes]:
    lines = [_line("sample.issued", issued_ms, sample)]
    if first_ms is not None:
        lines.append(_line("sample.recv_first", first_ms, sample))
    return [*lines, _line("sample.complete", done_ms, sample, **{"data": STREAMED, "finish_reason": "stop", **more})]


BEGIN, STOP, END = (
    _line(f"session.{name}", at)
    for name, at in (("start_performance_tracking", 100), ("stop_performance_tracking", 900), ("ended", 990))
)
GOOD = _answer("good", 110, 120, 200)
LATE = _answer("late", 111, 150, 250)
BROKEN = _answer("broken", 112, 120, 130, finish_reason=None)
EMPTY = _answer("empty", 113, 120, 131, data=["TextModelOutput", [], None, None])
REASONED = _answer("reasoned", 114, 120, 132, data=["TextModelOutput", "", "why", None])
FAILED = [
    _line("sample.issued", 115, "failed"),
    _line("error.generic", 119, "failed", data=["ErrorData", "error", "HTTP 500:\n no\u2028room"]),
    _line("sample.complete", 119, "failed"),
]
LOST = [_line("sample.issued", 116, "lost")]
LOG = [
    _line("session.started", 0), *_answer("warm", 1, 2, 3), BEGIN,
    *GOOD, *LATE, *BROKEN, *EMPTY, *REASONED, *FAILED, *LOST,
    STOP, *_answer("scored", 910, None, 950), END,
]  # fmt: skip


def _book(lines: list[bytes]) -> EventBook:
    book = EventBook(LIMITS)
    for line in lines:
        book.take(line)
    return book


def test_the_measured_samples_are_those_between_the_marks() -> None:
    book = _book(LOG)
    assert (book.sent, book.issued, book.completed, book.after, book.phase) == (9, 7, 6, 1, "ended")
    assert book.seconds == pytest.approx(0.140)
    assert 85 < (book.percentile_ms(0.75) or 0) < 95
    assert [_book(LOG[:count]).phase for count in (1, 5)] == ["warmup", "performance"]


def test_a_failed_sample_is_over_every_limit_and_says_why() -> None:
    book = _book(LOG)
    assert book.errors == {2: NO_END, 3: NO_TEXT, 5: "error: HTTP 500: no room"}
    assert book.over == {"end_to_end": 4, "ttft": 4}, "one late, three failed; no tokens, so no tpot"


def test_queries_are_read_back_with_their_samples(tmp_path: Path) -> None:
    path = tmp_path / "queries.csv"
    names = ("good", "late", "broken", "empty", "reasoned", "failed", "lost")
    path.write_text(_book(LOG).queries_csv({name: 10 + index for index, name in enumerate(names)}))
    queries = read_queries(path)
    assert queries.samples.tolist() == [10, 11, 12, 13, 14, 15, 16]
    assert queries.latencies_ms("end_to_end").tolist() == [18.0, 90.0, 139.0]
    assert queries.latencies_ms("ttft").tolist() == [6.0, 10.0, 39.0]
    assert [bool(error) for error in queries.errors] == [False, False, True, True, False, True, True]
    assert queries.errors[6] == "no answer"
    path.write_text(_book(LOG).queries_csv({}))
    assert set(read_queries(path).samples.tolist()) == {-1}


def test_a_first_token_that_is_heard_of_after_the_end_is_no_later_than_it(tmp_path: Path) -> None:
    path = tmp_path / "queries.csv"
    path.write_text(_book([BEGIN, *_answer("s", 110, 140, 139.5)]).queries_csv({"s": 0}))
    assert read_queries(path).latencies_ms("ttft").tolist() == [29.5]


def test_a_growing_log_is_taken_in_by_whole_lines(tmp_path: Path) -> None:
    path, book = tmp_path / "events.jsonl", EventBook(LIMITS)
    follower = EventFollower(path, book)
    assert not follower.look(), "not there yet"
    text = b"".join(LOG)
    for end in range(0, len(text), 97):
        path.write_bytes(text[:end])
        follower.look()
    path.write_bytes(text)
    assert follower.look()
    assert not follower.look()
    follower.close()
    assert (book.sent, book.over) == (9, {"end_to_end": 4, "ttft": 4})


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"[]\n", b"{}\n", b"null\n", b"\xff\xfe\n", b"\n", b'{"event_type": 5, "sample_uuid": []}\n', b"[" * 5000 + b"\n"],
)  # fmt: skip
def test_what_is_no_event_is_no_measurement(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join([*LOG[:8], line]))
    with pytest.raises(MeasureError, match="holds a line that is no event"):
        read_events(path, LIMITS)


def test_no_log_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="endpoints left no"):
        read_events(tmp_path / "events.jsonl", LIMITS)
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(MeasureError, match="cannot be read"):
        read_events(tmp_path / "events.jsonl", LIMITS)


def test_samples_under_way_are_over_as_soon_as_that_is_certain() -> None:
    """One whose first token was late, one that has waited for too long by the time of the last event; and one in time."""
    begun = [
        BEGIN,
        *(_line("sample.issued", at_ms, name) for name, at_ms in (("late", 110), ("mute", 120), ("new", 1110))),
    ]
    book = _book([*begun, _line("sample.recv_first", 150, "late"), _line("sample.recv_first", 1130, "new")])
    assert (book.over, book.early().over) == ({"end_to_end": 0, "ttft": 0}, {"end_to_end": 0, "ttft": 1})
    book.take(_line("sample.issued", 1215, "other"))
    assert book.early().over == {"end_to_end": 1, "ttft": 2}, "110 + 100 ms, and a second in which it may be heard of"
    book.take(_line("sample.complete", 1240, "late", data=STREAMED, finish_reason="stop"))
    assert (book.over, book.early().over) == ({"end_to_end": 1, "ttft": 1}, {"end_to_end": 1, "ttft": 1})
    assert book.early().known == {"end_to_end": 1, "ttft": 2}

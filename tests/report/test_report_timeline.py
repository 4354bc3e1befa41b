from __future__ import annotations

from typing import Any

import pytest

from dynamo_mlperf.report.timeline import build_timeline


def event(at: float, kind: str, **details: object) -> dict[str, Any]:
    return {"t": 1000.0 + at, "event": kind, **details}


def process_events(*, status: int, exited: float, ready: bool, stop: float | None = 20.0) -> list[dict[str, Any]]:
    events = [event(0, "process_started", process="decode-0", node=1, pid=7)]
    if ready:
        events.append(event(5, "process_ready", process="decode-0", seconds=4.9))
    events.append(event(exited, "process_exited", process="decode-0", status=status))
    if stop is not None:
        events.append(event(stop, "phase_begin", phase="stop"))
    return events


@pytest.mark.parametrize(
    ("status", "exited", "ready", "stop", "died"),
    [
        (-9, 10.0, True, 20.0, True),
        (0, 10.0, True, 20.0, True),
        (1, 10.0, False, 20.0, True),
        (0, 10.0, False, 20.0, False),
        (-15, 21.0, True, 20.0, False),
        (-9, 10.0, True, None, True),
    ],
    ids=["killed", "left with 0", "never came up", "a tool that finished", "asked to stop", "no stop at all"],
)
def test_who_died(status: int, exited: float, *, ready: bool, stop: float | None, died: bool) -> None:
    timeline = build_timeline(process_events(status=status, exited=exited, ready=ready, stop=stop))
    (process,) = timeline.processes
    assert process.died is died
    assert [p.name for p in timeline.deaths] == (["decode-0"] if died else [])


def test_the_first_death_comes_first_whatever_the_order_of_starts() -> None:
    events = [event(i, "process_started", process=name, node=0) for i, name in enumerate(("a", "b"))]
    events += [
        event(9, "process_exited", process="a", status=1),
        event(8, "process_exited", process="b", status=1),
    ]
    assert [process.name for process in build_timeline(events).deaths] == ["b", "a"]


@pytest.mark.parametrize(
    ("phase", "more", "shown"),
    [
        ("record", [], ["check"]),
        ("record", [event(5, "warning", what="cut")], ["check", "record"]),
        ("record", [event(5, "phase_end", phase="record")], ["check", "record"]),
        ("measure", [], ["check", "measure"]),
    ],
)
def test_the_phase_that_writes_the_page_is_not_one_that_did_not_end(
    phase: str, more: list[dict[str, Any]], shown: list[str]
) -> None:
    check = [event(0, "phase_begin", phase="check"), event(3, "phase_end", phase="check")]
    timeline = build_timeline([*check, event(4, "phase_begin", phase=phase), *more])
    assert [phase.name for phase in timeline.phases] == shown


def test_phases_and_what_did_not_end() -> None:
    timeline = build_timeline(
        [
            event(0, "phase_begin", phase="check"),
            event(3, "phase_end", phase="check"),
            event(3, "phase_begin", phase="measure"),
            event(9, "progress", queries=4),
        ]
    )
    assert [(phase.name, phase.begin_s, phase.seconds) for phase in timeline.phases] == [
        ("check", 0.0, 3.0),
        ("measure", 3.0, None),
    ]
    assert (timeline.began_at, timeline.length_s) == (1000.0, 9.0)


def test_a_phase_that_ran_twice_is_two_phases() -> None:
    events = [event(t, kind, phase="measure") for t, kind in ((0, "phase_begin"), (2, "phase_end"), (5, "phase_begin"))]
    events.append(event(9, "phase_end", phase="measure"))
    assert [phase.seconds for phase in build_timeline(events).phases] == [2.0, 4.0]


def test_a_worker_started_again_has_two_lives() -> None:
    events = [*process_events(status=-15, exited=10.0, ready=True, stop=None)]
    events += [event(12, "process_started", process="decode-0", node=1), event(15, "process_ready", process="decode-0")]
    first, second = build_timeline(events).processes
    assert (first.exited_s, first.ready_after_s, second.ready_s, second.exited_s) == (10.0, 4.9, 15.0, None)


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"t": "soon", "event": "progress"},
        {"t": True, "event": "error"},
        {"t": float("nan"), "event": "error"},
        {"t": 1001.0},
        {"t": 1001.0, "event": "phase_end", "phase": "never begun"},
        {"t": 1001.0, "event": "process_exited", "process": "never started"},
        {"t": 1001.0, "event": "process_ready", "process": ["a", "list"]},
    ],
)
def test_odd_events_change_nothing(odd: dict[str, Any]) -> None:
    events = process_events(status=0, exited=21.0, ready=True)
    assert build_timeline([*events, odd]) == build_timeline(events)


def test_no_event() -> None:
    timeline = build_timeline([])
    assert (timeline.began_at, timeline.length_s, timeline.phases) == (None, 0.0, ())


def test_errors_and_warnings_are_kept_apart() -> None:
    timeline = build_timeline([event(0, "warning", what="an old shard"), event(1, "error", what="decode-0 died")])
    assert (timeline.errors, timeline.warnings) == (("decode-0 died",), ("an old shard",))

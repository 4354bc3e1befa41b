"""Records between LoadGen's process and the client processes survive any cut of the stream."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.load.channel import ISSUE, STOP, Event, EventReader, IssueReader, Kind, pack_event

UINT = st.integers(0, 2**32 - 1)
TIME = st.integers(0, 2**62)
EVENTS = st.builds(Event, st.sampled_from(Kind), UINT, TIME, TIME, TIME, UINT, UINT, st.binary(max_size=60))


def _pieces(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    return [raw[start:end] for start, end in pairwise(edges)]


@given(events=st.lists(EVENTS, max_size=8), cuts=st.lists(st.integers(0, 900), max_size=6))
def test_events(events: list[Event], cuts: list[int]) -> None:
    reader = EventReader()
    pieces = _pieces(b"".join(pack_event(event) for event in events), cuts)
    assert [event for piece in pieces for event in reader.feed(piece)] == events


@given(records=st.lists(st.tuples(UINT, UINT, TIME), max_size=8), cuts=st.lists(st.integers(0, 150), max_size=6))
def test_issues(records: list[tuple[int, int, int]], cuts: list[int]) -> None:
    reader = IssueReader()
    pieces = _pieces(b"".join(ISSUE.pack(*record) for record in records) + STOP, cuts)
    assert [record for piece in pieces for record in reader.feed(piece)] == [*records, (2**32 - 1, 0, 0)]

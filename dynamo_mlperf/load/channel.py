"""Records between LoadGen's process and the client processes, over stream socket pairs.

To a client process: fixed-size issue records. From it: event records, each followed by `tail_bytes` bytes of text
(a failure's cause, the generated text, a JSON object), of which most have none. All times are CLOCK_MONOTONIC in
nanoseconds, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

ISSUE = struct.Struct("<IIq")
"""Order of the query in the test, sample index, time of issue."""

STOP = ISSUE.pack(0xFFFFFFFF, 0, 0)
"""Ends a client process: it reports its account and closes its end."""

MOST_TOKENS = 0xFFFFFFFF
"""Of a request, as an event holds their number."""

_EVENT = struct.Struct("<IBxxxIqqqII0s")
"""Bytes of the tail, then the fields of an event, of which an empty tail is the last."""


class Kind(IntEnum):
    """What an event says."""

    READY = 0
    FIRST = 1
    DONE = 2
    FAILED = 3
    ACCOUNT = 4


class Event(NamedTuple):
    """One event of a client process.

    Attributes:
        kind: What happened.
        order: Order of the query; of READY the number of open connections.
        sent_ns: When the request was handed to the socket.
        first_ns: When the first token came; 0 when none did.
        done_ns: When the request ended.
        prompt_tokens: From the response's usage.
        output_tokens: From the response's usage.
        tail: Cause, text or JSON.
    """

    kind: int
    order: int
    sent_ns: int = 0
    first_ns: int = 0
    done_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    tail: bytes = b""


def pack_event(event: Event) -> bytes:
    """The record of `event`."""
    return _EVENT.pack(len(event.tail), *event[:-1], b"") + event.tail


class EventReader:
    """Cuts a byte stream into events; bytes of an unfinished one wait for the rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """All events that `data` completes."""
        data = self._rest + data if self._rest else data
        at, end, events = 0, len(data), []
        while end - at >= _EVENT.size:
            tail_bytes, *fields = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            if tail_bytes:
                if at + tail_bytes > end:
                    at -= _EVENT.size
                    break
                fields[-1] = data[at : at + tail_bytes]
                at += tail_bytes
            events.append(Event._make(fields))
        self._rest = data[at:]
        return events


class IssueReader:
    """Cuts a byte stream into issue records."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, int, int]]:
        """All records that `data` completes, as order, sample index, time of issue in nanoseconds."""
        data = self._rest + data if self._rest else data
        whole = len(data) - len(data) % ISSUE.size
        self._rest = data[whole:]
        return list(ISSUE.iter_unpack(data[:whole]))

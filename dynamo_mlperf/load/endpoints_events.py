"""The event log of MLCommons endpoints: followed while it runs, and read whole into one line a query afterwards.

One JSON object a line, in the order of the events (its `core/record.py`, ea332753): `sample.issued`,
`sample.recv_first`, `error.generic` before the `sample.complete` of a failed one, and session events; times are
CLOCK_MONOTONIC nanoseconds. Samples between `start_performance_tracking` and `stop_performance_tracking` are the
measured ones; those before are its warm-up, those after its accuracy phase.
"""

from __future__ import annotations

import csv
import io
from array import array
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import open_regular, strict_json
from dynamo_mlperf.load.account import QUERIES_HEADER, Histogram
from dynamo_mlperf.load.early_counts import early_counts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

    from dynamo_mlperf.load.early_counts import EarlyCounts

EVENTS = "events.jsonl"
NO_END = "the answer was broken off: it has no finish reason"
NO_TEXT = "the answer is empty"
_NS_PER_MS = 1e6
_CHUNK_BYTES = 1 << 20
_LONGEST_ERROR = 300


class EventBook:
    """Books the measured samples of one run, event by event.

    Args:
        limits_ms: Limits in milliseconds by constraint; `tpot` cannot be counted from events, which hold no tokens.

    Attributes:
        sent: Samples issued in all, warm-up and accuracy phase included.
        completed: Measured samples that came back, failed ones included.
        over: Constraint -> measured samples that came back over its limit; a failed one is over each.
        errors: Place of a measured sample -> why it failed.
        after: Samples that came back in the accuracy phase.
        phase: `warmup`, `performance`, `accuracy` or `ended`.
    """

    def __init__(self, limits_ms: Mapping[str, float]) -> None:
        self._limits_ms = {name: limit for name, limit in limits_ms.items() if name != "tpot"}
        self._place: dict[str, int] = {}
        self._issued_ns, self._first_ns, self._done_ns = array("q"), array("q"), array("q")
        self._latency = Histogram()
        self._last_ns = 0
        self.sent = self.completed = self.after = 0
        self.over = dict.fromkeys(self._limits_ms, 0)
        self.errors: dict[int, str] = {}
        self.phase = "warmup"

    @property
    def issued(self) -> int:
        """Measured samples issued."""
        return len(self._issued_ns)

    @property
    def seconds(self) -> float:
        """Seconds from the first measured issue to the last event of a measured sample."""
        if not self._issued_ns:
            return 0.0
        return (self._last_ns - self._issued_ns[0]) / 1e9

    def percentile_ms(self, share: float) -> float | None:
        """An end-to-end percentile so far, to one percent; None while nothing came back."""
        return self._latency.percentile(share)

    def early(self) -> EarlyCounts:
        """What is certain of measured samples that are under way, by the time of the last event."""
        times_ns = (self._issued_ns, self._first_ns, self._done_ns)
        return early_counts(times_ns, self._last_ns, self._limits_ms)

    def take(self, line: bytes) -> None:
        """Take one line in.

        Raises:
            ValueError: It is no event.
        """
        event: dict[str, Any] = strict_json(line)
        kind, sample = event["event_type"], event["sample_uuid"]
        if kind == "sample.issued":
            self.sent += 1
            if self.phase == "performance":
                self._place[sample] = len(self._issued_ns)
                self._issued_ns.append(event["timestamp_ns"])
                self._first_ns.append(0)
                self._done_ns.append(0)
                self._last_ns = max(self._last_ns, event["timestamp_ns"])
        elif kind == "session.start_performance_tracking":
            self.phase = "performance"
        elif kind == "session.stop_performance_tracking":
            self.phase = "accuracy"
        elif kind == "session.ended":
            self.phase = "ended"
        elif sample in self._place:
            self._of_measured(self._place[sample], kind, event)
        elif kind == "sample.complete" and self.phase == "accuracy":
            self.after += 1

    def _of_measured(self, place: int, kind: str, event: Mapping[str, Any]) -> None:
        at_ns = event["timestamp_ns"]
        if kind == "sample.recv_first":
            self._first_ns[place] = at_ns
            self._last_ns = max(self._last_ns, at_ns)
        elif kind.startswith("error."):
            self.errors[place] = _cause(event.get("data"))
        elif kind == "sample.complete" and not self._done_ns[place]:
            self._complete(place, at_ns, event)

    def _complete(self, place: int, at_ns: int, event: Mapping[str, Any]) -> None:
        self._done_ns[place] = at_ns
        # The end is timed by the process that reads the answer, the first token by the one that hears of it later.
        self._first_ns[place] = min(self._first_ns[place], at_ns)
        self._last_ns = max(self._last_ns, at_ns)
        self.completed += 1
        if place not in self.errors and (fault := _fault(event)):
            self.errors[place] = fault
        took_ms = (at_ns - self._issued_ns[place]) / _NS_PER_MS
        self._latency.add(took_ms)
        failed = place in self.errors
        if "end_to_end" in self.over and (failed or took_ms > self._limits_ms["end_to_end"]):
            self.over["end_to_end"] += 1
        first_ms = (self._first_ns[place] - self._issued_ns[place]) / _NS_PER_MS
        if "ttft" in self.over and (failed or first_ms > self._limits_ms["ttft"]):
            self.over["ttft"] += 1

    def queries_csv(self, sample_of: Mapping[str, int]) -> str:
        """One line a measured sample in the order of issue, in the form of our own client's `queries.csv`.

        Token counts are 0: endpoints counts tokens for its summary, and keeps none per sample.

        Args:
            sample_of: Index in the data set by the sample's id, from `sample_idx_map.json`.
        """
        origin = self._issued_ns[0] if self._issued_ns else 0

        def since(value_ns: int) -> str:
            return f"{(value_ns - origin) / _NS_PER_MS:.3f}" if value_ns else ""

        text = io.StringIO()
        text.write(f"{QUERIES_HEADER}\n")
        rows = csv.writer(text, lineterminator="\n")
        for sample, place in self._place.items():
            error = self.errors.get(place, "" if self._done_ns[place] else "no answer")
            times = (since(column[place]) for column in (self._issued_ns, self._first_ns, self._done_ns))
            rows.writerow((place, sample_of.get(sample, -1), *times, 0, 0, error))
        return text.getvalue()


def _cause(data: object) -> str:
    """What an error event says, on one line."""
    said = data[1:] if isinstance(data, list) and len(data) > 1 else [data]
    return " ".join(": ".join(str(part) for part in said).split())[:_LONGEST_ERROR] or "failed"


def _fault(event: Mapping[str, Any]) -> str:
    """Why an answer that endpoints takes for one is none; empty where it is.

    It takes a stream that ends for a whole answer: one that an error broke off, and one without a word.
    """
    data = event.get("data")
    texts = [part for part in data[1:3] if part] if isinstance(data, list) else []
    if not any(any(text) if isinstance(text, list) else text for text in texts):
        return NO_TEXT
    return "" if event.get("finish_reason") else NO_END


class EventFollower:
    """Feeds a book from a log that grows.

    Args:
        path: The log.
        book: Takes the events.
    """

    def __init__(self, path: Path, book: EventBook) -> None:
        self._path, self._book = path, book
        self._file: BinaryIO | None = None
        self._rest = b""

    def look(self) -> bool:
        """Take in all whole lines that have come since; whether there were any.

        Raises:
            MeasureError: A line is no event.
        """
        if self._file is None:
            if not self._path.exists():
                return False
            self._file = open_regular(self._path)
        found = False
        while chunk := self._file.read(_CHUNK_BYTES):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                found = True
                try:
                    self._book.take(line)
                except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                    raise MeasureError(
                        f"{self._path} holds a line that is no event of endpoints ({error}): {line[:120]!r}",
                        "run the measurement again",
                    ) from error
        return found

    def close(self) -> None:
        """Read no more."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_events(path: Path, limits_ms: Mapping[str, float]) -> EventBook:
    """The book of a run that ended.

    Raises:
        MeasureError: There is no log, or a line of it is no event.
    """
    book = EventBook(limits_ms)
    follower = EventFollower(path, book)
    try:
        if not follower.look():
            raise MeasureError(f"endpoints left no {path}", "run the measurement again")
    except OSError as error:
        raise MeasureError(f"{path} cannot be read: {error}", "run the measurement again") from error
    finally:
        follower.close()
    return book

"""The client's own account of a test: every query with its times, and the running figures for `progress.json`.

Times are CLOCK_MONOTONIC nanoseconds inside and milliseconds since the first issue in the files.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.load.early_counts import early_counts

if TYPE_CHECKING:
    import numpy.typing as npt

    from dynamo_mlperf.load.channel import Event
    from dynamo_mlperf.load.early_counts import EarlyCounts
    from dynamo_mlperf.load.settings import LoadSettings

    Times = npt.NDArray[np.float64]

QUERIES_HEADER = "order,sample,issued_ms,first_token_ms,completed_ms,output_tokens,prompt_tokens,error"
_NS_PER_MS = 1e6
_BIN = math.log(1.01)
_LOWEST_MS = 0.01
_MOST_POINTS = 300


class Histogram:
    """Counts of milliseconds in bins one percent wide; good for a progress display, not for a verdict."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    def add(self, value_ms: float) -> None:
        """Count one value."""
        key = int(math.log(max(value_ms, _LOWEST_MS) / _LOWEST_MS) / _BIN)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._total += 1

    def add_all(self, values_ms: Times) -> None:
        """Count many."""
        keys = (np.log(np.maximum(values_ms, _LOWEST_MS) / _LOWEST_MS) / _BIN).astype(np.int64)
        for key, count in zip(*(column.tolist() for column in np.unique(keys, return_counts=True)), strict=True):
            self._counts[key] = self._counts.get(key, 0) + count
        self._total += len(keys)

    def percentile(self, share: float) -> float | None:
        """The value below which `share` of all lie, within a percent; None while there are none."""
        left = self._total * share
        for key in sorted(self._counts):
            left -= self._counts[key]
            if left <= 0:
                return round(_LOWEST_MS * math.exp((key + 0.5) * _BIN), 3)
        return None


class Account:
    """Books every query. `issue` is called by LoadGen's thread, all else by the thread that reads events.

    Args:
        settings: What LoadGen is told.
        max_tokens: Longest answer that a query may have, for `progress`; None = unknown.
    """

    def __init__(self, settings: LoadSettings, max_tokens: int | None = None) -> None:
        self.settings = settings
        self._max_tokens = max_tokens
        self.ids = array("Q")
        self.samples = array("I")
        self.issued_ns = array("q")
        self.completed = 0
        self.causes: dict[int, str] = {}
        self.first_failure = ""
        self.peak_in_flight = 0
        self._in_flight_each_s = array("I")
        self._queued = 0  # by LoadGen's thread
        self._unqueued = 0  # by the other
        self._sent_ns = array("q")
        self._first_ns = array("q")
        self._done_ns = array("q")
        self._prompt = array("I")
        self._output = array("I")
        self._ended = array("I")  # orders as they ended
        self._counted = 0  # so many of them are in the running figures
        self._oldest = 0
        self._over = {"end_to_end": 0, "ttft": 0, "tpot": 0}
        self._failed_late = 0
        self._latency = Histogram()
        self._ttft = Histogram()
        self._tpot = Histogram()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def in_flight(self) -> int:
        """Queries on their way to a server or back: neither ended nor waiting in the client's own queue."""
        return len(self.ids) - self.completed - (self._queued - self._unqueued)

    def issue(self, query_id: int, sample: int, now_ns: int) -> int:
        """Book a query and return its order; `now_ns` 0 = it waits for its turn (`sent_to_worker`)."""
        for column in (self._sent_ns, self._first_ns, self._done_ns, self._prompt, self._output):
            column.append(0)
        self.samples.append(sample)
        self.issued_ns.append(now_ns)
        self._queued += not now_ns
        self.ids.append(query_id)
        return len(self.ids) - 1

    def sent_to_worker(self, order: int, now_ns: int) -> None:
        """The query leaves the client's own queue (Offline): its time starts here."""
        self.issued_ns[order] = now_ns
        self._unqueued += 1

    def first_token(self, event: Event) -> None:
        """Book the first token of a query that goes on."""
        self._first_ns[event.order] = event.first_ns

    def end(self, event: Event, cause: str = "") -> None:
        """Book the end of a query; `cause` says why it failed."""
        order = event.order
        self._sent_ns[order] = event.sent_ns
        self._first_ns[order] = event.first_ns
        self._done_ns[order] = event.done_ns
        self._prompt[order] = event.prompt_tokens
        self._output[order] = event.output_tokens
        self.completed += 1
        self._ended.append(order)
        if cause:
            self.causes[order] = cause
            self.first_failure = self.first_failure or cause
            self._count_failed(event)

    def _count_ended(self) -> int:
        """Take what has ended since the last call into the running figures; return how many have ended by now.

        Once a second for all of it, and not at each end, where it would cost the client more than the HTTP does.
        """
        ended = len(self._ended)
        orders = [order for order in self._ended[self._counted : ended] if order not in self.causes]
        self._counted = ended
        columns = (self.issued_ns, self._first_ns, self._done_ns, self._output)
        issued, first, done, tokens = (np.array([column[order] for order in orders], np.int64) for column in columns)
        values = {
            "end_to_end": (done - issued) / _NS_PER_MS,
            "ttft": (first - issued) / _NS_PER_MS,
            "tpot": (done - first) / _NS_PER_MS / np.maximum(tokens - 1, 1),
        }
        self._latency.add_all(values["end_to_end"])
        self._ttft.add_all(values["ttft"])
        self._tpot.add_all(values["tpot"])
        for name, limit in self.settings.limits_ms.items():
            self._over[name] += int(np.count_nonzero(values[name] > limit))
        return ended

    def _count_failed(self, event: Event) -> None:
        """A failed query that had waited for longer than a limit is over it, as one that was answered then."""
        issued_ns, limits = self.issued_ns[event.order], self.settings.limits_ms
        waited_ms = {
            "end_to_end": (event.done_ns - issued_ns) / _NS_PER_MS,
            "ttft": ((event.first_ns or event.done_ns) - issued_ns) / _NS_PER_MS,
        }
        late = [name for name, waited in waited_ms.items() if name in limits and waited > limits[name]]
        self._failed_late += bool(late)
        for name in late:
            self._over[name] += 1

    def oldest_waiting_ns(self) -> int | None:
        """Issue time of the oldest query without an end; None when there is none on its way."""
        while self._oldest < len(self.ids) and self._done_ns[self._oldest]:
            self._oldest += 1
        if self._oldest == len(self.ids):
            return None
        return self.issued_ns[self._oldest] or None

    def note_in_flight(self) -> None:
        """Note how many are in flight now; called once a second."""
        self._in_flight_each_s.append(self.in_flight)

    def in_flight_over_time(self) -> dict[str, Any]:
        """Requests in flight at equal distances in time: `every_s` and at most a few hundred `values`."""
        step = len(self._in_flight_each_s) // _MOST_POINTS + 1
        return {"every_s": step, "values": self._in_flight_each_s[::step].tolist()}

    def progress(self, started_ns: int, now_ns: int, expected: int) -> dict[str, Any]:
        """The running figures; latencies in milliseconds, `over_limit` of the constraint that is worst off.

        `over` counts by constraint; failed queries that had waited for longer than a limit (`failed_late`) are in it.
        `over_in_flight` counts those in flight that are over it however they end, of `known_in_flight` of which that is
        certain either way. `over_limit` of `over_limit_allowed` is the early-stopping budget that is used; `left_s` is
        an estimate.
        """
        limits = self.settings.limits_ms
        completed = self._count_ended()
        over, issued = {name: self._over[name] for name in limits}, len(self.ids)
        early = self._early(issued, now_ns)  # after what has ended: a query that ends meanwhile is in neither
        return {
            "t_s": round((now_ns - started_ns) / 1e9, 3),
            "issued": issued,
            "completed": completed,
            "failed": len(self.causes),
            "failed_late": self._failed_late,
            "first_failure": self.first_failure,
            "in_flight": self.in_flight,
            "p50_ms": self._latency.percentile(0.5),
            "p99_ms": self._latency.percentile(0.99),
            "ttft_p50_ms": self._ttft.percentile(0.5),
            "ttft_p99_ms": self._ttft.percentile(0.99),
            "tpot_p50_ms": self._tpot.percentile(0.5),
            "tpot_p99_ms": self._tpot.percentile(0.99),
            "judged": sorted(limits),
            "over": over,
            "over_in_flight": early.over,
            "known_in_flight": early.known,
            "over_limit": max(over.values(), default=0),
            "over_limit_allowed": allowed_over_limit(expected, self.settings.percentile) if limits else None,
            "expected_queries": expected,
            "min_duration_s": self.settings.min_duration_ms / 1000,
            "left_s": self._left_s((now_ns - started_ns) / 1e9, expected),
        }

    def _early(self, issued: int, now_ns: int) -> EarlyCounts:
        """What is certain of the first `issued` queries, as far as they are in flight."""
        part = slice(self._oldest, issued)  # slices are copies: the columns grow meanwhile
        times_ns = (self.issued_ns[part], self._first_ns[part], self._done_ns[part])
        return early_counts(times_ns, now_ns, self.settings.limits_ms, self._max_tokens)

    def _left_s(self, past_s: float, expected: int) -> float | None:
        """About how long the run goes on: by its schedule, in Offline by what is done; None while nothing is."""
        if self.settings.loadgen_scenario == "Offline":
            if not self.completed:
                return None
            return round(max(0, expected - self.completed) * past_s / self.completed, 1)
        whole_s = max(self.settings.min_duration_ms / 1000, expected / self.settings.target_qps)
        return round(max(0.0, whole_s - past_s), 1)

    def first_issue_ns(self) -> int | None:
        """When the first query was issued, on the monotonic clock; None before that."""
        return min((value for value in self.issued_ns if value), default=None)

    def queries_csv(self, cut: str = "") -> str:
        """All queries as CSV, in the order of their issue; an empty time is one that never was.

        Args:
            cut: What is said as the error of a query that has not ended, of a test that was stopped.
        """
        origin = self.first_issue_ns() or 0

        def since(value_ns: int) -> str:
            return f"{(value_ns - origin) / _NS_PER_MS:.3f}" if value_ns else ""

        lines = [QUERIES_HEADER]
        for order, sample in enumerate(self.samples):
            times = f"{since(self.issued_ns[order])},{since(self._first_ns[order])},{since(self._done_ns[order])}"
            tokens = f"{self._output[order]},{self._prompt[order]}"
            cause = self.causes.get(order, "" if self._done_ns[order] else cut)
            lines.append(f"{order},{sample},{times},{tokens},{_quoted(cause)}")
        return "\n".join(lines) + "\n"

    def issue_delay_ms(self) -> dict[str, float | None]:
        """Milliseconds from the issue to the request handed to its socket: p50, p99, max; null without any."""
        sent = np.frombuffer(self._sent_ns, dtype=np.int64) if self._sent_ns else np.zeros(0, dtype=np.int64)
        issued = np.frombuffer(self.issued_ns, dtype=np.int64) if self.issued_ns else sent
        delays = (sent - issued)[sent > 0] / _NS_PER_MS
        if not delays.size:
            return {"p50": None, "p99": None, "max": None}
        p50, p99, most = np.percentile(delays, [50, 99, 100])
        return {"p50": round(float(p50), 4), "p99": round(float(p99), 4), "max": round(float(most), 4)}

    def failures(self) -> list[dict[str, Any]]:
        """Every failed query by sample and order, with its cause."""
        return [
            {"sample": self.samples[order], "order": order, "cause": cause}
            for order, cause in sorted(self.causes.items())
        ]


def _quoted(text: str) -> str:
    return '"' + " ".join(text.replace('"', "'").split()) + '"' if text else ""

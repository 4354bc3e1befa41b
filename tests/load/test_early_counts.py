"""Queries in flight that are over a limit for certain: as soon as it is, no sooner, and each query once."""

from __future__ import annotations

import json
import signal
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.account import Account
from dynamo_mlperf.load.channel import Event, Kind
from dynamo_mlperf.load.early_counts import TOLD_WITHIN_NS, EarlyCounts, early_counts
from dynamo_mlperf.load.queries import CUT, CUT_FILE, read_queries
from dynamo_mlperf.load.settings import build_settings
from tests.fakes.oracle import Oracle, Script
from tests.load.test_loadgen_runs import Bench, Load

MS = 1_000_000
TOLD_MS = TOLD_WITHIN_NS // MS
LIMITS = {"ttft": 2000.0, "tpot": 15.0}
TOKENS = build_settings(benchmark("gpt-oss-120b"), "Interactive", 25, 64, Reduction(3, 64, 90))


def counts(
    *queries: tuple[float, float, float], now_ms: float, limits_ms: dict[str, float], longest: int | None = None
) -> EarlyCounts:
    """Of queries given by their times of issue, first token and end, in ms; 0 = not yet."""
    issued, first, done = (array("q", (int(query[at] * MS) for query in queries)) for at in range(3))
    return early_counts((issued, first, done), int(now_ms * MS), limits_ms, longest)


def test_a_first_token_tells_before_the_end() -> None:
    flying = ((100, 900, 0), (100, 2200, 0), (100, 0, 0), (100, 2200, 2300), (0, 0, 0))
    early = counts(*flying, now_ms=2300, limits_ms=LIMITS)
    assert (early.over, early.known) == ({"ttft": 1}, {"ttft": 2})
    later = counts(*flying, now_ms=2101 + TOLD_MS, limits_ms=LIMITS)
    assert (later.over, later.known) == ({"ttft": 2}, {"ttft": 3}), "the third one has waited for too long"


def test_what_may_have_ended_unheard_of_is_not_certain() -> None:
    assert counts((100, 0, 0), now_ms=2099 + TOLD_MS, limits_ms={"end_to_end": 2000.0}).over == {"end_to_end": 0}
    assert counts((100, 0, 0), now_ms=2101 + TOLD_MS, limits_ms={"end_to_end": 2000.0}).over == {"end_to_end": 1}


def test_tpot_is_lost_once_the_longest_answer_would_be_over() -> None:
    """15 ms a token allow 1.485 s for 100 tokens: one that takes longer is over however few it has."""
    for now_ms, over in ((1700 + TOLD_MS, 1), (1600 + TOLD_MS, 0)):
        assert counts((100, 200, 0), now_ms=now_ms, limits_ms=LIMITS, longest=100).over["tpot"] == over
    assert "tpot" not in counts((100, 200, 0), now_ms=90_000, limits_ms=LIMITS).over


TIMES = st.tuples(st.integers(1, 5000), st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 60))
"""Of one query: issue, from there to the first token, from there to the end (ms), tokens of its answer."""


@given(st.lists(TIMES, min_size=1, max_size=30), st.integers(1, 16_000))
def test_what_is_certain_comes_true(queries: list[tuple[int, int, int, int]], now_ms: int) -> None:
    """Whatever is called over of queries in flight is over at their end, and grows with those that have ended."""
    longest = 60

    def books(at_ms: int) -> EarlyCounts:
        seen = [
            (issued, first if first <= at_ms else 0, end if end <= at_ms else 0)
            for issued, to_first, to_end, _ in queries
            if issued <= at_ms
            for first, end in ((issued + to_first, issued + to_first + to_end),)
        ]
        return counts(*seen, now_ms=at_ms, limits_ms={**LIMITS, "end_to_end": 3000.0}, longest=longest)

    def over(name: str, query: tuple[int, int, int, int]) -> bool:
        _, to_first, to_end, tokens = query
        values = {"ttft": to_first, "tpot": to_end / max(tokens - 1, 1), "end_to_end": to_first + to_end}
        return values[name] > {**LIMITS, "end_to_end": 3000.0}[name]

    early = books(now_ms)
    for name, count in early.over.items():
        flying = [one for one in queries if one[0] <= now_ms < sum(one[:3])]
        assert count <= early.known[name] <= len(flying)
        assert count <= sum(over(name, one) for one in flying)
        if name == "ttft":
            assert count >= sum(over(name, one) for one in flying if one[0] + one[1] <= now_ms)


def test_the_account_counts_each_query_once() -> None:
    account = Account(TOKENS, max_tokens=1000)
    for order in range(3):
        account.issue(order, order, 100 * MS)
    account.first_token(Event(Kind.FIRST, 0, first_ns=2500 * MS))
    account.first_token(Event(Kind.FIRST, 1, first_ns=300 * MS))
    told = account.progress(0, 2600 * MS, 100)
    assert (told["over"], told["over_in_flight"]) == ({"ttft": 0, "tpot": 0}, {"ttft": 1, "tpot": 0})
    assert told["known_in_flight"] == {"ttft": 2, "tpot": 0}
    account.end(Event(Kind.DONE, 0, 100 * MS, 2500 * MS, 9000 * MS, 17, 10))
    told = account.progress(0, 9000 * MS, 100)
    assert (told["over"], told["over_in_flight"]) == ({"ttft": 1, "tpot": 1}, {"ttft": 1, "tpot": 0})
    assert (told["completed"], told["known_in_flight"]) == (1, {"ttft": 2, "tpot": 0}), "no first token by now"
    told = account.progress(0, 17_000 * MS, 100)
    assert told["over_in_flight"] == {"ttft": 1, "tpot": 1}, "999 steps of 15 ms after the first token are over"


def test_a_client_that_was_held_up_takes_its_claim_back() -> None:
    """Nothing heard for the limit and a second more counts as late; a token that then turns out to be old does not."""
    account = Account(TOKENS, max_tokens=1000)
    account.issue(0, 0, 100 * MS)
    assert account.progress(0, 3200 * MS, 100)["over_in_flight"]["ttft"] == 1
    account.first_token(Event(Kind.FIRST, 0, first_ns=300 * MS))
    assert account.progress(0, 3300 * MS, 100)["over_in_flight"]["ttft"] == 0


@pytest.mark.loadgen
def test_long_answers_are_over_before_they_end(tmp_path: Path) -> None:
    """Answers of half a minute whose first token came too late: LoadGen's process says so within seconds."""
    bench = Bench(tmp_path)
    load = Load("Interactive", name="gpt-oss-120b", qps=20, seconds=60)
    script = Script(ttft_ms=120, tpot_ms=300, tokens=100)
    with Oracle(script) as oracle, bench.start(load, oracle.port, ttft_ms=100) as process:
        told = wait_for_progress(bench.out / "progress.json", process.poll)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    cut = read_queries(bench.out / CUT_FILE)
    assert not (bench.out / "queries.csv").exists()
    assert len(cut) >= 10
    assert set(cut.errors) == {CUT}
    assert cut.known_until_ms == 0, "nothing is known to the end but what ended before the first query without one"
    assert (told["completed"], told["over"]["ttft"]) == (0, 0)
    assert 10 <= told["over_in_flight"]["ttft"] <= told["known_in_flight"]["ttft"] <= told["issued"]


def wait_for_progress(path: Path, ended: Any) -> dict[str, Any]:
    """The first progress with ten late ones in flight."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert ended() is None
        told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if told and (told["over_in_flight"]["ttft"] >= 10 or told["completed"]):
            return told
        time.sleep(0.1)
    raise AssertionError("no query was late in a minute")

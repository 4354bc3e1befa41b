from __future__ import annotations

import math

import pytest

from dynamo_mlperf.report import quantities as q


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1499.96, "1,500.0"),
        (1499.6, "1,499.6"),
        (12.0, "12.0"),
        (9.994, "9.99"),
        (0.0, "0.00"),
        (None, "did not measure"),
    ],
)
def test_milliseconds(value: float | None, text: str) -> None:
    assert q.milliseconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(1500.0, "1,500"), (15, "15"), (12.5, "12.5"), (7.25, "7.25")])
def test_a_whole_limit_has_no_decimals(value: float, text: str) -> None:
    assert q.limit_ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(39.853, "39.85"), (0.0123, "0.0123"), (0.0, "0.00"), (5392930.0, "5,392,930.00")]
)
def test_rates(value: float, text: str) -> None:
    assert q.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (93_200_000, "93.2 MB"), (8.5e12, "8.5 TB"), (2e15, "2,000.0 TB")],
)
def test_sizes(value: float, text: str) -> None:
    assert q.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.42, "0.42 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 00 s"),
        (602.3, "10 min 02 s"),
        (3599.7, "1 h 00 min"),
        (3900, "1 h 05 min"),
        (None, "did not measure"),
    ],
)
def test_durations(value: float | None, text: str) -> None:
    assert q.duration(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.99, "p99"), (0.999, "p99.9"), (0.5, "p50"), (0.97, "p97")])
def test_percentile_names(value: float, text: str) -> None:
    assert q.percentile_name(value) == text


def test_plurals() -> None:
    assert [q.many(0, "GPU"), q.many(1, "GPU"), q.many(2, "process", "processes")] == ["0 GPUs", "1 GPU", "2 processes"]


def test_control_characters_do_not_reach_a_terminal() -> None:
    assert q.printable("a\x1b[31mb\x00\r\nc\td") == "a\ufffd[31mb\ufffd\ufffd\nc\td"


@pytest.mark.parametrize("value", [True, "7", None, math.nan, math.inf, 1e308, -1e308, [1]])
def test_what_is_no_number(value: object) -> None:
    assert q.number_or_none(value) is None


def test_a_number_stays_one() -> None:
    assert q.number_or_none(7) == 7.0

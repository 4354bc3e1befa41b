from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.tuning.calibration import (
    MOST_TRIES,
    Calibration,
    fit_factors,
    fitted_path,
    read_calibration,
    read_points,
    write_calibration,
)
from dynamo_mlperf.tuning.profiles import shipped_benchmarks
from dynamo_mlperf.tuning.rehearsal_engines import Factors

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = shipped_benchmarks() / "qwen3-vl-235b-a22b" / "calibration-v6.1.yaml"
OVERHEAD = (
    b'{"factors": {"prefill": 1, "itl": 1, "overhead_ms": NaN}, "benchmark": "b", "fitted_to": [], '
    b'"rms_percent": 1, "origin": ""}'
)


def test_factors_are_found_again_from_latencies_that_they_make() -> None:
    """A stand-in for the replay: latency = prefill + steps that slow down with load + overhead."""

    def latency(factors: Factors, prompt: float, load: float) -> float:
        return factors.prefill * prompt + factors.itl * (300.0 + 40.0 * load) + factors.overhead_ms

    true = Factors(0.7, 1.4, 350.0)
    known = [(prompt, load) for prompt in (200.0, 900.0) for load in (1.0, 5.0, 9.0)]
    tries: list[Factors] = []

    def residuals(factors: Factors) -> list[float]:
        tries.append(factors)
        return [math.log(latency(factors, *each) / latency(true, *each)) for each in known]

    found, rms = fit_factors(residuals)
    assert found.prefill == pytest.approx(true.prefill, rel=0.03)
    assert found.itl == pytest.approx(true.itl, rel=0.05)
    assert found.overhead_ms == pytest.approx(true.overhead_ms, rel=0.2)
    assert rms < 0.003
    assert len(tries) < MOST_TRIES


def test_no_fit_tries_more_often_than_is_promised() -> None:
    """The longest one finds what it looks for at the last try of each round, and each time it is much better."""
    rounds, slopes, steps = 5, 3, 3
    best, left = 512.0, []
    for _start in range(2):
        left.append(best)
        for _round in range(rounds):
            left += [best] * slopes + [2 * best] * (steps - 1)
            best /= 2
            left.append(best)
        best = 512.0
    told = iter(left)
    fit_factors(lambda _factors: [next(told)])
    assert (next(told, None), len(left)) == (None, MOST_TRIES)


def test_two_points_do_not_need_an_absurd_third_factor() -> None:
    def residuals(factors: Factors) -> list[float]:
        return [math.log((factors.prefill * 500.0 + 200.0) / 600.0), 0.0]

    found, _rms = fit_factors(residuals)
    assert found.prefill == pytest.approx(0.8, rel=0.05)
    assert found.itl == pytest.approx(1.0, rel=0.1)
    assert 100.0 < found.overhead_ms < 400.0


def test_the_shipped_points_hold_what_was_published_and_their_factors_lie_beside_them() -> None:
    points = read_points(SHIPPED)
    assert {point.qps for point in points.points} == {39.85, 37.85, 15.85, 349.29, 3.99, 49.7, 58.4}
    assert [point.qps for point in points.points if point.at_least] == [15.85]
    assert {point.qps for point in points.fitted} == {39.85, 37.85}
    found = read_calibration(fitted_path(SHIPPED))
    assert found.points == tuple(point.name for point in points.fitted)
    assert found.benchmark == points.benchmark
    assert found.rms < 0.03


def test_fitted_factors_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.fitted.json"
    wanted = Calibration(Factors(0.5, 1.5, 261.3), "b", ("p", "q"), 0.015, "here")
    write_calibration(path, wanted)
    assert read_calibration(path) == wanted


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff", b'{"factors": {"prefill": NaN}}', b'{"factors": {"prefill": 0, "itl": 1}}', b"[]", OVERHEAD],
)
def test_factors_that_are_none_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.fitted.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no fitted factors"):
        read_calibration(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_calibration(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("{name: a, topology: t.yaml}", "qps is missing"),
        ("{name: a, topology: t.yaml, qps: .nan, fit: true}", "nan where a number above 0 was expected"),
        ("{name: a, topology: t.yaml, qps: -1}", "-1 where a number above 0"),
        ("{name: a, topology: t.yaml, qps: 1, extra: 2}", "unknown key 'extra'"),
        ("{name: a, topology: t.yaml, qps: 1, scenario: Fast}", "scenario 'Fast'"),
        ("{name: a, topology: t.yaml, qps: 1, latencies: [{target_qps: 1}]}", "a latency without judged_ms"),
        ("{name: a, topology: t.yaml, qps: 1}", "none of its 1 points has fit: true"),
        ("7", "no file of calibration points"),
    ],
)
def test_points_that_are_none_are_refused(point: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "points.yaml"
    path.write_text(f"schema: 1\nbenchmark: b\npoints:\n  - {point}\n")
    with pytest.raises(ConfigError, match=told):
        read_points(path)

"""What certifies, which constraint binds, and what the fit says of a rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynamo_mlperf.tuning.fit import Fit, certifies
from dynamo_mlperf.tuning.probes import Final, ProbeRecord, Sample, SearchSettings
from tests.tuning.test_next_step import record

SETTINGS = SearchSettings()


def _final(n: int, over: int, *, valid: bool = True, seconds: float = 600.0) -> ProbeRecord:
    return ProbeRecord(40.0, 600.0, (), "complete", Final(valid, n, {"ttft": over, "tpot": 0}, seconds))


@pytest.mark.parametrize(
    ("run", "settings", "good"),
    [
        (_final(24_000, 204), SETTINGS, True),
        (_final(24_000, 205), SETTINGS, False),
        (_final(24_000, 0, valid=False), SETTINGS, False),
        (_final(24_000, 0, seconds=500.0), SETTINGS, False),
        (_final(459, 0), SETTINGS, True),
        (_final(458, 0), SETTINGS, False),
        (_final(5_999, 0), SearchSettings(min_queries=6000), False),
        (record(40.0, 0.0, seconds=595.0, ended="too low"), SETTINGS, False),
    ],
)
def test_what_certifies(run: ProbeRecord, settings: SearchSettings, *, good: bool) -> None:
    assert certifies(run, settings) is good


def _two(rate: float, ttft: float, tpot: float, begin_s: float) -> ProbeRecord:
    """A full run with these shares over the two limits."""
    n = int(rate * 600)
    over = {"ttft": round(n * ttft), "tpot": round(n * tpot)}
    samples = tuple(
        Sample(30.0 * line, n * line // 20, n * line // 20, {key: count * line // 20 for key, count in over.items()})
        for line in range(1, 21)
    )
    return ProbeRecord(
        rate, 600.0, samples, "complete", Final(valid=True, n=n, over=over, seconds=600.0), begin_s, 615.0
    )


def test_the_constraint_that_comes_first_binds() -> None:
    history = (_two(36.0, 0.0, 0.002, 0.0), _two(40.0, 0.001, 0.02, 615.0))
    outlook, binding = Fit(history, SETTINGS, 1230.0).outlook()
    assert binding == "tpot"
    assert 35.0 < outlook.rate < outlook.even < 40.0
    assert outlook.confirm <= outlook.rate
    swapped = tuple(
        replace(
            each,
            samples=tuple(replace(line, over=_swap(line.over)) for line in each.samples),
            final=replace(each.final, over=_swap(each.final.over)) if each.final else None,
        )
        for each in history
    )
    assert Fit(swapped, SETTINGS, 1230.0).outlook() == (outlook, "ttft")


def _swap(over: dict[str, int]) -> dict[str, int]:
    return {"ttft": over["tpot"], "tpot": over["ttft"]}


def test_probabilities_fall_with_the_rate() -> None:
    fit = Fit((record(36.0, 0.002), record(40.0, 0.02, begin_s=615.0)), SETTINGS, 1230.0)
    rates = (34.0, 36.0, 38.0, 40.0, 42.0)
    for told, most in ((fit.pass_probability, 0.9), (fit.holds_probability, 1.0)):
        values = [told(rate) for rate in rates]
        assert values == sorted(values, reverse=True)
        assert 0.94 * most < values[0] <= most, "a tenth of repeats fails for what no single run tells"
        assert values[-1] < 0.1


def test_a_short_quiet_probe_says_less_than_a_long_one() -> None:
    short = Fit((record(38.0, 0.0, seconds=30, ended="too low"),), SearchSettings(start=38.0), 45.0)
    long = Fit((record(38.0, 0.0),), SearchSettings(start=38.0), 615.0)
    assert short.holds_probability(38.0) < long.holds_probability(38.0)
    assert long.holds_probability(38.0) > 0.95


def test_what_few_queries_show_scatters_more() -> None:
    """Passing fades out over a wider range of rates where a full run holds few queries, beyond what counting gives."""

    def fade(scale: float) -> float:
        history = (record(36.0 * scale, 0.003), record(40.0 * scale, 0.015, begin_s=615.0))
        outlook, _ = Fit(history, SETTINGS, 1230.0).outlook()
        return outlook.even / outlook.rate - 1.0

    assert fade(0.25) > 1.5 * fade(1.0) > 1.5 * 1.5 * fade(20.0)


def test_a_run_of_a_few_queries_is_fitted_too() -> None:
    """Its speed says so little that steep lines leave the range of floating-point numbers."""
    settings = SearchSettings(duration_s=2.0, percentile=0.5, low=0.5, high=12.0, at_least=1)
    run = ProbeRecord(1.2, 2.0, (), "complete", Final(True, 3, {"ttft": 0}, 2.5), cost_s=3.0)  # noqa: FBT003
    outlook, binding = Fit((run,), settings, 3.0).outlook()
    assert binding == "ttft"
    assert settings.low is not None
    assert settings.low < outlook.confirm < outlook.rate < outlook.even

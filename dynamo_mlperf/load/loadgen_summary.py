"""LoadGen's summary, `mlperf_log_summary.txt`, held against the detail log of the same test.

LoadGen writes both of every test. The lines known here are those of LoadGen 6.0.17; others are passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from dynamo_mlperf.load.logs import DETAIL, SUMMARY
from dynamo_mlperf.load.over_limit import LOGGED_SHARES
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.load.logs import LoadgenLog

_EXTREMES = ("Min", "Max", "Mean")
_SHARES = tuple(f"{share * 100:.2f}" for share in LOGGED_SHARES)
KEYS: Final = {
    "Scenario": "effective_scenario",
    "Mode": "effective_test_mode",
    "Result is": "result_validity",
    "Samples per second": "result_samples_per_second",
    "Tokens per second": "result_tokens_per_second",
    "Completed samples per second": "result_completed_samples_per_sec",
    "Completed tokens per second": "result_completed_tokens_per_second",
    "Scheduled samples per second": "result_scheduled_samples_per_sec",
    **{f"{name} latency (ns)": f"result_{name.lower()}_latency_ns" for name in _EXTREMES},
    **{f"{share} percentile latency (ns)": f"result_{share}_percentile_latency_ns" for share in _SHARES},
    **{f"{name} First Token latency (ns)": f"result_first_token_{name.lower()}_latency_ns" for name in _EXTREMES},
    **{
        f"{share} percentile first token latency (ns)": f"result_first_token_{share}_percentile_latency_ns"
        for share in _SHARES
    },
    **{f"{name} Time per Output Token (ns)": f"result_time_to_output_token_{name.lower()}" for name in _EXTREMES},
    **{
        f"{share} percentile time to output token (ns)": f"result_time_per_output_token_{share}_percentile_ns"
        for share in _SHARES
    },
}
"""Keys of the detail log by the names of the summary's lines."""
_ALWAYS = ("Scenario", "Mode", "Result is", "Max latency (ns)")
"""In the summary of every performance test; that of an accuracy test has nothing but its end."""
_END = re.compile(r"^(No|\d+) errors? encountered", re.IGNORECASE)
_SIX_DIGITS = 1e-5
_TWO_PLACES = 0.0051
"""Rates are logged with six digits, and stand with six digits or two places in the summary."""


def summary_reasons(log: LoadgenLog) -> list[Reason]:
    """The summary is there, whole, and of the test of the detail log."""
    action = "take detail log and summary of one test, as LoadGen wrote them"
    found = next(_disagreements(log), None)
    return [] if found is None else [Reason(f"LoadGen's {SUMMARY}", f"that of the test in {DETAIL}", found, action)]


def _disagreements(log: LoadgenLog) -> Iterator[str]:
    lines = log.summary.rstrip().splitlines()
    if not lines:
        yield "none, or an empty one"
        return
    end = _END.match(lines[-1])
    if end is None:
        yield "one that is cut"
        return
    if (end[1] in ("No", "0")) != (log.error_count == 0):
        yield f"{lines[-1]!r}, and {log.error_count} in {DETAIL}"
    said = {
        " ".join(name.split()): value.strip() for name, mark, value in (line.partition(":") for line in lines) if mark
    }
    for name, key in KEYS.items():
        logged = log.values.get(key)
        if name not in said:
            if name in _ALWAYS and "result_validity" in log.values and logged is not None:
                yield f"one without {name!r}"
        elif logged is not None and not _same(said[name], logged, rate="per_sec" in key):
            yield f"{f'{name} : {said[name]}'!r}, and {logged} in {DETAIL}"


def _same(said: str, logged: object, *, rate: bool) -> bool:
    if not isinstance(logged, int | float):
        return said == logged
    try:
        gap = abs(float(said) - logged)
    except (ValueError, OverflowError):
        return False
    return gap <= (max(_TWO_PLACES, _SIX_DIGITS * abs(logged)) if rate else 0)

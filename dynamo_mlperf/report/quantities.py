"""Quantities as people read them: one rounding and one spelling per unit, on every surface."""

from __future__ import annotations

import unicodedata

NOT_MEASURED = "did not measure"
NO_VALUE = "\N{EN DASH}"
"""Fills a table's cell that has no value."""

_MINUTE_S = 60
_HOUR_S = 3600
_BYTE_STEP = 1000
_FINE_MS = 10.0
_SMALL_RATE = 1.0
_MOST = 1e21
"""More than any count, time or rate; far below what sums and products of floats cannot hold."""


def count(value: float | None) -> str:
    """A whole number with thousands separators: `24,576`."""
    return NOT_MEASURED if value is None else f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """A latency without its unit: two decimals below 10 ms, one above, so that 1,499.6 never reads as 1,500."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.2f}" if abs(value) < _FINE_MS else f"{value:,.1f}"


def limit_ms(value: float) -> str:
    """A limit without its unit: no decimals where it is a whole number of milliseconds."""
    return f"{value:,.0f}" if float(value).is_integer() else milliseconds(value)


def rate(value: float | None) -> str:
    """A rate per second without its unit: two decimals, four below 1 per second."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.4f}" if 0 < abs(value) < _SMALL_RATE else f"{value:,.2f}"


def size(value_bytes: float | None) -> str:
    """Bytes in decimal units: `93.2 MB`."""
    if value_bytes is None:
        return NOT_MEASURED
    amount = float(value_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(amount) < _BYTE_STEP or unit == "TB":
            break
        amount /= _BYTE_STEP
    return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.1f} {unit}"


def duration(value_s: float | None) -> str:
    """A duration: `0.42 s`, `12.3 s`, `10 min 02 s`, `1 h 05 min`."""
    if value_s is None:
        return NOT_MEASURED
    if value_s < 1:
        return f"{value_s:.2f} s"
    if round(value_s, 1) < _MINUTE_S:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    minutes = round(value_s / _MINUTE_S)
    return f"{minutes // _MINUTE_S} h {minutes % _MINUTE_S:02d} min"


def percentile_name(fraction: float) -> str:
    """`p99` of 0.99, `p99.9` of 0.999."""
    return f"p{fraction * 100:.6g}"


def many(number: float, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 worker`, `2 workers`."""
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """`text` without control characters (escape sequences included); tabs and line ends stay."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def number_or_none(value: object) -> float | None:
    """`value` as a float; None where it is no number that a run can have (its files are taken as they come)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None

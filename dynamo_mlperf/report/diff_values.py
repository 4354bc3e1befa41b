"""Two mappings side by side: which keys differ, and by how many per cent."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from dynamo_mlperf.report.quantities import number_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_VALUES = 20_000
_MOST_BITS = 10_000
_DIGEST = 16

Value = str | float | int | bool | None
"""What a cell holds; None where the run has no such key."""


@dataclass(frozen=True)
class Row:
    """One key that differs.

    Attributes:
        key: What is compared.
        a: The first run's value.
        b: The second run's value.
    """

    key: str
    a: Value
    b: Value

    @property
    def change_percent(self) -> float | None:
        """Of b against a; None where they are no numbers, or a is 0."""
        a, b = number_or_none(self.a), number_or_none(self.b)
        change = None if a is None or b is None or a == 0 else 100.0 * (b / a - 1.0) * (1 if a > 0 else -1)
        return number_or_none(change)


@dataclass(frozen=True)
class Section:
    """One kind of facts, compared.

    Attributes:
        name: For programs.
        title: For people.
        rows: What differs, in the order of the first run.
        compared: How many keys were compared.
        absent: `a`, `b` or `both` where that run has nothing of this kind on record; empty where both have.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    compared: int
    absent: str = ""

    @property
    def equal(self) -> bool:
        """Whether both runs have it on record, and nothing differs."""
        return not self.rows and not self.absent

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name,
            "equal": self.equal,
            "compared": self.compared,
            "not_on_record": {"both": ["a", "b"]}.get(self.absent, [self.absent] if self.absent else []),
            "rows": [
                {"key": row.key, "a": row.a, "b": row.b, "change_percent": _rounded(row.change_percent)}
                for row in self.rows
            ],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def compared(name: str, title: str, a: Mapping[str, Value], b: Mapping[str, Value]) -> Section:
    """A section of two mappings; an empty one is a run that has nothing of this kind on record."""
    if not a or not b:
        absent = "both" if not a and not b else "a" if not a else "b"
        return Section(name, title, (), 0, absent)
    keys = list(dict.fromkeys([*a, *b]))
    rows = [Row(key, a.get(key), b.get(key)) for key in keys if not _same(a.get(key), b.get(key))]
    return Section(name, title, tuple(rows), len(keys))


def _same(a: Value, b: Value) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def flattened(value: object, prefix: str = "") -> dict[str, Value]:
    """Nested JSON or YAML values by dotted key; a list of scalars is one text, one of objects goes by place or name.

    More than 20,000 values are one text, by which two runs can be told apart.
    """
    found: dict[str, Value] = {}
    try:
        _flatten(value, prefix, found)
    except _TooManyError:
        what = f"more than {_MOST_VALUES} values, digest {digest_of(json.dumps(value, sort_keys=True, default=str))}"
        return {prefix or "all of it": what}
    return found


def digest_of(text: str) -> str:
    """A short digest of what is too large, or too damaged, to be compared value by value."""
    return blake3(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]


class _TooManyError(Exception):
    """More values than anyone reads."""


def _flatten(value: object, prefix: str, found: dict[str, Value]) -> None:
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        value = {str(_name(part, place)): part for place, part in enumerate(value)}
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(part, f"{prefix}.{_plain(key)}" if prefix else str(_plain(key)), found)
        return
    found[prefix] = (
        (", ".join(str(_plain(part)) for part in value) or "none") if isinstance(value, list) else _plain(value)
    )
    if len(found) > _MOST_VALUES:
        raise _TooManyError


def _plain(value: object) -> Value:
    """A scalar as JSON and every reader can carry it: `nan` and the like as words, equal to themselves."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return hex(value)  # Python refuses to write so many decimals
    return value if isinstance(value, str | float | int | bool) or value is None else str(value)


def _name(part: object, place: int) -> object:
    return part["name"] if isinstance(part, dict) and "name" in part else place

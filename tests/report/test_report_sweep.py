"""A sweep as its report tells it: how far each split's highest rate may be above, and which split is best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.files import write_json
from dynamo_mlperf.report.sweep import read_sweep, sweep_lines, view_of, winner_line

if TYPE_CHECKING:
    from pathlib import Path


def split(name: str, rate: float | None, *, located: bool = True, within: object = None) -> dict[str, Any]:
    return {
        "split": name,
        "rate_qps": rate,
        "rate_qps_per_gpu": None if rate is None else rate / 16,
        "located": located,
        "located_within": within,
        "reason": "over the end_to_end limit at any rate",
        "bottleneck": {"role": "decode", "text": "decode 443 to 2294 ms a request"},
    }


def summary(*splits: dict[str, Any], winner: str | None = "4P8D") -> dict[str, Any]:
    return {"state": "finished", "winner": winner, "splits": list(splits)}


def test_a_split_tells_how_much_higher_its_rate_may_be(tmp_path: Path) -> None:
    below = split("6P4D", 4.0963, located=False)
    found = summary(split("4P8D", 9.7427, within=0.19), below, split("1P14D", None, within=0.5))
    (tmp_path / "sweep").mkdir()
    write_json(tmp_path / "sweep" / "summary.json", found)
    view = read_sweep(tmp_path)
    assert view is not None
    assert sweep_lines(view)[:3] == [
        "4P8D: no more than 11.59 queries/s holds, with probability 0.9; decode 443 to 2294 ms a request",
        "6P4D: decode 443 to 2294 ms a request",
        "1P14D: over the end-to-end limit at any rate",
    ]


@pytest.mark.parametrize("within", ["near", float("nan"), [0.1], True, None])
def test_a_share_that_is_none_is_left_out(within: object) -> None:
    view = view_of(summary(split("4P8D", 9.7427, within=within)))
    assert view.rows[0].why == "decode 443 to 2294 ms a request"


@pytest.mark.parametrize("located", [True, False])
def test_the_sign_of_a_lower_bound_is_explained_where_it_stands(*, located: bool) -> None:
    view = view_of(summary(split("4P8D", 9.7427, located=located)))
    assert (view.rows[0].rate_text == "≥ 9.74") is not located
    assert ("≥: it holds, but the highest" in view.text()) is not located


def test_the_best_split_is_told_in_a_line() -> None:
    both = (split("6P4D", 4.0963), split("4P8D", 9.7427))
    assert winner_line(view_of(summary(*both))) == "best split: 4P8D, 9.74 queries/s (0.6089 per GPU), of 2 measured"
    assert winner_line(view_of(summary(*both, winner=None))) is None
    assert winner_line(view_of(summary(split("4P8D", None)))) is None


def test_a_split_that_failed_or_was_not_reached_is_none_of_those_that_the_best_was_measured_against() -> None:
    failed = {**split("2P12D", None), "kind": "failed"}
    value = {**summary(split("4P8D", 9.74), failed), "not_measured": [{"split": "6P4D", "reason": "not begun"}]}
    view = view_of(value)
    line = winner_line(view)
    assert line is not None
    assert line.endswith(", of 1 measured, 1 failed to measure, 1 not measured")
    assert view.text().startswith("1 split measured, 1 failed to measure, 1 not measured, ")

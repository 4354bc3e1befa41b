from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from dynamo_mlperf.report.page import render_page
from dynamo_mlperf.report.predicted import as_svg, basis, beside, splits_table, too_close
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.report.summary import print_run
from dynamo_mlperf.tuning.prediction import FILE_NAME, Prediction, SplitPrediction, write_prediction
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from pathlib import Path


def prediction() -> Prediction:
    degrees = {"prefill": 2, "decode": 1}
    splits = (
        SplitPrediction("4P8D", {"prefill": 4, "decode": 8}, degrees, 16, 42.0, "end_to_end", "prefill"),
        SplitPrediction("7P2D", {"prefill": 7, "decode": 2}, degrees, 16, None, "end_to_end", None),
    )
    profiles = {"prefill": {"profile": "gb200-nvfp4-tp2", "origin": "aiconfigurator"}}
    factors = {"factors": {"prefill": 0.5, "itl": 1.5, "overhead_ms": 261.0}}
    return Prediction("q", "qwen3-vl-235b-a22b", "Interactive", 16, splits, profiles, factors)


def summary(root: Path) -> str:
    out = io.StringIO()
    print_run(read_run(root), Console(file=out, width=100))
    return out.getvalue()


def test_a_run_with_a_prediction_shows_it_beside_what_was_measured(tmp_path: Path) -> None:
    root = build_run(tmp_path / "run").root
    assert "Predicted" not in summary(root)
    assert "Predicted beside measured" not in render_page(read_run(root))
    write_prediction(root / FILE_NAME, prediction())
    text, page = summary(root), render_page(read_run(root))
    for shown in (text, page):
        assert "Predicted beside measured" in shown
        assert "42.00" in shown
        assert "% against rehearsed" in shown
        assert "gb200-nvfp4-tp2 (aiconfigurator)" in shown
    assert "rehearsed by offline replay" in text


def test_a_prediction_of_other_splits_or_a_damaged_one_shows_nothing(tmp_path: Path) -> None:
    root = build_run(tmp_path / "run").root
    write_prediction(root / FILE_NAME, prediction())
    assert beside(root, "5P6D", 40.0) is None
    none = beside(root, "7P2D", 40.0)
    assert none is not None
    assert (none.rehearsed, none.difference) == ("passes at no rate", "")
    (root / FILE_NAME).write_text("{")
    assert beside(root, "4P8D", 40.0) is None
    assert "Predicted" not in summary(root)


def test_the_table_says_what_passes_at_no_rate() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(splits_table(prediction()))
    first, second = out.getvalue().splitlines()[1:3]
    assert first.split() == ["4P8D", "42.00", "2.625", "16", "end-to-end", "latency", "prefill"]
    assert "passes at no rate" in second


def test_the_picture_names_units_and_roles_that_are_there_and_its_lines_fit() -> None:
    both = {role: {"profile": "gb200-nvfp4-tp2", "origin": f"aiconfigurator {role}"} for role in ("prefill", "decode")}
    shown = replace(prediction(), profiles=both)
    drawn = ET.fromstring(as_svg(shown))
    lines = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
    assert "42.00 queries/s (2.625 per GPU); end-to-end latency" in lines
    assert [line for line in lines if line.startswith("bottleneck")] == ["bottleneck: prefill"]
    said = basis(shown)
    assert len(said) > 120  # longer than the picture is wide
    assert max(map(len, lines)) <= 120
    assert " ".join(lines).endswith(said)


def test_splits_that_a_rehearsal_cannot_tell_apart_are_named() -> None:
    one = prediction()
    best, none = one.splits
    others = [replace(best, split=name, rate_qps=rate) for name, rate in (("5P6D", 39.2), ("3P10D", 38.9))]
    (said,) = too_close(replace(one, splits=(best, *others, none)))
    assert said.startswith("4P8D and 5P6D are within 7 %")
    assert too_close(replace(one, splits=(best, others[1], none))) == ()
    assert too_close(replace(one, splits=(none, none))) == ()

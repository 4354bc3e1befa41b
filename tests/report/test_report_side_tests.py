"""Accuracy and compliance tests in summary and page: scores beside what they are held to, and why one is not VALID."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynamo_mlperf.report.side_tests import side_rows


def write(run: Path, folder: str, **value: Any) -> None:
    (run / folder).mkdir(parents=True)
    whole = {"test": folder, "verdict": "VALID", "reasons": [], "notes": [], "scores": {}, "targets": {}, **value}
    (run / folder / "result.json").write_text(json.dumps(whole))


def test_each_test_is_a_row_with_its_bounds(tmp_path: Path) -> None:
    scores = {"exact_match": 83.5, "TOKENS_PER_SAMPLE": 6000.25}
    targets = {"exact_match": 82.2987, "TOKENS_PER_SAMPLE": [None, 10998.9]}
    write(tmp_path, "accuracy", scores=scores, targets=targets, notes=["LoadGen warned: x", "rehearsal: scores mean"])
    why = [{"text": "TEST09 mean output tokens: wanted 1150.38 to 1406.02, got 900.00"}]
    write(tmp_path, "TEST09", verdict="INVALID", reasons=why, scores={"mean_output_tokens": 900.0}, targets={})
    accuracy, length = side_rows(tmp_path)
    assert accuracy.text() == "VALID  exact_match 83.5 (at least 82.2987), TOKENS_PER_SAMPLE 6000.25 (at most 10998.9)"
    assert accuracy.why == ("rehearsal: scores mean",)
    assert (length.name, length.verdict, length.why) == ("TEST09", "INVALID", (why[0]["text"],))


def test_a_record_that_is_cut_is_said_so(tmp_path: Path) -> None:
    for number, text in enumerate(("", "[]", '{"targets": 3}', '{"targets": {}, "scores": [], "reasons": []}')):
        run = tmp_path / str(number)
        (run / "TEST06").mkdir(parents=True)
        (run / "TEST06" / "result.json").write_text(text)
        (row,) = side_rows(run)
        assert row.text() == "cannot be read"
    assert side_rows(tmp_path / "none") == ()

"""The probes of a rate search, and what the command line has laid over the file, in the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dynamo_mlperf.files import append_json_line
from dynamo_mlperf.report.page import write_report
from dynamo_mlperf.report.probes import read_probes
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from pathlib import Path

ANSWER = {
    "reason": "full-length VALID run at 15.553 QPS",
    "confirmed_by": 1,
    "probes": [
        {
            "target_qps": 20.0,
            "n": 132,
            "over_limit": {"<b>ttft": 40, "end_to_end": 3},
            "seconds": 7.1,
            "ended": "too low",
        },
        {"target_qps": 15.553, "n": 88, "over_limit": {}, "seconds": 6.4, "valid": True, "purpose": "to confirm"},
        {"target_qps": "x", "n": None, "valid": False, "reasons": ["client-limited: wanted a faster one"]},
    ],
}


def test_each_probe_is_a_row_of_the_page(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=600)
    append_json_line(paths.events, {"t": 0.0, "event": "job_begin", "laid_over": {"search": {"low": 5.0}}})
    (paths.root / "search").mkdir()
    (paths.root / "search" / "answer.json").write_text(json.dumps(ANSWER))
    view = read_probes(paths.root)
    assert view is not None
    assert [row.outcome for row in view.rows] == ["stopped: too low", "VALID", "INVALID (client-limited)"]
    assert [row.confirms for row in view.rows] == [False, True, False]
    page = write_report(paths.root).read_text()
    assert page.count("(this page's result)") == 1
    assert "40 over &lt;b&gt;TTFT, 3 over end-to-end" in page
    assert "<pre>search:\n  low: 5.0\n</pre>" in page


def test_an_answer_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    for text in ("", "[]", "{}", '{"probes": 3}', "[" * 5000):
        (tmp_path / "search" / "answer.json").write_text(text)
        assert read_probes(tmp_path) is None

"""A run that was cut, or failed, says how its search or sweep goes on; any other cause keeps its own action."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dynamo_mlperf.files import write_json
from dynamo_mlperf.record import Reason
from dynamo_mlperf.report.causes import causes_of
from dynamo_mlperf.report.figures import derive_figures
from dynamo_mlperf.report.resuming import action_of
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.report.summary import print_summary
from dynamo_mlperf.tuning.records import RecordDirectory
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from collections.abc import Callable

CUT = Reason("interrupted", "a measurement", "stopped by SIGINT", "see events.jsonl and logs/")


def begun_search(root: Path) -> None:
    RecordDirectory(root / "search", {"model": "tiny"}).close()


def begun_sweep(root: Path) -> None:
    (root / "sweep").mkdir()
    write_json(root / "sweep" / "summary.json", {"state": "stopped", "splits": []})


@pytest.mark.parametrize(("begin", "verb"), [(begun_search, "search"), (begun_sweep, "sweep")])
def test_what_was_cut_names_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], None], verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs" / "cut"
    root.mkdir(parents=True)
    assert action_of(CUT, root) == CUT.action
    begin(root)
    assert f"`dynamo-mlperf {verb} FILE --resume runs/cut`" in action_of(CUT, root)
    died = Reason("run", "a measurement", "decode-0 was killed", "read its log")
    assert action_of(died, root) == f"read its log; {action_of(CUT, root)}", "what was measured is not to be lost"
    assert action_of(Reason("serving", "2 workers", "1 worker", "read its log"), root) == "read its log"


def test_a_search_with_an_answer_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    begun_search(tmp_path)
    write_json(tmp_path / "search" / "answer.json", {"answer_qps": 9.6})
    assert action_of(CUT, tmp_path) == CUT.action


def test_summary_and_page_tell_it(tmp_path: Path) -> None:
    root = build_run(tmp_path / "run", "failed").root
    verdict = read_run(root).verdict
    assert verdict is not None
    cut = {"check": CUT.check, "wanted": CUT.wanted, "got": CUT.got, "action": CUT.action}
    write_json(root / "verdict.json", {**verdict, "reasons": [cut]})
    begun_search(root)
    out = StringIO()
    print_summary(root, Console(file=out, width=400))
    assert f"→ `dynamo-mlperf search FILE --resume {root}`" in out.getvalue()
    run = read_run(root)
    assert CUT.action not in {cause.action for cause in causes_of(run, derive_figures(run))}

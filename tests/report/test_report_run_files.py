"""Files of a run directory that are unreadable, huge or nested without end: report and comparison go on without them."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from dynamo_mlperf.report.diff import diff_runs
from dynamo_mlperf.report.diff_page import render_diff
from dynamo_mlperf.report.diff_text import print_diff
from dynamo_mlperf.report.diff_values import flattened
from dynamo_mlperf.report.facts import facts_of
from dynamo_mlperf.report.page import render_page
from dynamo_mlperf.report.quantities import number_or_none
from dynamo_mlperf.report.run_data import RunData, read_run
from dynamo_mlperf.report.summary import print_run
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from pathlib import Path

DEEP = ('{"a":' * 500 + "1" + "}" * 500, "[" * 100_000, '{"a":' + "[" * 90 + "]" * 90 + "}")
FILES = (
    "verdict.json", "plan.json", "versions.json", "evidence.json", "events.jsonl", "commands.jsonl", "topology.yaml",
    "loadgen/client.json", "loadgen/queries.csv", "loadgen/mlperf_log_detail.txt", "search/answer.json",
    "sweep/summary.json", "accuracy/result.json", "measure.json", "logs/check-0.json",
)  # fmt: skip
READ_AT_ONCE = frozenset(FILES[:9])


def whole(tmp_path: Path) -> Path:
    """A run that lacks no file that is read."""
    root = build_run(tmp_path / "run", queries=800).root
    for name in FILES:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    return root


def told(root: Path) -> RunData:
    """The run, after everything that a report and a comparison show of it has been made."""
    run = read_run(root)
    print_run(run, Console(file=io.StringIO()))
    assert render_page(run).rstrip().endswith("</html>")
    json.dumps(facts_of(run), indent=2)
    for comparison in (diff_runs(run, run), diff_runs(run, run, noise=True)):
        json.dumps(comparison.as_json(), indent=2, allow_nan=False)
        print_diff(comparison, Console(file=io.StringIO()))
        assert render_diff(comparison).rstrip().endswith("</html>")
    return run


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    root = whole(tmp_path)
    (root / name).unlink()
    (root / name).symlink_to("/proc/self/mem")  # a regular file whose beginning nobody can read, not even root
    run = told(root)
    assert name not in READ_AT_ONCE or any(name.rsplit("/", maxsplit=1)[-1] in damage for damage in run.damaged)


@pytest.mark.parametrize("name", ["loadgen", "search", "sweep", "accuracy", "logs", "events.jsonl", "queries-none"])
def test_a_folder_that_does_not_tell_what_it_holds_is_passed_over(tmp_path: Path, name: str) -> None:
    root = whole(tmp_path)
    if (root / name).exists():
        (root / name).rename(root / "away")
    (root / name).symlink_to("x" * 300)  # to look behind it fails, for root as well
    run = told(root)
    assert any("cannot be read" in damage for damage in run.damaged) == (name in ("loadgen", "events.jsonl"))


@pytest.mark.parametrize("name", FILES)
def test_of_a_file_without_end_no_more_is_read_than_any_run_writes(tmp_path: Path, name: str) -> None:
    root = whole(tmp_path)
    os.truncate(root / name, 1 << 40)  # a tebibyte of nothing: read whole, it fits into no memory
    run = told(root)
    assert name not in READ_AT_ONCE or any("MB" in damage and name in damage for damage in run.damaged)


def test_events_before_an_endless_line_are_kept(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    before = read_run(paths.root).timeline.phases
    os.truncate(paths.events, 1 << 40)
    assert read_run(paths.root).timeline.phases == before


@pytest.mark.parametrize("text", DEEP)
@pytest.mark.parametrize("name", FILES)
def test_nesting_without_end_ends_nothing(tmp_path: Path, name: str, text: str) -> None:
    root = whole(tmp_path)
    (root / name).write_text(f"{text}\n")
    run = told(root)
    assert name not in READ_AT_ONCE - {"topology.yaml"} or any(
        name.rsplit("/", maxsplit=1)[-1] in one for one in run.damaged
    )


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10))


@pytest.mark.parametrize(
    "text", ["a: &a {b: *a}\n", "a: &a [*a, {x: 1}]\n", BOMB, MERGES, "a: !!timestamp x\n", "\x00"]
)
def test_a_topology_whose_anchors_do_not_end_is_told_by_its_digest(tmp_path: Path, text: str) -> None:
    roots = [build_run(tmp_path / name, queries=800).root for name in "ab"]
    for root, more in zip(roots, ("", "# other\n"), strict=True):
        (root / "topology.yaml").write_text(text + more)
    a, b = (told(root) for root in roots)
    (section,) = [one for one in diff_runs(a, b).sections if one.name == "topology"]
    assert [row.key for row in section.rows] == ["no file that can be read; its digest"]
    assert next(one for one in diff_runs(a, a).sections if one.name == "topology").equal


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_whole_numbers_beyond_all_floats_are_none(tmp_path: Path, number: int) -> None:
    assert number_or_none(number) is None
    paths = build_run(tmp_path / "run", queries=800)
    verdict = json.loads(paths.verdict.read_text())
    paths.verdict.write_text(json.dumps({**verdict, "completed_qps": number, "requests": number}))
    plan = json.loads(paths.plan.read_text())
    paths.plan.write_text(
        json.dumps({**plan, "nodes": [{"position": 0, "gpus": number}, {"position": 1, "gpus": 10**15}]})
    )
    told(paths.root)


def test_of_more_values_than_anyone_reads_only_the_digest_is_compared() -> None:
    one, other = ({"a": {str(n): n for n in range(20_001)}, "b": last} for last in (1, 2))
    assert list(flattened(one)) == ["all of it"]
    assert flattened(one) == flattened(dict(one))
    assert flattened(one) != flattened(other)
    assert len(flattened({str(n): n for n in range(20_000)})) == 20_000


def test_numbers_too_long_for_decimals_are_told_all_the_same() -> None:
    assert flattened({"a": 1 << 40_000})["a"] == hex(1 << 40_000)
    assert flattened({"a": [float("nan"), 1 << 40_000]})["a"] == f"nan, {hex(1 << 40_000)}"

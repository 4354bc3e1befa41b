from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dynamo_mlperf.cli.report import command
from dynamo_mlperf.errors import ConfigError, SetupError
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.report.run_builder import Kind


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def report(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


@pytest.mark.parametrize("kind", ["valid", "invalid", "failed", "running"])
def test_a_report_that_could_be_made_ends_with_0_whatever_the_verdict(runs: Path, kind: Kind) -> None:
    build_run(runs / "20261129-1", kind, queries=800)
    result = report("20261129-1")
    assert result.exit_code == 0
    assert result.stdout.startswith("NO VERDICT" if kind == "running" else kind.upper())
    assert result.stderr == "Report: runs/20261129-1/report.html\n"
    assert (runs / "20261129-1" / "report.html").read_text().rstrip().endswith("</html>")


def test_a_damaged_verdict_heads_the_report(runs: Path) -> None:
    paths = build_run(runs / "r", queries=800)
    paths.verdict.write_text(paths.verdict.read_text()[:200])
    result = report("r")
    assert result.stdout.startswith("DAMAGED")
    assert 'class="state-damaged"' in paths.report.read_text()


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    build_run(tmp_path / "elsewhere", queries=800)
    assert report(str(tmp_path / "elsewhere")).exit_code == 0
    assert (tmp_path / "elsewhere" / "report.html").is_file()


def test_the_page_goes_where_it_is_asked_to(runs: Path) -> None:
    build_run(runs / "r", queries=800)
    result = report("r", "--html", "page.html")
    assert result.stderr == "Report: page.html\n"
    assert Path("page.html").is_file()
    assert not (runs / "r" / "report.html").exists()


def test_no_page(runs: Path) -> None:
    build_run(runs / "r", queries=800)
    result = report("r", "--no-html")
    assert result.stderr == ""
    assert not (runs / "r" / "report.html").exists()


def test_json_is_one_object_and_nothing_else(runs: Path) -> None:
    paths = build_run(runs / "r", queries=800)
    facts = json.loads(report("r", "--json").stdout)
    assert facts["state"] == "VALID"
    assert facts["run_dir"] == "runs/r"
    assert facts["verdict"] == json.loads(paths.verdict.read_text())
    assert list(facts["percentiles_ms"]) == ["end-to-end", "TTFT", "TPOT"]
    assert list(facts["percentiles_ms"]["end-to-end"]) == ["p50", "p90", "p99"]
    assert {"phase": "measure", "begin_s": 291.1, "seconds": 602.3} in facts["phases"]
    assert {"process": "prefill-0", "node": "0", "ready_after_s": 122.2, "died": False} in facts["processes"]
    assert (facts["missing"], facts["damaged"]) == ([], [])


def test_json_of_a_failed_run_has_no_percentile(runs: Path) -> None:
    build_run(runs / "r", "failed")
    facts = json.loads(report("r", "--json", "--no-html").stdout)
    assert (facts["state"], facts["percentiles_ms"]) == ("FAILED", {})
    assert [p["process"] for p in facts["processes"] if p["died"]] == ["decode-3"]
    assert facts["missing"] == ["evidence.json", "loadgen/client.json", "loadgen/queries.csv"]


def test_an_unknown_run_names_the_latest(runs: Path) -> None:
    for name in ("20261128-1", "20261129-1"):
        build_run(runs / name, "failed")
    with pytest.raises(ConfigError, match="no run 'demo' below runs; there are 20261129-1, 20261128-1"):
        report("demo")


def test_the_beginning_of_one_runs_name_is_enough_and_of_two_is_not(runs: Path) -> None:
    for name in ("demo-1", "tiny-1", "tiny-2"):
        build_run(runs / name, "failed")
    assert report("demo").stderr == "Report: runs/demo-1/report.html\n"
    with pytest.raises(ConfigError, match="tiny names 2 runs: tiny-2, tiny-1"):
        report("tiny")
    with pytest.raises(ConfigError, match="job 42 has made no run directory: runs/job-42 is not there"):
        report("42")


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(ConfigError, match="photos is no run directory"):
        report("photos")


def test_html_and_no_html_exclude_each_other(runs: Path) -> None:
    build_run(runs / "r", "failed")
    with pytest.raises(ConfigError, match="exclude each other"):
        report("r", "--html", "x.html", "--no-html")


def test_what_json_has_no_number_for_is_a_word(runs: Path) -> None:
    paths = build_run(runs / "r", "failed")
    paths.verdict.write_text(json.dumps({"verdict": "FAILED", "target_qps": float("nan"), "x": [float("-inf")]}))
    facts = json.loads(report("r", "--json", "--no-html").stdout, parse_constant=pytest.fail)
    assert (facts["verdict"]["target_qps"], facts["verdict"]["x"]) == ("nan", ["-inf"])


def test_the_page_takes_no_place_of_what_the_run_left(runs: Path) -> None:
    paths = build_run(runs / "r", "failed")
    before = paths.verdict.read_bytes()
    for target in (f"{paths.verdict}", f"{paths.verdict}/", f"{paths.root}/client.json"):
        with pytest.raises(ConfigError) as refused:
            report("r", "--html", target)
        assert refused.value.action == "--html report.html"
    assert paths.verdict.read_bytes() == before
    for _ in range(2):
        assert report("r", "--html", str(paths.report)).exit_code == 0


def test_a_pipe_is_no_place_for_the_page(runs: Path) -> None:
    build_run(runs / "r", "failed")
    os.mkfifo("pipe")
    with pytest.raises(ConfigError, match="is a device or pipe"):
        report("r", "--html", "pipe")


def test_a_page_that_finds_no_room_leaves_the_one_that_was_there(
    runs: Path, mount_small: Callable[[str], Path]
) -> None:
    build_run(runs / "r", queries=800)
    small = mount_small("16k")
    (small / "page.html").write_text("before")
    with pytest.raises(SetupError, match=r"page\.html: No space left on device"):
        report("r", "--html", str(small / "page.html"))
    assert [(path.name, path.read_text()) for path in small.iterdir()] == [("page.html", "before")]

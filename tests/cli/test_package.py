"""`package` and `check` as programs: what they print, and the code that they end with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.cli import main
from tests.submission.made_runs import description, make_run

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def without_a_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DYNAMO_MLPERF_CHECKER", raising=False)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("cli")
    for scenario in ("Offline", "Server"):
        make_run(base / scenario, scenario=scenario, engine="mocker")
    description(base)
    return base


def test_a_rehearsal_is_packaged_and_refused_as_a_submission(
    rehearsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = (f"{rehearsed}/Offline", f"{rehearsed}/Server")
    asked = ("package", *runs, "--system", rehearsed / "system.yaml", "--rehearsal", "--out", tmp_path / "tree")
    assert call(*asked) == 0
    said = capsys.readouterr()
    assert "deepseek-r1 Server: 6.2" in said.out
    assert f"made: {tmp_path / 'tree'} (" in said.out
    assert "judging 1 of 2" in said.err
    assert call(*asked, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["changed"], answer["class"], answer["total_accelerators"]) == (False, "rehearsal", 8)
    assert call("check", tmp_path / "tree") == 6
    text = capsys.readouterr().out
    assert "\nand " in text, "one finding about many files is told once"
    assert "official checker: not asked" in text
    assert call("check", tmp_path / "tree", "--json") == 6
    checked: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (checked["passed"], checked["official"]) == (False, None)
    assert checked["results"] == [f"REHEARSAL/two-nodes/deepseek-r1/{scenario}" for scenario in ("Offline", "Server")]
    assert {"where", "check", "wanted", "got", "action", "text"} <= set(checked["findings"][0])


def test_refusals_end_with_6_and_mistakes_with_2(
    rehearsed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, system, out = f"{rehearsed}/Server", rehearsed / "system.yaml", tmp_path / "tree"
    assert call("package", run, "--system", system, "--submitter", "ACME", "--out", out) == 6
    assert "class official, got rehearsal" in capsys.readouterr().err
    assert call("package", run, "--system", system, "--submitter", "ACME", "--out", out, "--json") == 6
    answer = json.loads(capsys.readouterr().out)
    assert answer["tree"] is None
    assert any(finding["check"] == "scenarios" for finding in answer["findings"])
    # What no description can mend is told before anybody fills one in.
    assert call("package", run, "--system", tmp_path / "none.yaml", "--submitter", "ACME", "--out", out) == 6
    capsys.readouterr()
    assert call("package", run, "--system", system, "--out", out) == 2
    assert "no submitter" in capsys.readouterr().err
    assert call("package", tmp_path / "none", "--system", system, "--rehearsal", "--out", out) == 2
    assert call("package", run, "--system", tmp_path / "none.yaml", "--rehearsal", "--out", out) == 2
    assert call("check", tmp_path / "none") == 2
    assert call("check", tmp_path) == 2
    asked = ("package", run, "--system", system, "--rehearsal", "--out", out)
    capsys.readouterr()
    assert call(*asked, "--data-set", f"deepseek-r1={tmp_path}", "--no-rescore") == 2
    assert "--no-rescore scores nothing" in capsys.readouterr().err
    assert call(*asked, "--data-set", f"deepseek-r1={tmp_path}", "--data-set", "deepseek-r1=/there") == 2
    assert "--data-set deepseek-r1 is there twice" in capsys.readouterr().err
    both = ("package", f"{rehearsed}/Offline", *asked[1:])
    assert call(*both, "--data-set", f"gpt-oss-120b={tmp_path}") == 2
    assert "what is scored: deepseek-r1\n" in capsys.readouterr().err
    (tmp_path / "closed" / "ACME").mkdir(parents=True)
    assert call("check", tmp_path, "--checker", tmp_path) == 2
    assert "git clone https://github.com/mlcommons/inference" in capsys.readouterr().err
    assert not out.exists()
